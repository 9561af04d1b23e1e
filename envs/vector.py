"""The vector twins: N environments in one process, stepped together as arrays."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from shardgym.envs.episodes import Outcome
from shardgym.envs.settings import Settings
from shardgym.envs.viewer import Viewer
from shardgym.problem.errors import InputError

Observations = dict[str, NDArray]
VectorSeed = int | Sequence[int | None] | None


class VectorPlacingEnv(gym.vector.VectorEnv):
    """N episodes that behave as N single environments under `SyncVectorEnv(..., autoreset_mode=SAME_STEP)`.

    Every array of an observation is new at each step but `tables`, which is the same object until some episode begins
    or an option is chosen, and is never written to.

    Args:
        num_envs: N.
        settings: made of the environment's keyword arguments.
        render_mode: None, "ansi" or "rgb_array".
    """

    metadata = {  # noqa: RUF012  gymnasium's form
        "render_modes": ["ansi", "rgb_array"],
        "render_fps": 10,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(self, num_envs: int, settings: Settings, render_mode: str | None = None) -> None:
        if not isinstance(num_envs, int) or num_envs < 1:
            raise InputError(f"num_envs is {num_envs!r}; give a whole number of at least 1")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise InputError(f"render_mode is {render_mode!r}; give None, 'ansi' or 'rgb_array'")
        self.num_envs, self.settings, self.render_mode = num_envs, settings, render_mode
        self.single_observation_space = settings.layout.space()
        self.single_action_space = spaces.Discrete(settings.layout.actions)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.episodes = settings.episodes(num_envs)
        self._rngs: list[np.random.Generator] = []
        self._viewer: Viewer | None = None

    def reset(
        self, *, seed: VectorSeed = None, options: dict[str, Any] | None = None
    ) -> tuple[Observations, dict[str, Any]]:
        """Begin all episodes, or those of `options["reset_mask"]`; environment i takes seed + i of a number.

        Raises:
            ValueError: seeds or mask are not one an environment.
        """
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else seed
        if seeds is not None and len(seeds) != self.num_envs:
            raise ValueError(f"seed: {len(seeds)} seeds for {self.num_envs} environments; give one an environment")
        self._seed(seeds)
        options = dict(options or {})
        mask = options.pop("reset_mask", np.ones(self.num_envs, bool))
        if np.shape(mask) != (self.num_envs,) or not np.any(mask):
            raise ValueError(f"reset_mask: give {self.num_envs} booleans, at least one of them true")
        self._begin(np.flatnonzero(mask), options)
        return self.episodes.observe(), self._begun(np.asarray(mask, bool))

    def step(
        self, actions: NDArray[np.integer]
    ) -> tuple[Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Take one action in each environment, (N,); those that end begin anew in the same step."""
        outcome = self.episodes.step(np.asarray(actions))
        observations = self.episodes.observe()
        infos: dict[str, Any] = {}
        if outcome.done.any():
            infos = self._final(outcome, observations)
            self._begin(np.flatnonzero(outcome.done), None)
            observations = self.episodes.observe()
            infos |= self._begun(outcome.done)
        infos |= self._masks(np.ones(self.num_envs, bool))
        return observations, outcome.reward, outcome.done, np.zeros(self.num_envs, bool), infos

    @property
    def cost_source(self) -> str:
        """What the costs were measured on, or that nothing was."""
        return self.settings.cost_source

    def action_masks(self) -> NDArray[np.int8]:
        """(N, A) int8, the actions that are legal now."""
        return self.episodes.legal.copy()

    def render(self) -> tuple[Any, ...] | None:
        """A frame an environment, by `render_mode`."""
        if self.render_mode is None:
            return None
        if self._viewer is None:
            self._viewer = Viewer(self.settings.rules.names)
        return tuple(self._viewer.show(self.episodes.board(n), self.render_mode) for n in range(self.num_envs))

    @cached_property
    def observation_space(self) -> spaces.Space:  # type: ignore[override]
        """The batched space, made when it is asked for: its bounds take more memory than the environments."""
        return batch_space(self.single_observation_space, self.num_envs)

    def _seed(self, seeds: Sequence[int | None] | None) -> None:
        if not self._rngs:
            self._rngs = [seeding.np_random()[0] for _ in range(self.num_envs)]
        for n, seed in enumerate(seeds or ()):
            if seed is not None:
                self._rngs[n] = seeding.np_random(seed)[0]

    def _begin(self, which: NDArray[np.int64], options: dict[str, Any] | None) -> None:
        tasks = [self.settings.next_task(self._rngs[n], options) for n in which]
        self.episodes.begin(which, tasks)

    def _begun(self, which: NDArray[np.bool_]) -> dict[str, Any]:
        """What a reset tells of the environments that it began."""
        source = np.full(self.num_envs, None, dtype=object)
        source[which] = self.cost_source
        return self._masks(which) | {"cost_source": source, "_cost_source": which.copy()}

    def _masks(self, which: NDArray[np.bool_]) -> dict[str, Any]:
        return {"action_mask": self.episodes.legal * which[:, None], "_action_mask": which}

    def _final(self, outcome: Outcome, observations: Observations) -> dict[str, Any]:
        """`final_obs` and `final_info` of the episodes that end, in the form of gymnasium's own vector environments."""
        done, complete = outcome.done, outcome.complete
        which = np.flatnonzero(done)
        ended = observations if len(which) == self.num_envs else {k: rows[which] for k, rows in observations.items()}
        final_obs = np.full(self.num_envs, None, dtype=object)
        final_obs[which] = [dict(zip(ended, rows)) for rows in zip(*ended.values())]
        info = self._masks(done)
        for name, flags in (
            ("is_success", complete),
            ("illegal_action", outcome.illegal),
            ("dead_end", outcome.dead_end),
        ):
            info |= {name: flags, f"_{name}": done.copy()}
        if complete.any():
            decisions = np.full(self.num_envs, None, dtype=object)
            decisions[complete] = self.episodes.decisions(np.flatnonzero(complete))
            info |= {"step_ms": np.where(complete, self.episodes.step_ms(), 0.0), "_step_ms": complete.copy()}
            info |= {"decisions": decisions, "_decisions": complete.copy()}
        return {"final_obs": final_obs, "_final_obs": done.copy(), "final_info": info, "_final_info": done.copy()}
