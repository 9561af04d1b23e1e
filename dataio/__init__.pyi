from .index_draw import draw_batch as draw_batch, draw_indices as draw_indices
from .sessions.batch import SessionBatch as SessionBatch
from .sessions.cluster import ClusterSettings as ClusterSettings, cluster as cluster
from .sessions.clustered_files import Manifest as Manifest
from .sessions.grouping import (
    Grouping as Grouping,
    propose_groups as propose_groups,
)
from .sessions.loader import SessionLoader as SessionLoader
from .sessions.log import SessionLog as SessionLog, open_log as open_log
from .sessions.measured_tables import table_specs as table_specs
from .sessions.reader import SessionDataset as SessionDataset
from .sessions.schema import GroupSpec as GroupSpec, SessionSchema as SessionSchema
from .sessions.synthetic import (
    LogSpec as LogSpec,
    SlidingGroup as SlidingGroup,
    StayingGroup as StayingGroup,
    write_log as write_log,
)
from .sessions.transforms import Bucketize as Bucketize, Clamp as Clamp, HashIds as HashIds, Truncate as Truncate
from .tables.public_tables import criteo_kaggle as criteo_kaggle, criteo_terabyte as criteo_terabyte
from .tables.reuse import count_bins as count_bins
from .tables.sources import tables_from_source as tables_from_source
from .tables.synthetic import dlrm_like as dlrm_like
from .tables.table_files import read_tables as read_tables, write_tables as write_tables
