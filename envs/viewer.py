"""Pictures of an episode: a text table, or stacked bars of each device's predicted phases above its memory."""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table

from shardgym.costmodel.placement import PHASES
from shardgym.envs.episodes import Episodes

WIDTH, HEIGHT = 640, 400
MARGIN, HEADER, FOOTER, MEMORY_HEIGHT = 12, 44, 18, 70
PHASE_COLOURS = ((58, 110, 165), (143, 188, 143), (218, 165, 32), (178, 75, 75))
INK, PALE, MEMORY_COLOUR, PAPER = (40, 40, 40), (225, 225, 225), (120, 120, 150), (255, 255, 255)
GIB = 2**30
MOST_LABELS = 16  # devices up to which their numbers fit below the bars


class Viewer:
    """Draws one episode of many.

    Args:
        options: names of the options that are chosen among.
    """

    def __init__(self, options: tuple[str, ...]) -> None:
        self._options = options
        self._window: Any = None

    def show(self, episodes: Episodes, n: int, mode: str) -> Any:
        """Episode n as text ("ansi"), as an array (H, W, 3) uint8 ("rgb_array"), or in a window ("human")."""
        if mode == "ansi":
            return self.text(episodes, n)
        frame = self.picture(episodes, n)
        if mode == "rgb_array":
            return frame
        self._show_window(frame)
        return None

    def text(self, episodes: Episodes, n: int) -> str:
        """A row a device: tables, predicted phases, memory."""
        table = Table(title=self.title(episodes, n), title_justify="left")
        for heading in ("device", "tables", *(f"{phase} ms" for phase in PHASES), "memory GiB"):
            table.add_column(heading, justify="right")
        memory = self._capacity(episodes, n)
        for d in range(episodes.devices_of[n]):
            held = int((episodes.owner[n] == d).sum())
            used = memory[d] - episodes.memory_left[n, d]
            phases = (f"{ms:.2f}" for ms in episodes.costs[n, d])
            table.add_row(str(d), str(held), *phases, f"{used / GIB:.2f} / {memory[d] / GIB:.2f}")
        out = io.StringIO()
        Console(file=out, width=110, color_system=None).print(table)
        return out.getvalue()

    def title(self, episodes: Episodes, n: int) -> str:
        """The table in hand, and the step latency so far."""
        encoded = episodes.store.encoded[episodes.slot[n]]
        step = float(episodes.costs[n].max(axis=0).sum())
        placed, count = int(episodes.row[n]), int(episodes.tables_of[n])
        head = f"{encoded.task.name}: {placed} of {count} tables placed, step {step:.2f} ms"
        if placed == count:
            return head
        row = int(episodes.cursor()[n])
        option = int(episodes.option[n])
        piece = (encoded.options[row][max(option, 0)] or encoded.options[row][0]).piece
        chosen = "" if len(self._options) == 1 else f", {self._options[option] if option >= 0 else 'to be decided'}"
        return (
            f"{head}\nin hand: {piece.name}, {piece.rows:,} rows of dim {piece.dim}, pooling {piece.pooling:g}, "
            f"{piece.bytes() / GIB:.2f} GiB{chosen}"
        )

    def picture(self, episodes: Episodes, n: int) -> NDArray[np.uint8]:
        """Bars of all devices, (HEIGHT, WIDTH, 3)."""
        image = Image.new("RGB", (WIDTH, HEIGHT), PAPER)
        draw = ImageDraw.Draw(image)
        draw.multiline_text((MARGIN, 6), self.title(episodes, n), fill=INK)
        D = int(episodes.devices_of[n])
        costs = episodes.costs[n, :D]
        # Room for half as much again as an even share of all tables alone, or for the tallest bar.
        top = max(1.5 * float(episodes.worst_ms[n]) / D, float(costs.sum(axis=1).max()), 1e-9)
        floor = HEIGHT - FOOTER - MEMORY_HEIGHT - MARGIN
        pitch = (WIDTH - 2 * MARGIN) / D
        capacity = self._capacity(episodes, n)
        for d in range(D):
            left, right = MARGIN + d * pitch, MARGIN + (d + 0.8) * pitch
            bottom = float(floor)
            for colour, ms in zip(PHASE_COLOURS, costs[d]):
                height = float(ms) / top * (floor - HEADER)
                if height > 0:
                    draw.rectangle((left, bottom - height, right, bottom), fill=colour)
                bottom -= height
            self._memory(draw, (left, right), capacity, d, int(episodes.memory_left[n, d]))
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
    def _capacity(episodes: Episodes, n: int) -> NDArray[np.int64]:
        return episodes.store.device_memory[episodes.slot[n], : episodes.devices_of[n]]

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
