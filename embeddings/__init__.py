"""Tensors, tables and models: what a device holds and runs.

Tables on one device
    `EmbeddingShard(tables, ...)`: all tables of a device, of every format, in one `forward`; what is measured and
    trained. `OpBatch` is what it takes.
    `TableBatchedBags`: dense tables in one fused look-up (FBGEMM where `FBGEMM_AVAILABLE`, else torch).
    `SGD`, `Adagrad`, `RowwiseAdagrad`, `Adam`: optimizers fused into a backward.

Compressed tables
    `TTEmbeddingBag(rows, dim, ...)`: a tensor-train table (TT-Rec), called like `nn.EmbeddingBag`;
    `TTEmbedding`: unpooled;
    `TableBatchedTTEmbeddingBags`: many in one look-up.
    `choose_format`: shapes and ranks; `tt_svd`: cores of a given table; `frequency_order`, `cluster_order`: the order
    of its rows; `CacheSchedule`, `CacheStats`: rows kept uncompressed.
    `QuantizedEmbeddingBag`, `LowDimEmbeddingBag`, `QREmbeddingBag`: other ways to be small.

Batches of jagged lists
    `JaggedTensor`, `KeyedJaggedTensor`: lists of one feature, of many.
    `InverseKeyedJaggedTensor`, `FeatureGroup`: repeated lists held once (RecD's IKJT), one inverse per feature group.
    `PartialInverseKeyedJaggedTensor`, `WindowGroup`: sliding histories as windows of shared values.
    `to_torchrec`, `from_torchrec`; `jagged_index_select`.

Models on them
    `InverseBags`, `Sequences`, `embed`, `pool_sequences`, `DINAttention`, `SequenceTransformer`: look up, pool and
    attend on unique rows, then expand.
    `DLRM`, `DIN`: whole models. `ShardedBags`, `Traffic`: tables spread over processes, and the bytes they exchange.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
