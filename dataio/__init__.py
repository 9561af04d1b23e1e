"""What is placed and trained on: table sets and session logs.

Table sets
    `read_tables(path)`, `write_tables(path, tables)`, `tables_from_source("criteo-kaggle")`.
    `criteo_kaggle()`, `criteo_terabyte()`: public models; `dlrm_like(count, seed)`: generated like a production DLRM's.
    `count_bins(ids)`: how often ids repeat in a batch, as a table's reuse bins.
    `draw_indices`, `draw_batch`: ids of a batch that repeat as a table's bins say.

Session logs
    `LogSpec`, `StayingGroup`, `SlidingGroup`, `write_log`: generate one. `open_log(path)`: a `SessionLog`.
    `propose_groups(log)`: a `Grouping`, which features to deduplicate together; `table_specs`: their tables.
    `SessionSchema`, `GroupSpec`: roles of the columns.
    `cluster(log, out, settings=ClusterSettings(...))`: rows clustered by session, repeats stored once; a `Manifest`.
    `SessionDataset`, `SessionLoader`: batches (`SessionBatch`) from the clustered log, resumable.
    `HashIds`, `Clamp`, `Bucketize`, `Truncate`: transforms that run on unique lists.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
