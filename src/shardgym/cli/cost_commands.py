"""The commands over files: tables, measure, fit, train, plan, evaluate."""

from pathlib import Path
from typing import Annotated

import typer

from shardgym.cli.options import (
    TABLES_HELP,
    AgentFile,
    AnyHardware,
    Batch,
    CostModelName,
    Device,
    Devices,
    Dim,
    Memory,
    Seed,
    TablesSource,
    Threads,
)
from shardgym.problem.units import device_memory, parse_bytes, parse_seconds

app = typer.Typer()


@app.command()
def tables(
    source: Annotated[str, typer.Argument(help=TABLES_HELP)],
    out: Annotated[Path | None, typer.Option(help="Write them here (.json, .csv or .parquet).")] = None,
    dim: Dim = None,
    seed: Seed = 0,
) -> None:
    """Show, generate or convert a table set.

    JSON: {"tables": [{"name", "rows", "dim", "pooling", "dtype", "reuse_bins", "tensor_train", "dedup", "group"}]}.
    CSV and Parquet: columns name, rows, dim, and optionally pooling, dtype, bin_0 ... bin_16, samples_per_session,
    stay_probability, group.
    """
    from shardgym.cli.console import console, show_tables
    from shardgym.dataio.tables.sources import tables_from_source
    from shardgym.dataio.tables.table_files import write_tables

    found = tables_from_source(source, seed, dim)
    if out is not None:
        write_tables(out, found)
        console.print(f"wrote {out}", soft_wrap=True)
    show_tables(found)


@app.command()
def measure(
    tables: Annotated[list[str], typer.Option("--tables", help=TABLES_HELP + " Repeat it for several pools.")],
    out: Annotated[Path, typer.Option(help="Folder of samples; an existing one is continued.")],
    budget: Annotated[str, typer.Option(help="Time to spend: 90s, 10m, 1h.")] = "90s",
    groups: Annotated[int | None, typer.Option(help="Stop when the folder holds so many groups.")] = None,
    batch_size: Batch = 4096,
    max_tables: Annotated[int, typer.Option(help="Most tables in a group.", min=1)] = 26,
    memory: Annotated[str, typer.Option(help="Most memory of a group.")] = "4GB",
    dim: Dim = None,
    threads: Threads = 1,
    device: Device = "cpu",
    report: Annotated[
        bool, typer.Option("--report", help="Then measure the first 50 groups again and print how far apart they are.")
    ] = False,
    seed: Seed = 0,
) -> None:
    """Measure the fused forward and backward of random groups of tables on this machine.

    Every finished sample is a file of its own: interrupt it, run it again, and it goes on where it stopped.
    """
    from shardgym import workflow
    from shardgym.cli.console import console, progress_bars, show_disagreement
    from shardgym.costmodel.measuring.designs import GroupDesign
    from shardgym.costmodel.measuring.meter import Meter
    from shardgym.dataio.tables.sources import tables_from_source

    pools = tuple(tables_from_source(source, seed, dim) for source in tables)
    design = GroupDesign(pools, batch_size, max_tables, parse_bytes(memory), seed)
    seconds = parse_seconds(budget)
    with workflow.threads(threads), progress_bars() as progress:
        meter = Meter(device, seed=seed)
        count = workflow.measure(design, out, seconds, groups, meter, progress)
        apart = workflow.repeatability(out, meter, progress=progress) if report else None
    console.print(f"{out} holds {count} samples")
    if apart is not None:
        show_disagreement(apart)


@app.command()
def fit(
    samples: Annotated[Path, typer.Argument(help="Folder of samples written by `shardgym measure`.")],
    out: Annotated[Path, typer.Option(help="The model file to write.")] = Path("cost_model.pt"),
    epochs: Annotated[int, typer.Option(help="Passes over the samples.", min=1)] = 120,
    held_out: Annotated[float, typer.Option(help="Share of samples to judge by.", min=0.01, max=0.9)] = 0.2,
    seed: Seed = 0,
) -> None:
    """Fit the cost network to measured samples and print its error on samples held out."""
    from shardgym import workflow
    from shardgym.cli.console import console, progress_bars, show_fit
    from shardgym.costmodel.fit import FitOptions

    with progress_bars() as progress:
        fitted = workflow.fit(samples, FitOptions(epochs=epochs, held_out=held_out, seed=seed), progress)
    show_fit(fitted)
    fitted.model.save(out)
    console.print(f"wrote {out}", soft_wrap=True)


@app.command()
def train(
    tables: TablesSource,
    cost_model: CostModelName = "shipped",
    out: Annotated[Path, typer.Option(help="The agent file to write.")] = Path("agent.pt"),
    devices: Devices = 4,
    memory: Memory = "4GB",
    batch_size: Batch = 4096,
    tables_per_task: Annotated[int, typer.Option(help="Most tables of a training task.", min=2)] = 50,
    tasks: Annotated[int, typer.Option(help="Training tasks drawn from the tables.", min=1)] = 50,
    updates: Annotated[int, typer.Option(help="Updates of the policy.", min=1)] = 200,
    dim: Dim = None,
    any_hardware: AnyHardware = False,
    seed: Seed = 0,
) -> None:
    """Train a placement agent on tasks drawn from a table set, costs predicted by the model."""
    from shardgym import workflow
    from shardgym.agents.learning.training import TrainingOptions
    from shardgym.cli.console import console, progress_bars
    from shardgym.costmodel.named import cost_model as named_cost_model
    from shardgym.dataio.tables.sources import tables_from_source

    model = named_cost_model(cost_model, any_hardware)
    pool = tables_from_source(tables, seed, dim)
    drawn = workflow.draw_tasks(pool, tasks, tables_per_task, device_memory(devices, memory), batch_size, seed)
    with progress_bars() as progress:
        trained = workflow.train(drawn, model, TrainingOptions(updates=updates, seed=seed), progress)
    trained.save(out)
    console.print(f"wrote {out}", soft_wrap=True)


@app.command()
def plan(
    tables: TablesSource,
    cost_model: CostModelName = "shipped",
    agent: AgentFile = None,
    out: Annotated[Path, typer.Option(help="The plan to write.")] = Path("plan.json"),
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report here too.")] = None,
    devices: Devices = 4,
    memory: Memory = "4GB",
    batch_size: Batch = 4096,
    search: Annotated[
        str | None,
        typer.Option(help="Search on from the best for so long, as 1s; what it finds depends on the machine's speed."),
    ] = None,
    dim: Dim = None,
    any_hardware: AnyHardware = False,
    seed: Seed = 0,
) -> None:
    """Place tables on devices: every method's plan by predicted cost, the best one chosen."""
    from shardgym import workflow
    from shardgym.cli.console import console, show_plan
    from shardgym.cli.plan_report import write_report
    from shardgym.problem.plan_files import write_plan

    made = workflow.plan(
        tables,
        devices,
        memory,
        batch_size,
        cost_model,
        agent,
        budget_seconds=parse_seconds(search) if search else 0.0,
        seed=seed,
        default_dim=dim,
        any_hardware=any_hardware,
    )
    write_plan(out, made)
    if report is not None:
        write_report(report, [made])
    show_plan(made)
    console.print(f"wrote {out}" + (f" and {report}" if report else ""), soft_wrap=True)


@app.command()
def evaluate(
    plan: Annotated[Path, typer.Argument(help="A plan written by `shardgym plan`.")],
    out: Annotated[Path | None, typer.Option(help="The evaluated plan to write; default: over the plan.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report here too.")] = None,
    threads: Threads = 1,
    device: Device = "cpu",
    seed: Seed = 0,
) -> None:
    """Run every method's shards on this machine, device after device, and compare predicted with measured."""
    from shardgym import workflow
    from shardgym.cli.console import console, progress_bars, show_plan
    from shardgym.cli.plan_report import write_report
    from shardgym.costmodel.measuring.meter import Meter
    from shardgym.problem.plan_files import read_plan, write_plan

    made = read_plan(plan)
    with workflow.threads(threads), progress_bars() as progress:
        measured = workflow.evaluate(made, Meter(device, seed=seed), progress=progress)
    write_plan(out or plan, measured)
    if report is not None:
        write_report(report, [measured])
    show_plan(measured)
    console.print(f"wrote {out or plan}" + (f" and {report}" if report else ""), soft_wrap=True)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of everything it makes.")] = Path("runs/demo"),
    budget: Annotated[str, typer.Option(help="Time to measure: 90s, 10m.")] = "90s",
    seed: Seed = 0,
) -> None:
    """Measure this machine, fit, train, plan Criteo Kaggle and a DLRM-like model, and check the plans for real.

    What an earlier run finished is used again; delete the folder to begin anew.
    """
    from shardgym.cli.demo import Demo, Scale

    Demo(out, Scale(measure_seconds=parse_seconds(budget)), seed).run()
