from .jagged.inverse_keyed import FeatureGroup as FeatureGroup, InverseKeyedJaggedTensor as InverseKeyedJaggedTensor
from .jagged.jagged import JaggedTensor as JaggedTensor
from .jagged.keyed import KeyedJaggedTensor as KeyedJaggedTensor
from .jagged.ops import jagged_index_select as jagged_index_select
from .jagged.partial_inverse import (
    PartialInverseKeyedJaggedTensor as PartialInverseKeyedJaggedTensor,
    WindowGroup as WindowGroup,
)
from .jagged.torchrec import from_torchrec as from_torchrec, to_torchrec as to_torchrec
from .models.din import DIN as DIN
from .models.dlrm import DLRM as DLRM
from .models.inverse_bags import InverseBags as InverseBags
from .models.sequence_layers import (
    DINAttention as DINAttention,
    SequenceTransformer as SequenceTransformer,
    pool_sequences as pool_sequences,
)
from .models.sequences import Sequences as Sequences, embed as embed
from .models.sharded_bags import ShardedBags as ShardedBags, Traffic as Traffic
from .shard import EmbeddingShard as EmbeddingShard, OpBatch as OpBatch
from .tables.compressed import (
    LowDimEmbeddingBag as LowDimEmbeddingBag,
    QREmbeddingBag as QREmbeddingBag,
    QuantizedEmbeddingBag as QuantizedEmbeddingBag,
)
from .tables.fused_optimizers import (
    SGD as SGD,
    Adagrad as Adagrad,
    Adam as Adam,
    RowwiseAdagrad as RowwiseAdagrad,
)
from .tables.table_batched import FBGEMM_AVAILABLE as FBGEMM_AVAILABLE, TableBatchedBags as TableBatchedBags
from .tensor_train.bag import TTEmbeddingBag as TTEmbeddingBag
from .tensor_train.batched import TableBatchedTTEmbeddingBags as TableBatchedTTEmbeddingBags
from .tensor_train.embedding import TTEmbedding as TTEmbedding
from .tensor_train.hot_rows import CacheSchedule as CacheSchedule, CacheStats as CacheStats
from .tensor_train.row_order import cluster_order as cluster_order, frequency_order as frequency_order
from .tensor_train.shapes import choose_format as choose_format
from .tensor_train.svd import tt_svd as tt_svd
