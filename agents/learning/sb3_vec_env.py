"""The bridge to Stable-Baselines3: its VecEnv over the vector twins, which steps N environments as arrays."""

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn

from shardgym.envs.vector import VectorPlacingEnv
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

FINAL_KEYS = ("action_mask", "is_success", "illegal_action", "dead_end", "step_ms", "decisions")


def make_vec(name: str, n: int, seed: int | None = None, monitor: bool = True, **keywords: Any) -> VecEnv:
    """N environments as one VecEnv, for every algorithm of Stable-Baselines3 and sb3-contrib.

    Args:
        name: an id of the suite, such as "shardgym/TablePlacement-v1".
        n: environments.
        seed: of the first environment; the i-th after it has seed + i.
        monitor: wrap in `VecMonitor`, so that infos carry the episodes' returns and lengths.
        keywords: of the environment.

    Raises:
        InputError: an id that is not of this suite, or keywords that do not fit.
    """
    twin = gym.make_vec(name, num_envs=n, vectorization_mode="vector_entry_point", **keywords).unwrapped
    if not isinstance(twin, VectorPlacingEnv):
        raise InputError(f"{name}: is no environment of shardgym; use make_vec_env of Stable-Baselines3 for it")
    env = TwinVecEnv(twin)
    if seed is not None:
        env.seed(seed)
    return VecMonitor(env) if monitor else env


@public("shardgym.agents")
class TwinVecEnv(VecEnv):
    """A vector twin as a VecEnv. The array of `tables` is shared by successive observations and never written to.

    Args:
        twin: made by `gymnasium.make_vec`.
    """

    def __init__(self, twin: VectorPlacingEnv) -> None:
        self.twin = twin
        self._actions = np.zeros(twin.num_envs, np.int64)
        super().__init__(twin.num_envs, twin.single_observation_space, twin.single_action_space)

    def reset(self) -> VecEnvObs:
        """Begin all episodes, with the seeds and options that `seed` and `set_options` left.

        Raises:
            InputError: `set_options` left different options for different environments.
        """
        options = self._options[0] or None
        if any(other != self._options[0] for other in self._options):
            raise InputError("set_options: the environments of a vector twin share their options; give one dict")
        observations, infos = self.twin.reset(seed=self._seeds, options=options)
        self.reset_infos = [{"action_mask": mask} for mask in infos["action_mask"]]
        self._reset_seeds()
        self._reset_options()
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> VecEnvStepReturn:
        """Take the actions; an info of an episode that ended has its `terminal_observation`."""
        observations, rewards, done, _, infos = self.twin.step(self._actions)
        ours: list[dict[str, Any]] = [{"action_mask": mask} for mask in infos["action_mask"]]
        for n in np.flatnonzero(done):
            ours[n]["terminal_observation"] = infos["final_obs"][n]
            ours[n]["TimeLimit.truncated"] = False
            final = infos["final_info"]
            ours[n] |= {key: final[key][n] for key in FINAL_KEYS if key in final and final[f"_{key}"][n]}
            self.reset_infos[n] = {"action_mask": infos["action_mask"][n]}
        return observations, rewards.astype(np.float32), done, ours

    def close(self) -> None:
        """Close the twin."""
        self.twin.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        """RGB frames, where the twin was made with render_mode="rgb_array"."""
        frames = self.twin.render() if self.twin.render_mode == "rgb_array" else None
        return frames if frames is not None else [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """An attribute of the twin, which all its environments share."""
        value = getattr(self.twin, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of the twin for all environments at once.

        Raises:
            InputError: only some of the environments are meant.
        """
        if len(list(self._get_indices(indices))) != self.num_envs:
            raise InputError(f"set_attr: {attr_name!r} is one for all environments of a twin; leave indices out")
        setattr(self.twin, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list:
        """`action_masks`, a mask an environment; the twin has no other method that is one environment's own.

        Raises:
            AttributeError: another method.
        """
        if method_name != "action_masks":
            raise AttributeError(f"a vector twin has no method {method_name!r} for each environment")
        masks = self.twin.action_masks()
        return [masks[n] for n in self._get_indices(indices)]

    def env_is_wrapped(self, wrapper_class: type[gym.Wrapper], indices: VecEnvIndices = None) -> list[bool]:
        """No environment of a twin is wrapped."""
        return [False for _ in self._get_indices(indices)]
