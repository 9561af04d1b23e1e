"""What the suite's single environments have in common: one episode, and its rendering."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shardgym.embeddings.errors import InputError
from shardgym.envs.decisions import Decisions
from shardgym.envs.settings import Settings
from shardgym.envs.viewer import Viewer

Observation = dict[str, NDArray]


class PlacingEnv(gym.Env):
    """One episode of placing tables at a time.

    Args:
        settings: made of the environment's keyword arguments.
        render_mode: None, "ansi", "rgb_array" or "human".
    """

    metadata = {"render_modes": ["ansi", "rgb_array", "human"], "render_fps": 10}  # noqa: RUF012  gymnasium's form

    def __init__(self, settings: Settings, render_mode: str | None = None) -> None:
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise InputError(f"render_mode is {render_mode!r}; give None, 'ansi', 'rgb_array' or 'human'")
        self.settings, self.render_mode = settings, render_mode
        self.observation_space = settings.layout.space()
        self.action_space = spaces.Discrete(settings.layout.actions)
        self.episodes = settings.episodes(1)
        self._first = np.zeros(1, np.int64)
        self._action = np.zeros(1, np.int64)
        self._viewer: Viewer | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; `options["task"]` chooses its task."""
        super().reset(seed=seed)
        self.episodes.begin(self._first, [self.settings.next_task(self.np_random, options)])
        self._show()
        return self._observe(), {"action_mask": self.action_masks()}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one action."""
        self._action[0] = action
        outcome = self.episodes.step(self._action)
        done = bool(outcome.done[0])
        info: dict[str, Any] = {"action_mask": self.action_masks()}
        if done:
            complete = bool(outcome.complete[0])
            info |= {"is_success": complete, "illegal_action": bool(outcome.illegal[0])}
            info["dead_end"] = bool(outcome.dead_end[0])
            if complete:
                info |= {"step_ms": float(self.episodes.step_ms()[0]), "decisions": self.episodes.decisions(0)}
        self._show()
        return self._observe(), float(outcome.reward[0]), done, False, info

    def action_masks(self) -> NDArray[np.int8]:
        """(A,) int8, the actions that are legal now (the name that sb3-contrib looks for)."""
        return self.episodes.legal[0].copy()

    def decisions(self) -> Decisions:
        """The task as decided and its placement, once the episode is complete."""
        return self.episodes.decisions(0)

    def render(self) -> Any:
        """A frame by `render_mode`: text, an RGB array (H, W, 3), or a window."""
        if self.render_mode is None:
            gym.logger.warn("render() does nothing without a render_mode; pass one to gymnasium.make")
            return None
        if self._viewer is None:
            self._viewer = Viewer(self.settings.rules.names)
        return self._viewer.show(self.episodes, 0, self.render_mode)

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._viewer is not None:
            self._viewer.close()
            self._viewer = None

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()

    def _observe(self) -> Observation:
        fields = {name: rows[0] for name, rows in self.episodes.observe().items()}
        fields["tables"] = fields["tables"].copy()
        return fields
