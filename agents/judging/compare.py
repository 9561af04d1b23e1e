"""Planners on one table: every planner on every task of a suite, at equal time.

Running out of memory or time is a failure and counts in the share of feasible plans, over ALL tasks; it is never
dropped. Ratios are to a proven bound where the cost model has one that says something, else to the best plan known.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student_t

from shardgym.agents.judging.bounds import lower_bound
from shardgym.agents.planners.planner import Measure, Planner
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.envs.families import FAMILIES, family
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.placements import Placement
from shardgym.problem.tasks import Task

SUITES = {
    "quick": ("dlrm-20x4", "dlrm-50x4", "tight-20x4"),
    "dlrm": tuple(name for name in FAMILIES if name.startswith("dlrm")),
    "tight": tuple(name for name in FAMILIES if name.startswith("tight")),
    "mixed": tuple(name for name in FAMILIES if name.startswith("mixed")),
    "criteo": tuple(name for name in FAMILIES if name.startswith("criteo")),
    "large": ("large-1000x128",),
    "all": tuple(name for name in FAMILIES if not name.startswith("overfull")),
}
"""Named sets of families. `overfull-*` needs formats chosen, which planners of placements do not do."""

USEFUL_BOUND = 0.8
"""A bound below this share of the best plan known says too little to compare with."""


@public("shardgym.agents")
@dataclass(frozen=True)
class Trial:
    """One planner on one task.

    Args:
        family, task, planner, budget: which.
        step_ms: predicted step of the placement, or None where there is none.
        measured_ms: measured step, or None where not measured.
        seconds: planning time.
        bound_ms: proven lower bound of the task.
        failure: why there is no placement, or "".
        placement: the placement, or None.
        extrapolated: whether some of the task's costs rest on extrapolation.
    """

    family: str
    task: str
    planner: str
    budget: float
    step_ms: float | None
    measured_ms: float | None
    seconds: float
    bound_ms: float
    failure: str
    placement: Placement | None
    extrapolated: bool = False


@public("shardgym.agents")
@dataclass(frozen=True)
class Summary:
    """One planner at one budget on one family.

    Args:
        mean, p95, worst: ratios of the step to the reference, over the tasks with a plan; NaN where there is none.
        to: "bound" or "best known", the reference.
        feasible: share of ALL tasks with a plan.
        seconds: mean planning time.
        against_first: mean ratio to the first planner over tasks that both planned, with its 95% interval
            (paired, Student's t on logarithms).
        measured: mean measured step, or None.
        extrapolated: whether costs of the family rest on extrapolation in part.
    """

    family: str
    planner: str
    budget: float
    mean: float
    p95: float
    worst: float
    to: str
    feasible: float
    seconds: float
    against_first: tuple[float, float, float]
    measured: float | None
    extrapolated: bool = False


def suite_tasks(suite: str, tasks_per_family: int | None = None) -> dict[str, list[Task]]:
    """Held-out tasks of a suite's families.

    Args:
        suite: of `SUITES`, or families with commas between them.
        tasks_per_family: the first so many of each; all by default.

    Raises:
        InputError: no such suite or family.
    """
    names = SUITES.get(suite)
    if names is None:
        names = tuple(name.strip() for name in suite.split(","))
        if any("-" not in name for name in names):
            raise InputError(
                f"suite: no suite {suite!r}; give one of {', '.join(SUITES)}, or families such as dlrm-50x4"
            )
    chosen = {}
    for name in names:
        kind = family(name)
        count = kind.count("test") if tasks_per_family is None else min(tasks_per_family, kind.count("test"))
        chosen[name] = [kind.task(number, "test") for number in range(count)]
    return chosen


def compare(
    tasks: Mapping[str, Sequence[Task]],
    planners: Sequence[Planner],
    budgets: Sequence[float],
    cost_model: SummedCostModel,
    measure: Measure | None = None,
    progress: Callable[[Trial], None] = lambda trial: None,
) -> list[Trial]:
    """Run every planner on every task at every budget. An interrupt keeps the trials that are done.

    Args:
        tasks: by family.
        planners: names all different.
        budgets: seconds per plan.
        cost_model: predicts the steps and bounds the tasks.
        measure: measures each placement too, when given.
        progress: called after each trial.

    Raises:
        InputError: two planners of one name, or no planner, task or budget.
    """
    names = [planner.name for planner in planners]
    if len(set(names)) != len(names):
        raise InputError(f"compare: planners have the names {names}; give each another name")
    if not names or not budgets or not any(tasks.values()):
        raise InputError("compare: give at least one planner, one task and one budget")
    trials: list[Trial] = []
    try:
        for name, members in tasks.items():
            for task in members:
                bound = lower_bound(task, cost_model).ms
                for budget in budgets:
                    for planner in planners:
                        trials.append(_try(name, task, planner, budget, bound, cost_model, measure))
                        progress(trials[-1])
    except KeyboardInterrupt:
        if not trials:
            raise
    return trials


def summarise(trials: Sequence[Trial]) -> list[Summary]:
    """Per family, planner and budget, in the order in which they first stand."""
    best: dict[tuple[str, str], float] = {}
    for trial in trials:
        if trial.step_ms is not None:
            key = (trial.family, trial.task)
            best[key] = min(best.get(key, np.inf), trial.step_ms)
    bounded = {
        name: all(t.bound_ms >= USEFUL_BOUND * best.get((name, t.task), np.inf) for t in trials if t.family == name)
        for name in dict.fromkeys(trial.family for trial in trials)
    }
    first = trials[0].planner if trials else ""
    groups: dict[tuple[str, str, float], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.family, trial.planner, trial.budget), []).append(trial)
    summaries = []
    for (name, planner, budget), group in groups.items():
        done = [(t, t.step_ms) for t in group if t.step_ms is not None]
        ratios = [step / (t.bound_ms if bounded[name] else best[(name, t.task)]) for t, step in done]
        measured = [t.measured_ms for t, _ in done if t.measured_ms is not None]
        summaries.append(
            Summary(
                name,
                planner,
                budget,
                *(_statistics(ratios)),
                "bound" if bounded[name] else "best known",
                len(done) / len(group),
                float(np.mean([t.seconds for t in group])),
                paired_ratio(group, groups.get((name, first, budget), [])),
                float(np.mean(measured)) if measured else None,
                any(t.extrapolated for t in group),
            )
        )
    return summaries


def paired_ratio(trials: Sequence[Trial], others: Sequence[Trial]) -> tuple[float, float, float]:
    """Geometric mean of the ratio of steps on the tasks that both planned, and its 95% interval; NaN for none."""
    steps = {t.task: t.step_ms for t in others if t.step_ms is not None}
    logs = np.array([np.log(t.step_ms / steps[t.task]) for t in trials if t.step_ms is not None and t.task in steps])
    if not len(logs):
        return (float("nan"),) * 3
    half = 0.0
    if len(logs) > 1:
        half = float(student_t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs)))
    mean = float(logs.mean())
    return float(np.exp(mean)), float(np.exp(mean - half)), float(np.exp(mean + half))


def _try(
    name: str, task: Task, planner: Planner, budget: float, bound: float, cost_model: SummedCostModel,
    measure: Measure | None,
) -> Trial:  # fmt: skip
    began = time.perf_counter()
    try:
        placement: Placement | None = planner.plan(task, budget)
        failure = ""
    except InputError as error:
        placement, failure = None, str(error)
    seconds = time.perf_counter() - began
    step = measured = None
    if placement is not None:
        placement.validate(task)
        step = float(cost_model.cost(task, placement).step)
        measured = float(measure.cost(task, placement).step) if measure else None
    extrapolated = bool(cost_model.extrapolations(task))
    return Trial(
        name, task.name, planner.name, budget, step, measured, seconds, bound, failure, placement, extrapolated
    )


def _statistics(ratios: Sequence[float]) -> tuple[float, float, float]:
    if not ratios:
        return (float("nan"),) * 3
    return float(np.mean(ratios)), float(np.quantile(ratios, 0.95)), float(np.max(ratios))
