"""Place recommender embedding tables on devices, by costs measured on real kernels.

A table is a `TableSpec`; tables, device memory and a batch size make a `Task`; a device for each table is a
`Placement` (`UNPLACED` in arrays that are not done); what a placement costs is a `StepCost`, by phase and device.
In the order of use:

Tables
    `read_tables(path)`, `write_tables(path, tables)`: table sets in JSON, CSV or Parquet.
    `tables_from_source("dlrm:50")`: the same by name, as the commands take them.
    `TableSpec(name, rows, dim, pooling, ...)`, `TensorTrainFormat`, `Dedup`: one table, by hand.
    `Topology(devices_per_host, ...)`: hosts, bandwidths and speeds of a task's devices, where it matters.

Costs
    `cost_model("shipped")`: the network fitted on the shipped measurements; "roofline:h100", or a file.
    `model.cost(task, placement).step`: milliseconds of one training step, a `StepCost`; `PHASES` names its
    parts. `CostModel` is the protocol of your own.

Plans
    `plan(tables, devices=8, memory="40GB", budget_seconds=1)`: every method's placement, the best one chosen: a `Plan`.
    `plan(...).chosen()`: a `Candidate` with its `placement`, `predicted` cost and, once evaluated, `measured` cost.
    `read_plan(path)`, `write_plan(path, plan)`, `read_tasks(path)`, `write_tasks(path, tasks)`.
    `InputError`: what any bad input raises; its message names the field or file and the way out.

Environments
    `gymnasium.make("shardgym:shardgym/TablePlacement-v1")`; `shardgym.envs` has the rest.

Further faces: `shardgym.envs` (environments and task families), `shardgym.agents` (planners, learning, bounds),
`shardgym.costmodel` (measuring, fitting), `shardgym.embeddings` (tables, tensor trains, deduplicated batches, models),
`shardgym.dataio` (table sets, session logs). A name is loaded when it is first asked for: importing this package loads
neither torch nor anything that needs it.
"""

import lazy_loader

from shardgym.registration import register_all

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

register_all()
