"""The stretches of the road, each with its progress shown: measure, fit, train, plan, evaluate."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from shardgym.agents.agent import Agent
from shardgym.agents.heuristics import LargestFirstPlanner, RandomPlanner, heuristic_planners
from shardgym.agents.planner import NoPlacementFoundError, Planner
from shardgym.agents.training import TrainingOptions, train_agent
from shardgym.console import bar, console, show_errors
from shardgym.costmodel.additive import AdditiveCost
from shardgym.costmodel.drift import without_drift
from shardgym.costmodel.fit import FitOptions, fit_network, phase_errors, split_samples
from shardgym.costmodel.groups import GroupDesign, fitting
from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.measure import Meter, measure_design
from shardgym.costmodel.measured import MeasuredCost, exchange_costs
from shardgym.costmodel.placement import PHASES, StepCost, Task
from shardgym.costmodel.plan_file import Candidate, Plan
from shardgym.costmodel.repeatability import disagreement, measure_again
from shardgym.costmodel.samples import SampleFolder, one_hardware
from shardgym.costmodel.summed import SummedCostModel
from shardgym.embeddings.errors import InputError
from shardgym.embeddings.tables import TableSpec

EXCHANGE = [PHASES.index("forward_comm"), PHASES.index("backward_comm")]
ROUNDS = 3
"""How often every method's shards are run, method after method, so that drift meets them all alike."""


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Run torch on `count` threads inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def measure(
    design: GroupDesign,
    out: Path,
    seconds: float,
    groups: int | None,
    meter: Meter,
    on_progress: Callable[[float], None] = lambda seconds_gone: None,
) -> int:
    """Measure groups into a folder until the time is up; returns how many the folder holds."""
    folder = SampleFolder(out)
    with bar("measure groups", total=groups or seconds, unit="" if groups else "s") as shown:

        def progress(gone: float, count: int) -> None:
            shown.at(count if groups else gone, f"{count} samples")
            on_progress(gone)

        for _ in measure_design(design, folder, meter, seconds, groups, progress):
            pass
    return len(folder.read())


def report_repeatability(source: Path, meter: Meter, groups: int = 50) -> None:
    """Measure the folder's first groups once more, and print how far the two measurements are apart."""
    samples = SampleFolder(source).read()[:groups]
    with bar("measure again", total=len(samples)) as shown:
        again = measure_again(samples, meter, shown.at)
    console.print(f"median disagreement of {len(samples)} groups, measured twice:")
    for kind, (forward, backward) in vars(disagreement(samples, again)).items():
        console.print(f"  {kind.replace('_', ' '):14} forward {forward:.1%}, backward {backward:.1%}")


def fit(source: Path, options: FitOptions) -> LearnedCost:
    """Fit the network and print its held-out error beside the additive baseline's."""
    samples = SampleFolder(source).read()
    one_hardware(samples, source)
    split = split_samples(without_drift(samples), options.held_out, options.seed)
    with bar("fit the cost network", total=options.epochs) as shown:
        model = fit_network(split.train, options, lambda epoch: shown.at(epoch))
    additive = AdditiveCost.fit(split.train)
    console.print(f"fitted on {len(split.train)} groups, held out {len(split.test)}")
    show_errors({"network": phase_errors(model, split.test), "additive": phase_errors(additive, split.test)})
    return model


def train(tasks: Sequence[Task], model: SummedCostModel, options: TrainingOptions) -> Agent:
    """Train the placement agent on tasks whose costs the model predicts."""
    with bar("train the agent", total=options.updates) as shown:
        return train_agent(
            tasks,
            model,
            options,
            lambda status: shown.at(status.update, f"step {status.step_ratio:.3f} of an even share"),
        )


def make_plan(task: Task, model: SummedCostModel, model_name: str, planners: Sequence[Planner], budget: float) -> Plan:
    """Let every planner place the task, and predict what each placement costs.

    Raises:
        InputError: when the task cannot fit, or no planner finds a placement.
    """
    task.require_room()
    candidates, failures = [], {}
    for planner in planners:
        start = time.perf_counter()
        try:
            placement = planner.plan(task, budget)
        except NoPlacementFoundError as error:
            failures[planner.name] = str(error)
            continue
        seconds = time.perf_counter() - start
        candidates.append(Candidate(planner.name, placement, model.cost(task, placement), seconds))
    if not candidates:
        raise InputError(
            f"task {task.name!r}: no method found a placement that fits ({next(iter(failures.values()))}); "
            "give more device memory"
        )
    return Plan(task, tuple(candidates), model_name, failures)


def quick_planners(model: SummedCostModel, agent: Agent | None, seed: int) -> list[Planner]:
    """The methods whose placement does not depend on time: random, greedy, largest-first, and the agent if any."""
    planners: list[Planner] = [RandomPlanner(seed), *heuristic_planners(), LargestFirstPlanner(model)]
    return [*planners, agent] if agent is not None else planners


def evaluate(plan: Plan, meter: Meter, rounds: int = ROUNDS) -> Plan:
    """Run every candidate's shards on this machine, round after round, and keep each phase's median.

    The exchange between devices is measured too where the plan's costs predict one.
    """
    task, placements = plan.task, [candidate.placement for candidate in plan.candidates]
    runs: list[list[np.ndarray]] = [[] for _ in placements]
    with bar(f"run the plans of {task.name}", total=rounds * len(placements) * task.devices) as shown:
        measured_cost = MeasuredCost(meter, lambda device: shown.step())
        for _ in range(rounds):
            for placement, run in zip(placements, runs):
                run.append(measured_cost.cost(task, placement).phases)
    phases = [np.median(run, axis=0) for run in runs]
    if any(candidate.predicted.phase("forward_comm").any() for candidate in plan.candidates):
        exchanged: list[np.ndarray] = []
        with bar(f"exchange between {task.devices} processes", total=rounds * len(placements)) as shown:
            for measured in exchange_costs(task, placements * rounds):
                exchanged.append(measured)
                shown.step()
        for k, measured in enumerate(phases):
            measured[:, EXCHANGE] = np.median(exchanged[k :: len(placements)], axis=0)
    return plan.with_measured({c.method: StepCost(p) for c, p in zip(plan.candidates, phases)})


def draw_tasks(
    pool: Sequence[TableSpec], count: int, most_tables: int, device_memory: tuple[int, ...], batch_size: int, seed: int
) -> list[Task]:
    """Tasks of 2 to `most_tables` tables drawn from a pool without replacement, each fitting its devices in total."""
    rng = np.random.default_rng(seed)
    room = int(0.8 * sum(device_memory))
    tasks = []
    for k in range(count):
        size = int(rng.integers(2, min(most_tables, len(pool)) + 1))
        tables = fitting(pool, rng.permutation(len(pool)).tolist(), size, room)
        tasks.append(Task(tables, device_memory, batch_size, f"train-{k}"))
    return tasks
