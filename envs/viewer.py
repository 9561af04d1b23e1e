"""Pictures of an episode: a text table, or stacked bars of each device's predicted phases above its memory."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table

from shardgym.envs.episode import Board
from shardgym.problem.costs import PHASES, StepCost

WIDTH, HEIGHT = 640, 400
MARGIN, HEADER, FOOTER, MEMORY_HEIGHT = 12, 44, 18, 70
PHASE_COLOURS = ((58, 110, 165), (143, 188, 143), (218, 165, 32), (178, 75, 75))
INK, PALE, MEMORY_COLOUR, PAPER = (40, 40, 40), (225, 225, 225), (120, 120, 150), (255, 255, 255)
GIB = 2**30
MOST_LABELS = 16  # devices up to which their numbers fit below the bars


class Viewer:
    """Draws an episode.

    Args:
        options: names of the options that are chosen among.
    """

    def __init__(self, options: tuple[str, ...]) -> None:
        self._options = options
        self._window: Any = None

    def show(self, board: Board, mode: str) -> Any:
        """As text ("ansi"), as an array (H, W, 3) uint8 ("rgb_array"), or in a window ("human")."""
        if mode == "ansi":
            return self.text(board)
        frame = self.picture(board)
        if mode == "rgb_array":
            return frame
        self._show_window(frame)
        return None

    def text(self, board: Board) -> str:
        """A row per device: tables, predicted phases, memory."""
        table = Table(title=self.title(board), title_justify="left")
        for heading in ("device", "tables", *(f"{phase} ms" for phase in PHASES), "memory GiB"):
            table.add_column(heading, justify="right")
        memory = self._capacity(board)
        for d in range(len(memory)):
            held = int((board.device_of == d).sum())
            used = memory[d] - board.memory_left[d]
            phases = (f"{ms:.2f}" for ms in board.costs[d])
            table.add_row(str(d), str(held), *phases, f"{used / GIB:.2f} / {memory[d] / GIB:.2f}")
        out = io.StringIO()
        Console(file=out, width=110, color_system=None).print(table)
        return out.getvalue()

    def title(self, board: Board) -> str:
        """The table in hand, and the step latency so far."""
        encoded, row, option = board.encoded, board.row, board.option
        step, count = float(StepCost(board.costs).step), len(board.chosen)
        head = f"{encoded.task.name}: {row} of {count} tables placed, step {step:.2f} ms"
        if row == count:
            return head
        piece = encoded.option(row, max(option, 0)).piece
        chosen = "" if len(self._options) == 1 else f", {self._options[option] if option >= 0 else 'to be decided'}"
        return (
            f"{head}\nin hand: {piece.name}, {piece.rows:,} rows of dim {piece.dim}, pooling {piece.pooling:g}, "
            f"{piece.bytes() / GIB:.2f} GiB{chosen}"
        )

    def picture(self, board: Board) -> NDArray[np.uint8]:
        """Bars of all devices, (HEIGHT, WIDTH, 3)."""
        image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
        draw = ImageDraw.Draw(image)
        draw.multiline_text((MARGIN, 6), self.title(board), fill=INK)
        D, costs = len(board.memory_left), board.costs
        # Room for half as much again as an even share of all tables alone, or for the tallest bar.
        top = max(1.5 * board.encoded.worst_ms / D, float(costs.sum(axis=1).max()), 1e-9)
        floor = HEIGHT - FOOTER - MEMORY_HEIGHT - MARGIN
        pitch = (WIDTH - 2 * MARGIN) / D
        capacity = self._capacity(board)
        for d in range(D):
            left, right = MARGIN + d * pitch, MARGIN + (d + 0.8) * pitch
            bottom = float(floor)
            for colour, ms in zip(PHASE_COLOURS, costs[d]):
                height = float(ms) / top * (floor - HEADER)
                if height > 0:
                    draw.rectangle((left, bottom - height, right, bottom), fill=colour)
                bottom -= height
            self._memory(draw, (left, right), capacity, d, int(board.memory_left[d]))
            if D <= MOST_LABELS:
                draw.text((left, HEIGHT - FOOTER + 2), f"{d}", fill=INK)
        draw.line((MARGIN, floor, WIDTH - MARGIN, floor), fill=INK)
        self._legend(draw)
        return np.asarray(image, dtype=np.uint8).copy()

    @staticmethod
    def _memory(
        draw: ImageDraw.ImageDraw, sides: tuple[float, float], capacity: NDArray[np.int64], d: int, free: int
    ) -> None:
        """A device's memory as a box whose height is its share of the largest, filled from below."""
        bottom = HEIGHT - FOOTER
        height = MEMORY_HEIGHT * float(capacity[d]) / float(capacity.max())
        used = height * (1 - free / float(capacity[d]))
        draw.rectangle((sides[0], bottom - height, sides[1], bottom), fill=PALE)
        if used > 0:
            draw.rectangle((sides[0], bottom - used, sides[1], bottom), fill=MEMORY_COLOUR)

    @staticmethod
    def _legend(draw: ImageDraw.ImageDraw) -> None:
        x = MARGIN
        for name, colour in zip((*PHASES, "memory"), (*PHASE_COLOURS, MEMORY_COLOUR)):
            draw.rectangle((x, HEADER - 8, x + 8, HEADER), fill=colour)
            draw.text((x + 12, HEADER - 10), name, fill=INK)
            x += 20 + 7 * len(name)

    @staticmethod
    def _capacity(board: Board) -> NDArray[np.int64]:
        return np.array(board.encoded.task.device_memory)

    def _show_window(self, frame: NDArray[np.uint8]) -> None:
        from matplotlib import pyplot as plt  # only a window needs it

        if self._window is None:
            figure = plt.figure(figsize=(WIDTH / 100, HEIGHT / 100))
            axes = figure.add_axes((0, 0, 1, 1))
            axes.set_axis_off()
            self._window = (figure, axes.imshow(frame))
            if plt.isinteractive() or figure.canvas.manager is not None:
                figure.show(warn=False)
        figure, picture = self._window
        picture.set_data(frame)
        figure.canvas.draw_idle()
        figure.canvas.flush_events()

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            from matplotlib import pyplot as plt

            plt.close(self._window[0])
            self._window = None
