"""PPO in one file, in the manner of CleanRL, on a vector twin: `python examples/cleanrl_ppo.py --help`.

A device is scored by one small network that all devices share, from its memory, its predicted costs and the table in
hand; so the agent does not depend on how many devices there are.
"""

import argparse
import time
from dataclasses import dataclass, fields

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical

import shardgym  # registers the ids
from shardgym.envs import Layout


@dataclass
class Args:
    """Settings of a run; each is an option of the command line."""

    env_id: str = "shardgym/TablePlacement-v1"
    tasks: str = "dlrm-20x4"
    seed: int = 0
    total_steps: int = 300_000
    num_envs: int = 64
    num_steps: int = 40
    learning_rate: float = 1e-3
    gamma: float = 1.0
    gae_lambda: float = 0.95
    minibatches: int = 4
    epochs: int = 4
    clip: float = 0.2
    entropy: float = 0.005


FIELDS = ("current", "current_memory", "current_cost", "memory_left", "device_costs", "device_exists", "legal")


class Agent(nn.Module):
    """Logits of the devices and the value of a state, from the fields of `FIELDS`."""

    def __init__(self, layout: Layout, hidden: int = 64) -> None:
        super().__init__()
        self.layout = layout
        self.table = nn.Sequential(nn.Linear(layout.features + 2, hidden), nn.ReLU())
        self.device = nn.Sequential(nn.Linear(6 + hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.actor = nn.Linear(hidden, 1)
        self.critic = nn.Linear(hidden, 1)

    def forward(self, obs: dict[str, Tensor]) -> tuple[Categorical, Tensor]:
        """The policy and the values (B,) of observations (B, ...)."""
        fields = self.layout.unflatten(obs)
        table = torch.cat([fields["current"], fields["current_memory"][:, None], fields["current_cost"][:, None]], 1)
        table = self.table(table)  # (B, hidden)
        device = torch.cat(
            [
                fields["memory_left"][..., None],  # (B, D, 1)
                fields["device_costs"].log1p(),  # (B, D, 4)
                fields["device_exists"][..., None],
                table[:, None, :].expand(-1, self.layout.max_devices, -1),  # (B, D, hidden)
            ],
            dim=2,
        )
        latent = self.device(device)  # (B, D, hidden)
        logits = self.actor(latent).squeeze(-1).masked_fill(fields["legal"] == 0, -1e8)
        return Categorical(logits=logits), self.critic(latent.amax(dim=1)).squeeze(-1)


def tensors(obs: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """The fields that the agent reads."""
    return {name: torch.from_numpy(obs[name]).float() for name in FIELDS}


def main(args: Args) -> None:
    """Train, printing the mean step latency of finished plans."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    envs = gym.make_vec(args.env_id, num_envs=args.num_envs, tasks=args.tasks)
    agent = Agent(Layout.of(envs.single_observation_space))
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    obs, _ = envs.reset(seed=args.seed)
    state, done = tensors(obs), torch.zeros(args.num_envs)
    updates = max(1, args.total_steps // (args.num_envs * args.num_steps))
    start = time.time()
    for update in range(1, updates + 1):
        states, actions, logprobs, rewards, dones, values = [], [], [], [], [], []
        finished: list[float] = []
        for _ in range(args.num_steps):
            with torch.no_grad():
                policy, value = agent(state)
                action = policy.sample()
            obs, reward, terminated, _, info = envs.step(action.numpy())
            for buffer, item in (
                (states, state), (actions, action), (logprobs, policy.log_prob(action)),
                (rewards, torch.from_numpy(reward).float()), (dones, done), (values, value),
            ):  # fmt: skip
                buffer.append(item)
            # SAME_STEP autoreset: the returned observation already is of the next episode.
            state, done = tensors(obs), torch.from_numpy(terminated).float()
            if "final_info" in info and "step_ms" in info["final_info"]:
                final = info["final_info"]
                finished += final["step_ms"][final["_step_ms"]].tolist()

        advantages, last = [], torch.zeros(args.num_envs)
        with torch.no_grad():
            next_value, next_done = agent(state)[1], done
        for t in reversed(range(args.num_steps)):
            going_on = 1 - next_done
            delta = rewards[t] + args.gamma * next_value * going_on - values[t]
            last = delta + args.gamma * args.gae_lambda * going_on * last
            advantages.insert(0, last)
            next_value, next_done = values[t], dones[t]

        # Time and environments become one batch: (num_steps, num_envs) -> (B,)
        batch = {name: torch.cat([s[name] for s in states]) for name in FIELDS}
        action, logprob, value, advantage = map(torch.cat, (actions, logprobs, values, advantages))
        target = advantage + value
        for _ in range(args.epochs):
            for rows in torch.randperm(len(action)).chunk(args.minibatches):
                policy, new_value = agent({name: field[rows] for name, field in batch.items()})
                ratio = (policy.log_prob(action[rows]) - logprob[rows]).exp()
                gain = (advantage[rows] - advantage.mean()) / (advantage.std() + 1e-8)
                surrogate = torch.min(gain * ratio, gain * ratio.clamp(1 - args.clip, 1 + args.clip)).mean()
                loss = 0.5 * (new_value - target[rows]).square().mean() - surrogate
                loss = loss - args.entropy * policy.entropy().mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                optimizer.step()
        steps = update * args.num_envs * args.num_steps
        mean = np.mean(finished) if finished else float("nan")
        print(f"{steps:>9,} steps  mean step {mean:8.3f} ms  {steps / (time.time() - start):8,.0f} steps/s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=f"shardgym {shardgym.__version__}: PPO in one file")
    for field in fields(Args):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default)
    main(Args(**vars(parser.parse_args())))
