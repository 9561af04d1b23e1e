from .costmodel.named import cost_model as cost_model
from .dataio.tables.sources import tables_from_source as tables_from_source
from .dataio.tables.table_files import read_tables as read_tables
from .dataio.tables.table_files import write_tables as write_tables
from .problem.costs import (
    PHASES as PHASES,
)
from .problem.costs import (
    CostModel as CostModel,
)
from .problem.costs import (
    StepCost as StepCost,
)
from .problem.errors import InputError as InputError
from .problem.placements import UNPLACED as UNPLACED
from .problem.placements import Placement as Placement
from .problem.plan_files import (
    Candidate as Candidate,
)
from .problem.plan_files import (
    Plan as Plan,
)
from .problem.plan_files import (
    read_plan as read_plan,
)
from .problem.plan_files import (
    write_plan as write_plan,
)
from .problem.tables import (
    Dedup as Dedup,
)
from .problem.tables import (
    TableSpec as TableSpec,
)
from .problem.tables import (
    TensorTrainFormat as TensorTrainFormat,
)
from .problem.task_files import read_tasks as read_tasks
from .problem.task_files import write_tasks as write_tasks
from .problem.tasks import Task as Task
from .version import __version__ as __version__
from .workflow import plan as plan
