"""What the suite's single environments have in common: one episode, and its rendering."""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from shardgym.envs.decisions import Decisions
from shardgym.envs.settings import CACHED_TASKS, Settings
from shardgym.envs.viewer import Viewer
from shardgym.problem.errors import InputError

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
        self.episode = settings.episode()
        self._encode = settings.encoder(CACHED_TASKS)
        self._viewer: Viewer | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; `options["task"]` chooses its task."""
        super().reset(seed=seed)
        self.episode.begin(self._encode(self.settings.next_task(self.np_random, options)))
        self._show()
        return self.episode.observe(), {"action_mask": self.action_masks(), "cost_source": self.cost_source}

    def step(self, action: int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Take one action."""
        reward, done, complete, dead_end, illegal = self.episode.step(int(action))
        info: dict[str, Any] = {"action_mask": self.episode.legal.copy()}
        if done:
            info |= {"is_success": complete, "illegal_action": illegal, "dead_end": dead_end}
            if complete:
                info |= {"step_ms": self.episode.step_ms(), "decisions": self.decisions()}
        self._show()
        return self.episode.observe(), reward, done, False, info

    @property
    def cost_source(self) -> str:
        """What the costs were measured on, or that nothing was."""
        return self.settings.cost_source

    def action_masks(self) -> NDArray[np.int8]:
        """(A,) int8, the actions that are legal now (the name that sb3-contrib looks for)."""
        return self.episode.legal.copy()

    def decisions(self) -> Decisions:
        """The task as decided and its placement, once the episode is complete."""
        return self.episode.decisions()

    def render(self) -> Any:
        """A frame by `render_mode`: text, an RGB array (H, W, 3), or a window."""
        if self.render_mode is None:
            gym.logger.warn("render() does nothing without a render_mode; pass one to gymnasium.make")
            return None
        if self._viewer is None:
            self._viewer = Viewer(self.settings.rules.names)
        return self._viewer.show(self.episode.board(), self.render_mode)

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._viewer is not None:
            self._viewer.close()
            self._viewer = None

    def _show(self) -> None:
        if self.render_mode == "human":
            self.render()
