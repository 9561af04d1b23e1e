from .costmodel.named import cost_model as cost_model
from .dataio.tables.sources import tables_from_source as tables_from_source
from .dataio.tables.table_files import read_tables as read_tables, write_tables as write_tables
from .problem.costs import PHASES as PHASES, CostModel as CostModel, StepCost as StepCost
from .problem.errors import InputError as InputError
from .problem.placements import UNPLACED as UNPLACED, Placement as Placement
from .problem.plan_files import Candidate as Candidate, Plan as Plan, read_plan as read_plan, write_plan as write_plan
from .problem.tables import Dedup as Dedup, TableSpec as TableSpec, TensorTrainFormat as TensorTrainFormat
from .problem.task_files import read_tasks as read_tasks, write_tasks as write_tasks
from .problem.tasks import Task as Task
from .problem.topology import Topology as Topology
from .version import __version__ as __version__
from .workflow import plan as plan
