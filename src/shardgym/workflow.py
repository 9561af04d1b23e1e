"""What the commands do, as functions: measure, fit, train, plan, evaluate. Long ones tell their progress."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from shardgym.agents.learning.agent import Agent
from shardgym.agents.learning.pretrained import pretrained_agent
from shardgym.agents.learning.training import TrainingOptions, train_agent
from shardgym.agents.planners.heuristics import LargestFirstPlanner, RandomPlanner, heuristic_planners
from shardgym.agents.planners.planner import NoPlacementFoundError, Planner
from shardgym.agents.planners.portfolio import PortfolioPlanner
from shardgym.costmodel.fit import FitOptions, PhaseError, fit_additive, fit_network, phase_errors, split_samples
from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.measuring.designs import GroupDesign, fitting
from shardgym.costmodel.measuring.drift import without_drift
from shardgym.costmodel.measuring.measured_cost import MeasuredCost, exchange_costs
from shardgym.costmodel.measuring.meter import Meter, measure_design
from shardgym.costmodel.measuring.repeatability import Disagreement, disagreement, measure_again
from shardgym.costmodel.measuring.samples import SampleFolder, one_hardware
from shardgym.costmodel.named import cost_model as named_cost_model
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.dataio.tables.sources import tables_from_source
from shardgym.problem.costs import EXCHANGE, StepCost
from shardgym.problem.errors import InputError
from shardgym.problem.plan_files import Candidate, Plan
from shardgym.problem.progress import Progress, no_progress
from shardgym.problem.tables import TableSpec
from shardgym.problem.tasks import Task
from shardgym.problem.units import device_memory

ROUNDS = 3
"""How often every method's shards are run, method after method, so that drift meets them all alike."""


@dataclass(frozen=True)
class Fit:
    """A fitted cost network, and how well it predicts samples held out.

    Args:
        model: fitted on `train` groups.
        train, test: groups fitted on, and held out.
        errors: by model ("network", "additive") and phase, on the groups held out.
    """

    model: LearnedCost
    train: int
    test: int
    errors: dict[str, dict[str, PhaseError]]


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
    progress: Progress = no_progress,
    on_time: Callable[[float], None] = lambda seconds_gone: None,
) -> int:
    """Measure groups into a folder until the time is up; returns how many the folder holds.

    Args:
        design: draws the groups.
        out: folder of samples; an existing one is continued.
        seconds: to spend.
        groups: stop when the folder holds so many.
        meter: times a group.
        progress: counts groups where their number is given, else seconds.
        on_time: called with the seconds spent, after each group.

    Raises:
        InputError: the folder holds samples of another design or machine.
    """
    folder = SampleFolder(out)

    def note(gone: float, count: int) -> None:
        done, total = (count, groups) if groups else (gone, seconds)
        progress("measure groups", done, total, f"{count} samples")
        on_time(gone)

    for _ in measure_design(design, folder, meter, seconds, groups, note):
        pass
    return len(folder.read())


def repeatability(source: Path, meter: Meter, groups: int = 50, progress: Progress = no_progress) -> Disagreement:
    """Measure the folder's first groups once more: how far the two measurements are apart."""
    samples = SampleFolder(source).read()[:groups]
    again = measure_again(samples, meter, lambda done: progress("measure again", done, len(samples)))
    return disagreement(samples, again)


def fit(source: Path, options: FitOptions, progress: Progress = no_progress) -> Fit:
    """Fit the network to a folder of samples, and judge it beside the additive baseline on samples held out.

    Raises:
        InputError: too few samples, or of several machines.
    """
    samples = SampleFolder(source).read()
    one_hardware(samples, source)
    split = split_samples(without_drift(samples), options.held_out, options.seed)
    epochs = options.epochs * options.members
    model = fit_network(split.train, options, lambda epoch: progress("fit the cost network", epoch, epochs))
    models: dict[str, SummedCostModel] = {"network": model, "additive": fit_additive(split.train)}
    errors = {name: phase_errors(model, split.test) for name, model in models.items()}
    return Fit(model, len(split.train), len(split.test), errors)


def train(
    tasks: Sequence[Task], model: SummedCostModel, options: TrainingOptions, progress: Progress = no_progress
) -> Agent:
    """Train the placement agent on tasks whose costs the model predicts."""
    return train_agent(
        tasks,
        model,
        options,
        lambda status: progress(
            "train the agent", status.update, options.updates, f"step {status.step_ratio:.3f} of an even share"
        ),
    )


def plan(
    tables: Sequence[TableSpec] | str,
    devices: int = 4,
    memory: str | int | Sequence[int] = "4GB",
    batch_size: int = 4096,
    cost_model: SummedCostModel | str | Path | None = None,
    agent: Path | str | None = None,
    budget_seconds: float = 0.0,
    seed: int = 0,
    default_dim: int | None = None,
    any_hardware: bool = False,
) -> Plan:
    """Place tables on devices: every method's placement by predicted cost, as `shardgym plan` does.

    Args:
        tables: table specs, or a source as the command takes it: a file, "criteo-kaggle", "dlrm:50".
        devices: their number.
        memory: of a device, as "40GB" or in bytes; or bytes of each device.
        batch_size: bags per step over all devices.
        cost_model: as `shardgym.cost_model` takes it.
        agent: an agent file; the shipped agent where left out.
        budget_seconds: search on from the best placement for so long.
        seed: of whatever is drawn.
        default_dim: dim of tables whose source has none.
        any_hardware: accept a cost model file that was fitted on other hardware.

    Returns:
        The plan record; `plan.chosen()` is the candidate of the least predicted step.

    Raises:
        InputError: bad tables or sizes, a task that cannot fit, or no placement found.
    """
    model = named_cost_model(cost_model, any_hardware)
    source = tables if isinstance(tables, str) else "tables"
    specs = tables_from_source(tables, seed, default_dim) if isinstance(tables, str) else tuple(tables)
    name = source if ":" in source else Path(source).stem
    task = Task(specs, device_memory(devices, memory), batch_size, name)
    trained = Agent.load(Path(agent), model) if agent else pretrained_agent(model)
    planners = quick_planners(model, trained, seed)
    if budget_seconds > 0:
        planners.append(PortfolioPlanner(model, (trained,), seed))
    costs = cost_model if isinstance(cost_model, str | Path) else "shipped" if cost_model is None else "given"
    return make_plan(
        task, model, f"{costs}, {getattr(model, 'measured_on', 'no measurement')}", planners, budget_seconds
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
    return Plan(task, tuple(candidates), model_name, failures, tuple(model.caveats(task)))


def quick_planners(model: SummedCostModel, agent: Agent | None, seed: int) -> list[Planner]:
    """The methods whose placement does not depend on time: random, greedy, largest-first, and the agent if any."""
    planners: list[Planner] = [RandomPlanner(seed), *heuristic_planners(), LargestFirstPlanner(model)]
    return [*planners, agent] if agent is not None else planners


def evaluate(plan: Plan, meter: Meter, rounds: int = ROUNDS, progress: Progress = no_progress) -> Plan:
    """Run every candidate's shards on this machine, round after round, and keep each phase's median.

    The exchange between devices is measured too where the plan's costs predict one.
    """
    task, placements = plan.task, [candidate.placement for candidate in plan.candidates]
    runs: list[list[np.ndarray]] = [[] for _ in placements]
    done, total = 0, rounds * len(placements) * task.devices

    def ran(device: int) -> None:
        nonlocal done
        done += 1
        progress(f"run the plans of {task.name}", done, total)

    measured_cost = MeasuredCost(meter, ran)
    for _ in range(rounds):
        for placement, run in zip(placements, runs):
            run.append(measured_cost.cost(task, placement).phases)
    phases = [np.median(run, axis=0) for run in runs]
    if any(candidate.predicted.phase("forward_comm").any() for candidate in plan.candidates):
        exchanged: list[np.ndarray] = []
        for measured in exchange_costs(task, placements * rounds):
            exchanged.append(measured)
            progress(f"exchange between {task.devices} processes", len(exchanged), rounds * len(placements))
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
