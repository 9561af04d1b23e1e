from .decisions import Decisions as Decisions
from .families import (
    FAMILIES as FAMILIES,
)
from .families import (
    Family as Family,
)
from .families import (
    family as family,
)
from .format_placement import FormatPlacement as FormatPlacement
from .format_placement import FormatPlacementVector as FormatPlacementVector
from .observation import (
    FIELDS as FIELDS,
)
from .observation import (
    OPTION_FIELDS as OPTION_FIELDS,
)
from .observation import (
    PADDING as PADDING,
)
from .observation import (
    Layout as Layout,
)
from .prices import DEFAULT_PRICES as DEFAULT_PRICES
from .rewards import REWARD_PER_MS as REWARD_PER_MS
from .rewards import IllegalActionError as IllegalActionError
from .table_placement import TablePlacement as TablePlacement
from .table_placement import TablePlacementVector as TablePlacementVector
from .table_sharding import TableSharding as TableSharding
from .table_sharding import TableShardingVector as TableShardingVector
from .tasks import TaskSource as TaskSource
