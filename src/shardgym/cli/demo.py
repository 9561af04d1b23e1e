"""The whole road on two models' tables, everything under one folder: what `shardgym demo` runs."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shardgym import workflow
from shardgym.agents.learning.agent import Agent
from shardgym.agents.learning.training import TrainingOptions
from shardgym.cli.console import console, progress_bars, show_fit, show_plan, show_tables
from shardgym.cli.plan_report import write_report
from shardgym.cli.resume import Stages
from shardgym.costmodel.fit import FitOptions
from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.measuring.designs import GroupDesign
from shardgym.costmodel.measuring.hardware import this_hardware
from shardgym.costmodel.measuring.meter import Meter
from shardgym.dataio.tables.public_tables import criteo_kaggle
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.problem.plan_files import Plan, read_plan, write_plan
from shardgym.problem.tables import TableSpec
from shardgym.problem.tasks import Task

BATCH_SIZE = 4096
DEVICES = 4
THREADS = 1
"""A device is one core of this machine."""
MEMORY_SLACK = 1.25
"""Memory of all devices together, over the bytes of the tables: tight enough that a careless plan fails."""


@dataclass(frozen=True)
class Scale:
    """How much of everything the demo does.

    Args:
        measure_seconds: time to measure.
        groups: stop measuring at so many groups, None for no such limit.
        pool: generated tables that are measured and trained on.
        unseen: generated tables that are planned.
        dims: of generated tables.
        epochs: of the fit.
        updates: of the agent's policy.
    """

    measure_seconds: float = 90.0
    groups: int | None = None
    pool: int = 200
    unseen: int = 50
    dims: tuple[int, ...] = (4, 8, 16, 32)
    epochs: int = 150
    updates: int = 200


class Demo:
    """The demo's stages, each skipped when an earlier run finished it with the same inputs.

    Args:
        out: folder of everything it makes.
        scale: how much of everything.
        seed: of the tables, the groups, the fit and the training.
    """

    def __init__(self, out: Path, scale: Scale, seed: int) -> None:
        self.scale, self.seed = scale, seed
        self.stages = Stages(out)
        self.samples, self.model_file, self.agent_file = out / "samples", out / "cost_model.pt", out / "agent.pt"
        self.plan_files = {"criteo-kaggle": out / "plan.json", "dlrm-like": out / "plan-dlrm.json"}
        self.report_file = out / "report.html"

    @cached_property
    def pool(self) -> tuple[TableSpec, ...]:
        """Generated tables to measure and train on."""
        return dlrm_like(self.scale.pool, self.seed, self.scale.dims)

    @cached_property
    def tasks(self) -> tuple[Task, ...]:
        """What is planned: Criteo Kaggle, and generated tables that were neither measured nor trained on."""
        unseen = dlrm_like(self.scale.unseen, self.seed + 1, self.scale.dims)
        return even_task("criteo-kaggle", criteo_kaggle()), even_task("dlrm-like", unseen)

    def run(self) -> list[Plan]:
        """Run what is not done yet; returns the evaluated plans."""
        with workflow.threads(THREADS):
            console.rule("1. tables")
            show_tables(criteo_kaggle(), most=7)
            show_tables(self.pool, most=5)
            console.rule(f"2. measure on {this_hardware()}")
            inputs = self.measure()
            console.rule("3. fit the cost network")
            inputs = self.fit(inputs)
            console.rule("4. train the agent")
            inputs = self.train(inputs)
            console.rule("5. plan, and 6. check the plans for real")
            self.plan(inputs)
        console.rule("7. report")
        plans = [read_plan(file) for file in self.plan_files.values()]
        write_report(self.report_file, plans)
        for plan in plans:
            show_plan(plan)
        console.print("wrote", *self.plan_files.values(), self.report_file, soft_wrap=True)
        return plans

    def measure(self) -> Any:
        """Measure groups of both models' tables; an interrupted run's samples and time count."""
        inputs = (this_hardware(), self.seed, self.scale)
        room = max(max(task.device_memory) for task in self.tasks)
        design = GroupDesign((criteo_kaggle(), self.pool), BATCH_SIZE, max_tables=26, max_bytes=room, seed=self.seed)

        def work() -> None:
            spent = self.stages.recall("measured_seconds") or 0.0
            left = max(1.0, self.scale.measure_seconds - spent)
            meter = Meter(seed=self.seed)
            remember = self.stages.remember
            with progress_bars() as progress:
                workflow.measure(
                    design,
                    self.samples,
                    left,
                    self.scale.groups,
                    meter,
                    progress,
                    lambda seconds: remember("measured_seconds", spent + seconds),
                )

        self._stage("measure", inputs, self.samples, work)
        return inputs

    def fit(self, inputs: Any) -> Any:
        """Fit the cost network to the samples."""
        options = FitOptions(epochs=self.scale.epochs, seed=self.seed)

        def work() -> None:
            with progress_bars() as progress:
                fitted = workflow.fit(self.samples, options, progress)
            show_fit(fitted)
            fitted.model.save(self.model_file)

        self._stage("fit", (inputs, options), self.model_file, work)
        return inputs, options

    def train(self, inputs: Any) -> Any:
        """Train the agent on tasks drawn from the pool."""
        options = TrainingOptions(updates=self.scale.updates, seed=self.seed)

        def work() -> None:
            memory = self.tasks[1].device_memory
            drawn = workflow.draw_tasks(self.pool, 50, self.scale.unseen, memory, BATCH_SIZE, self.seed)
            with progress_bars() as progress:
                agent = workflow.train(drawn, LearnedCost.load(self.model_file), options, progress)
            agent.save(self.agent_file)

        self._stage("train", (inputs, options), self.agent_file, work)
        return inputs, options

    def plan(self, inputs: Any) -> None:
        """Let every method place both tasks, and run all their plans."""
        model = LearnedCost.load(self.model_file, here=this_hardware())
        planners = workflow.quick_planners(model, Agent.load(self.agent_file, model), self.seed)
        meter = Meter(seed=self.seed + 1)
        for task in self.tasks:
            file = self.plan_files[task.name]

            def work(task: Task = task, file: Path = file) -> None:
                made = workflow.make_plan(task, model, f"{self.model_file.name}, {model.measured_on}", planners, 1.0)
                with progress_bars() as progress:
                    measured = workflow.evaluate(made, meter, progress=progress)
                write_plan(file, measured)

            self._stage(f"plan {task.name}", (inputs, task), file, work)

    def _stage(self, name: str, inputs: Any, output: Path, work: Any) -> None:
        if not self.stages.run(name, inputs, [output], work):
            console.print(f"{output} is used again")


def even_task(name: str, tables: tuple[TableSpec, ...]) -> Task:
    """Tables on equal devices that have `MEMORY_SLACK` times the memory the tables take."""
    needed = sum(table.bytes() for table in tables)
    return Task(tables, (int(MEMORY_SLACK * needed / DEVICES),) * DEVICES, BATCH_SIZE, name)
