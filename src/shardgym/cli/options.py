"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

TABLES_HELP = (
    "Tables: a .json, .csv or .parquet file; 'criteo-kaggle'; or 'dlrm:COUNT', generated like a production DLRM's."
)

CostModelName = Annotated[
    str,
    typer.Option(
        "--cost-model", help="'shipped', 'roofline:h100' (analytic; h200, a100, cpu-core), or a file of `shardgym fit`."
    ),
]
AgentFile = Annotated[Path | None, typer.Option(help="An agent file of `shardgym train`; default: the shipped agent.")]
AnyHardware = Annotated[bool, typer.Option("--any-hardware", help="Accept a model file fitted on other hardware.")]
TablesSource = Annotated[str, typer.Option("--tables", help=TABLES_HELP)]
Dim = Annotated[int | None, typer.Option(help="Dim of tables whose source has none.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same result.")]
Devices = Annotated[int, typer.Option(help="Number of devices.")]
Memory = Annotated[str, typer.Option(help="Memory of a device, as 4GB; or one size per device: 4GB,4GB,8GB.")]
Batch = Annotated[int, typer.Option(help="Bags per step over all devices.")]
Threads = Annotated[int, typer.Option(help="CPU threads of one device.", min=1)]
Device = Annotated[str, typer.Option(help="Where to measure: cpu or cuda.")]
