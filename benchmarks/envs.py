"""How fast the environments step, and how much memory they take: `python -m benchmarks.envs [--against COMMIT]`.

With `--against` the three speeds are also given as ratios to those of another commit, which runs in turn with this one:
`against.single`, `against.vector`, `against.sparse` (`benchmarks.env_speeds`).

All runs are interleaved in rounds; a number is the median of its rounds. Actions are drawn beforehand, and are all
legal: the tasks leave room everywhere. Tasks are encoded before the clock starts, as they are after the first pass
over a family's training half.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median

import gymnasium as gym
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import shardgym
from benchmarks.price_identity import price_identity
from shardgym.costmodel.pricing.ranges import OutOfRangeWarning
from shardgym.costmodel.shipped import shipped_cost
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.envs.families import family
from shardgym.problem.tasks import Task

PLACEMENT = "shardgym/TablePlacement-v1"
OTHERS = ("shardgym/TableSharding-v1", "shardgym/FormatPlacement-v1")
ENVS = 256
ROUNDS = 5
SINGLE_STEPS = 4000
VECTOR_STEPS = 250
DREAMSHARD_STEPS_PER_S = 620  # of its public environment and policy, learning included; stated in the issue
TARGETS = {
    "single_steps_per_s": (">=", 15_000), "vector_steps_per_s": (">=", 400_000),
    "vector_steps_per_s_sparse": (">=", 1_000_000), "step_cost_growth": ("<=", 2.0),
    "vector_vs_single": (">=", 20.0), "kb_per_env": ("<=", 64.0), "price_identity": ("<=", 1e-6),
    "against.single": (">=", 0.85), "against.vector": (">=", 0.85), "against.sparse": (">=", 0.85),
}  # fmt: skip


def single_rate(env: gym.Env, actions: np.ndarray) -> float:
    """Steps per second of one environment, resets included."""
    env.reset(seed=0)
    start = time.perf_counter()
    for action in actions:
        if env.step(action)[2]:
            env.reset()
    return len(actions) / (time.perf_counter() - start)


def vector_rate(env: gym.vector.VectorEnv, actions: np.ndarray) -> float:
    """Steps per second of all environments of a twin together."""
    env.reset(seed=0)
    start = time.perf_counter()
    for row in actions:
        env.step(row)
    return actions.size / (time.perf_counter() - start)


def masked_rate(env: gym.vector.VectorEnv, steps: int, rng: np.random.Generator) -> float:
    """Steps per second where legal actions have to be drawn from the masks; drawing them is not counted."""
    _, info = env.reset(seed=0)
    spent = 0.0
    for _ in range(steps):
        mask = info["action_mask"]
        actions = np.where(mask, rng.random(mask.shape), -1).argmax(axis=1)
        start = time.perf_counter()
        _, _, _, _, info = env.step(actions)
        spent += time.perf_counter() - start
    return steps * env.num_envs / spent


def forward_rate(count: int) -> float:
    """Device costs per second by the cost network's own torch forward, `count` devices per call."""
    model = shipped_cost()
    states = torch.from_numpy(model.table_states(family("dlrm-50x4").task(0)))
    rows = states[torch.arange(count) % len(states)].split(states.shape[1] // len(model.networks), dim=1)
    calls = max(200, 2000 // count)
    with torch.no_grad():
        start = time.perf_counter()
        for _ in range(calls):
            for network, part in zip(model.networks, rows):
                network.device_costs(part)
        return calls * count / (time.perf_counter() - start)


def encode_all(env: gym.Env | gym.vector.VectorEnv, count: int) -> None:
    """Play the first moment of every task, so that it is encoded."""
    for number in range(count):
        env.reset(options={"task": number})


def twin(name: str, count: int = 100, **keywords: object) -> gym.vector.VectorEnv:
    """A vector twin of `ENVS` environments whose tasks are encoded."""
    env = gym.make_vec(name, num_envs=ENVS, **keywords)
    encode_all(env, count)
    return env


def growth_task(tables: int) -> Task:
    """Tables on 4 devices that hold them all."""
    return Task(dlrm_like(tables, seed=tables), (2**44,) * 4, 65536, f"{tables} tables")


def kb_per_env() -> float:
    """Memory of a twin at 200 tables, observations and encoded tasks of a whole training half included, a share."""
    tracemalloc.start()
    # What is measured is the environment, not the tables that every environment of a process shares.
    for number in range(100):
        family("dlrm-200x8").task(number)
    before = tracemalloc.get_traced_memory()[0]
    env = twin(PLACEMENT, tasks="dlrm-200x8")
    kept = env.reset(seed=0), env.step(np.zeros(ENVS, int))
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept
    return (after - before) / ENVS / 1024


AGAINST_ROUNDS = 5


def main() -> None:
    """Measure, print a table, and one JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", metavar="COMMIT", help="compare with this commit's own benchmark")
    commit = parser.parse_args().against
    result = {"price_identity": price_identity(shipped_cost())} | measured()
    if commit is not None:
        result |= ratios_to(commit)
    report(result)


def ratios_to(commit: str) -> dict[str, float]:
    """The three speeds over those of another commit: medians of rounds in which the two run in turn."""
    with tempfile.TemporaryDirectory() as folder:
        tree, site = Path(folder) / "tree", Path(folder) / "site"
        subprocess.run(["git", "worktree", "add", "--detach", str(tree), commit], check=True, capture_output=True)
        try:
            install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site)]
            subprocess.run([sys.executable, *install, str(tree)], check=True, capture_output=True)
            rounds = [(speeds(), speeds(site)) for _ in range(AGAINST_ROUNDS)]
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], check=True, capture_output=True)
    return {f"against.{key}": median(ours[key] / theirs[key] for ours, theirs in rounds) for key in rounds[0][0]}


def speeds(site: Path | None = None) -> dict[str, float]:
    """What `benchmarks.env_speeds` says of the package, or of the one installed in a folder."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | ({"PYTHONPATH": str(site)} if site else {})
    command = [sys.executable, "-m", "benchmarks.env_speeds"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measured() -> dict[str, float]:
    """Every number by name."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", OutOfRangeWarning)  # of formats; it is speed that is measured here
    rng = np.random.default_rng(0)
    single_actions = rng.integers(4, size=SINGLE_STEPS)
    vector_actions = rng.integers(4, size=(VECTOR_STEPS, ENVS))
    single = gym.make(f"shardgym:{PLACEMENT}", tasks="dlrm-50x4")
    encode_all(single, 100)
    dense, sparse = (twin(PLACEMENT, tasks="dlrm-50x4", reward=reward) for reward in ("dense", "sparse"))
    small, large = growth_task(20), growth_task(1000)
    sized = {n: gym.make(f"shardgym:{PLACEMENT}", tasks=task) for n, task in ((20, small), (1000, large))}
    sized_twins = {n: twin(PLACEMENT, 1, tasks=task) for n, task in ((20, small), (1000, large))}
    for env in sized.values():
        encode_all(env, 1)
    runs: dict[str, Callable[[], float]] = {
        "single_steps_per_s": lambda: single_rate(single, single_actions),
        "vector_steps_per_s": lambda: vector_rate(dense, vector_actions),
        "vector_steps_per_s_sparse": lambda: vector_rate(sparse, vector_actions),
        "single_20_tables": lambda: single_rate(sized[20], single_actions),
        "single_1000_tables": lambda: single_rate(sized[1000], single_actions),
        "vector_20_tables": lambda: vector_rate(sized_twins[20], vector_actions),
        "vector_1000_tables": lambda: vector_rate(sized_twins[1000], vector_actions),
        "forward_1": lambda: forward_rate(1),
        "forward_256": lambda: forward_rate(ENVS),
    }
    for name in OTHERS:
        other = twin(name)
        runs[f"vector_{name.split('/')[1]}"] = lambda other=other: masked_rate(other, 100, np.random.default_rng(0))
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            rates[name].append(run())
    result = {name: median(values) for name, values in rates.items()}
    result["step_cost_growth"] = max(
        result["single_20_tables"] / result["single_1000_tables"],
        result["vector_20_tables"] / result["vector_1000_tables"],
    )
    ratios = [v / s for v, s in zip(rates["vector_steps_per_s"], rates["single_steps_per_s"])]
    result["vector_vs_single"] = median(ratios)
    result["single_vs_forward"] = result["single_steps_per_s"] / result["forward_1"]
    result["vector_vs_forward"] = result["vector_steps_per_s"] / result["forward_256"]
    result["single_vs_dreamshard"] = result["single_steps_per_s"] / DREAMSHARD_STEPS_PER_S
    result["kb_per_env"] = kb_per_env()
    return result


def report(result: dict[str, float]) -> None:
    """The table, and the JSON line."""
    table = Table(title=f"shardgym {shardgym.__version__}: environments, {ROUNDS} interleaved rounds, 1 thread")
    for column in ("what", "measured", "target", "met"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for name, value in result.items():
        sign, target = TARGETS.get(name, ("", None))
        met = "" if target is None else "yes" if (value >= target if sign == ">=" else value <= target) else "NO"
        shown = f"{value:,.0f}" if value > 100 else f"{value:.3g}"
        table.add_row(name, shown, f"{sign} {target:,}" if target is not None else "", met)
    Console().print(table)
    print(json.dumps({name: round(value, 10) for name, value in result.items()}))


if __name__ == "__main__":
    main()
