from .index_draw import draw_batch as draw_batch
from .index_draw import draw_indices as draw_indices
from .sessions.batch import SessionBatch as SessionBatch
from .sessions.cluster import ClusterSettings as ClusterSettings
from .sessions.cluster import cluster as cluster
from .sessions.clustered_files import Manifest as Manifest
from .sessions.grouping import (
    Grouping as Grouping,
)
from .sessions.grouping import (
    propose_groups as propose_groups,
)
from .sessions.loader import SessionLoader as SessionLoader
from .sessions.log import SessionLog as SessionLog
from .sessions.log import open_log as open_log
from .sessions.measured_tables import table_specs as table_specs
from .sessions.reader import SessionDataset as SessionDataset
from .sessions.schema import GroupSpec as GroupSpec
from .sessions.schema import SessionSchema as SessionSchema
from .sessions.synthetic import (
    LogSpec as LogSpec,
)
from .sessions.synthetic import (
    SlidingGroup as SlidingGroup,
)
from .sessions.synthetic import (
    StayingGroup as StayingGroup,
)
from .sessions.synthetic import (
    write_log as write_log,
)
from .sessions.transforms import (
    Bucketize as Bucketize,
)
from .sessions.transforms import (
    Clamp as Clamp,
)
from .sessions.transforms import (
    HashIds as HashIds,
)
from .sessions.transforms import (
    Truncate as Truncate,
)
from .tables.public_tables import criteo_kaggle as criteo_kaggle
from .tables.public_tables import criteo_terabyte as criteo_terabyte
from .tables.reuse import count_bins as count_bins
from .tables.sources import tables_from_source as tables_from_source
from .tables.synthetic import dlrm_like as dlrm_like
from .tables.table_files import read_tables as read_tables
from .tables.table_files import write_tables as write_tables
