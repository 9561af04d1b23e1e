"""DreamShard (arXiv 2210.02023, algorithm 1) as an algorithm of Stable-Baselines3.

    model = DreamShard("DreamShardPolicy", env, measure=MeasuredCost(...))
    model.learn(total_timesteps=10 * 10 * 50)

In turn: placements sampled by the policy in the environment are measured; the cost network is fitted to all
measurements; the policy is trained by REINFORCE on episodes that the cost network estimates, in large batches.
Timesteps are tables placed in the environment, that is, on what is measured; estimated episodes cost none.
"""

import time
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import GymEnv, MaybeCallback, Schedule
from stable_baselines3.common.utils import safe_mean

from shardgym.agents.learning.agent import raw_features
from shardgym.agents.learning.dreamshard_policy import NO_TIME, DreamShardPolicy
from shardgym.agents.learning.training import TrainingOptions, policy_loss, roll_out
from shardgym.agents.planners.construction import CostedTask
from shardgym.agents.planners.planner import Measure
from shardgym.costmodel.exchange_fit import AllToAlls, fit_all_to_alls
from shardgym.costmodel.networks.training import Packed
from shardgym.costmodel.pricing.exchange import Direction, PhysicalExchange, sent_bytes
from shardgym.problem.costs import COMPUTE, EXCHANGE, StepCost
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.placements import Placement
from shardgym.problem.tasks import Task


@public("shardgym.agents")
@dataclass(frozen=True)
class Schedules:
    """The published schedule (arXiv 2210.02023, section 4.1): what one iteration does.

    Args:
        measured: placements measured.
        cost_steps: gradient steps of the cost network, of `cost_batch` devices each.
        policy_steps: gradient steps of the policy, each on `episodes` estimated episodes of one task.
    """

    measured: int = 10
    cost_steps: int = 300
    cost_batch: int = 64
    policy_steps: int = 10
    episodes: int = 10


@dataclass(frozen=True)
class Measurement:
    """A placement and what its devices took, (D, 4) ms."""

    task: Task
    placement: Placement
    phases: NDArray[np.floating]


@public("shardgym.agents")
class DreamShard(BaseAlgorithm):
    """DreamShard.

    Args:
        policy: "DreamShardPolicy" or that class.
        env: a `shardgym/TablePlacement-v1`, single or vectorised.
        measure: what a placement really costs: `MeasuredCost`, or any cost model. None takes the environment's own
            prediction, per device, as the truth.
        learning_rate: of both networks, Adam; falling linearly to zero by default.
        schedules: what an iteration does.
        entropy: weight of the policy's entropy.
        policy_kwargs, verbose, seed, device, tensorboard_log, stats_window_size: as in Stable-Baselines3.
    """

    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"DreamShardPolicy": DreamShardPolicy}
    policy: DreamShardPolicy

    def __init__(
        self,
        policy: str | type[DreamShardPolicy],
        env: GymEnv | str | None,
        measure: Measure | None = None,
        learning_rate: float | Schedule = lambda left: 1e-3 * left,
        schedules: Schedules = Schedules(),
        entropy: float = 1e-3,
        policy_kwargs: dict[str, Any] | None = None,
        stats_window_size: int = 100,
        tensorboard_log: str | None = None,
        verbose: int = 0,
        seed: int | None = None,
        device: torch.device | str = "cpu",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            policy_kwargs=policy_kwargs,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            verbose=verbose,
            seed=seed,
            device=device,
            support_multi_env=True,
            supported_action_spaces=(spaces.Discrete,),
        )
        self.measure = measure
        self.schedules = schedules
        self.entropy = entropy
        self.measurements: list[Measurement] = []
        self.iterations = 0
        self.seconds_measuring = 0.0
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        self.policy = self.policy_class(  # type: ignore[assignment]
            self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs
        ).to(self.device)
        self._generator = torch.Generator().manual_seed(self.seed or 0)

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int = 1,
        tb_log_name: str = "DreamShard",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> "DreamShard":
        """Train until so many tables were placed in measured placements; iterations end whole."""
        total_timesteps, callbacks = self._setup_learn(
            total_timesteps, callback, reset_num_timesteps, tb_log_name, progress_bar
        )
        callbacks.on_training_start(locals(), globals())
        while self.num_timesteps < total_timesteps:
            if not self._collect(callbacks):
                break
            self._update_current_progress_remaining(self.num_timesteps, total_timesteps)
            self.train()
            self.iterations += 1
            if self.iterations % log_interval == 0:
                self._log()
        callbacks.on_training_end()
        return self

    def train(self) -> None:
        """Fit the cost network to all measurements, then train the policy on what it estimates."""
        self._update_learning_rate([self.policy.cost_optimizer, self.policy.optimizer])
        self.policy.set_training_mode(True)
        self.logger.record("train/cost_loss", self._fit_cost_network())
        self.policy.set_training_mode(False)
        ratio = np.mean([self._policy_step() for _ in range(self.schedules.policy_steps)])
        self.logger.record("train/estimated_step_ratio", float(ratio))

    def _collect(self, callbacks: BaseCallback) -> bool:
        """Sample placements in the environment until enough are measured; False where a callback stops it."""
        assert self.env is not None, "an environment is set before learning"
        wanted = len(self.measurements) + self.schedules.measured
        callbacks.on_rollout_start()
        observation: Any = self._last_obs
        while len(self.measurements) < wanted:
            actions, _ = self.policy.predict(observation, deterministic=False)
            observation, rewards, dones, infos = self.env.step(actions)
            self.num_timesteps += self.env.num_envs
            for info in infos:
                if "decisions" in info and len(self.measurements) < wanted:
                    self._measure(info["decisions"].task(), info["decisions"].placement())
            callbacks.update_locals(locals())
            if not callbacks.on_step():
                return False
            self._update_info_buffer(infos, dones)
        self._last_obs = observation
        callbacks.on_rollout_end()
        return True

    def _measure(self, task: Task, placement: Placement) -> None:
        began = time.monotonic()
        measure = self.measure or _cost_model_of(self.env)
        self.measurements.append(Measurement(task, placement, measure.cost(task, placement).phases))
        self.seconds_measuring += time.monotonic() - began

    def _fit_cost_network(self) -> float:
        """Steps on batches of measured devices; the mean loss."""
        measured = measured_devices(self.measurements)
        if self.iterations == 0:
            self.policy.begin(measured)
        self.policy.set_exchange(measured_exchange(self.measurements))
        losses = []
        for _ in range(self.schedules.cost_steps):
            chosen = torch.randint(len(measured), (self.schedules.cost_batch,), generator=self._generator)
            loss = self.policy.cost_loss(measured.take(chosen))
            self.policy.cost_optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.cost_network.parameters(), 1.0)
            self.policy.cost_optimizer.step()
            losses.append(float(loss.detach()))
        return float(np.mean(losses))

    def _policy_step(self) -> float:
        """One REINFORCE step on estimated episodes of a measured task; their mean step in fair steps."""
        rng = np.random.default_rng([self.seed or 0, self.iterations, int(self.policy.steps_taken)])
        task = self.measurements[int(rng.integers(len(self.measurements)))].task
        options = TrainingOptions(episodes=self.schedules.episodes)
        costed, features = CostedTask.of(task, self.policy.estimate()), raw_features(task)
        rollout = roll_out(self.policy.placing, costed, features, options, self._generator)
        self.policy.optimizer.zero_grad()
        policy_loss(self.policy.placing, features, rollout, self.entropy).backward()
        torch.nn.utils.clip_grad_norm_(self.policy.placing.parameters(), 1.0)
        self.policy.optimizer.step()
        self.policy.steps_taken += 1
        return rollout.step_ratio

    def _log(self) -> None:
        self.logger.record("time/iterations", self.iterations)
        self.logger.record("measured/placements", len(self.measurements))
        recent = [StepCost(m.phases).step for m in self.measurements[-self.schedules.measured :]]
        self.logger.record("measured/step_ms", float(np.mean(recent)))
        if self.ep_info_buffer:
            episodes: deque[Any] = self.ep_info_buffer
            self.logger.record("rollout/ep_rew_mean", safe_mean([info["r"] for info in episodes]))
        self.logger.dump(step=self.num_timesteps)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "_generator", "measure"]

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return ["policy", "policy.optimizer", "policy.cost_optimizer"], []


def _cost_model_of(env: Any) -> Measure:
    """The cost model that an environment of this suite predicts with."""
    return env.get_attr("settings")[0].cost_model


def measured_devices(measurements: list[Measurement]) -> Packed:
    """The tables on each used device of each measurement, and what it computed: targets (devices, 2) ms.

    Raises:
        InputError: nothing was measured.
    """
    features, sizes, targets = [], [], []
    for measured in measurements:
        all_features, device_of = raw_features(measured.task), measured.placement.array()
        for device in np.unique(device_of):
            features.append(all_features[torch.from_numpy(device_of == device)])
            sizes.append(int((device_of == device).sum()))
            targets.append(np.maximum(measured.phases[device, COMPUTE], NO_TIME))
    if not features:
        raise InputError("DreamShard: nothing was measured; let schedules.measured be at least 1")
    return Packed(torch.cat(features), torch.tensor(sizes), torch.from_numpy(np.array(targets, dtype=np.float32)))


def measured_exchange(measurements: list[Measurement]) -> PhysicalExchange:
    """The exchange fitted to the measured collectives, each over with its slowest device."""
    groups = []
    for devices in sorted({m.task.devices for m in measurements} - {1}):
        of_size = [m for m in measurements if m.task.devices == devices]
        sent = np.array([_sent(m) for m in of_size])  # (N, D)
        ms = np.maximum([m.phases[:, EXCHANGE].max(axis=0) for m in of_size], NO_TIME)
        groups.append(AllToAlls(devices, sent.sum(axis=1), sent.max(axis=1), ms, np.zeros((len(of_size), 2, 0))))
    return fit_all_to_alls(groups)[0] if groups else PhysicalExchange(Direction(), Direction())


def _sent(measured: Measurement) -> NDArray[np.float64]:
    """Bytes that each device sent, (D,)."""
    task = measured.task
    sent = np.array([sent_bytes(table, task.batch_size) for table in task.tables], dtype=np.float64)
    on_device = np.zeros(task.devices)
    np.add.at(on_device, measured.placement.array(), sent)
    return on_device
