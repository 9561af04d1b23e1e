from .decisions import Decisions as Decisions
from .families import FAMILIES as FAMILIES, Family as Family, family as family
from .format_placement import FormatPlacement as FormatPlacement, FormatPlacementVector as FormatPlacementVector
from .observation import FIELDS as FIELDS, OPTION_FIELDS as OPTION_FIELDS, PADDING as PADDING, Layout as Layout
from .prices import DEFAULT_PRICES as DEFAULT_PRICES
from .rewards import REWARD_PER_MS as REWARD_PER_MS, IllegalActionError as IllegalActionError
from .table_placement import TablePlacement as TablePlacement, TablePlacementVector as TablePlacementVector
from .table_sharding import TableSharding as TableSharding, TableShardingVector as TableShardingVector
from .tasks import TaskSource as TaskSource
