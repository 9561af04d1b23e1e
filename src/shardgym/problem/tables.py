"""What a table is: its size, its traffic, and the format in which a device holds it."""

import math
from dataclasses import dataclass, field, replace

from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

REUSE_BINS = 17
"""Bins of in-batch counts: (0,1], (1,2], (2,4], ..., (16384,32768], >32768."""

REFERENCE_BATCH = 65536
"""The batch size (bags) at which reuse bins are counted, as in the public DLRM tables."""

ROW_BYTES = {
    "fp32": lambda dim: 4 * dim,
    "fp16": lambda dim: 2 * dim,
    # Row-wise quantised: the codes, then a scale and an offset a row (fp32 for int8, fp16 for int4).
    "int8": lambda dim: dim + 8,
    "int4": lambda dim: (dim + 1) // 2 + 4,
}
"""Bytes of one stored row, by dtype."""

OPTIMIZER_BYTES_PER_ROW = 4
"""Row-wise Adagrad keeps one fp32 number per row."""


@public("shardgym")
@dataclass(frozen=True)
class TensorTrainFormat:
    """A table held as tensor-train cores (TT-Rec, arXiv 2101.11714, section 3).

    Core k has shape (row_shape[k], rank k, dim_shape[k], rank k+1), the first and last rank being 1.

    Args:
        ranks: inner ranks, one fewer than the cores.
        row_shape: factors p_k of the padded row count, prod(p) >= rows.
        dim_shape: factors q_k of the padded dim, prod(q) >= dim.
        cached_rows: rows that are kept uncompressed beside the cores.
    """

    ranks: tuple[int, ...]
    row_shape: tuple[int, ...]
    dim_shape: tuple[int, ...]
    cached_rows: int = 0

    def __post_init__(self) -> None:
        cores = len(self.row_shape)
        if not 2 <= cores <= 4 or len(self.dim_shape) != cores or len(self.ranks) != cores - 1:
            raise InputError(
                f"tensor_train: {cores} row factors, {len(self.dim_shape)} dim factors and {len(self.ranks)} ranks "
                "do not fit; give 2 to 4 row factors, as many dim factors, and one rank fewer"
            )
        if min(*self.ranks, *self.row_shape, *self.dim_shape) < 1:
            raise InputError("tensor_train: every rank and factor must be at least 1")
        if self.cached_rows < 0:
            raise InputError(f"tensor_train: cached_rows is {self.cached_rows}; give 0 or more")

    def core_shapes(self) -> tuple[tuple[int, int, int, int], ...]:
        """Shapes (p_k, r_k, q_k, r_(k+1)) of the cores."""
        ranks = (1, *self.ranks, 1)
        return tuple((p, ranks[k], q, ranks[k + 1]) for k, (p, q) in enumerate(zip(self.row_shape, self.dim_shape)))

    def parameters(self) -> int:
        """Numbers held in the cores, padding included, the cache left out."""
        return sum(math.prod(shape) for shape in self.core_shapes())


@public("shardgym")
@dataclass(frozen=True)
class Dedup:
    """How a table's feature repeats inside a session (RecD, arXiv 2211.05239).

    Args:
        samples_per_session: mean samples S that one session has in a batch, >= 1.
        stay_probability: chance d that the feature's list stays the same from a sample to the next, in [0, 1].
    """

    samples_per_session: float = 1.0
    stay_probability: float = 0.0

    def __post_init__(self) -> None:
        if not self.samples_per_session >= 1:
            raise InputError(f"dedup: samples_per_session is {self.samples_per_session}; give 1 or more")
        if not 0 <= self.stay_probability <= 1:
            raise InputError(f"dedup: stay_probability is {self.stay_probability}; give a chance between 0 and 1")

    def factor(self) -> float:
        """Rows over unique rows: S / (1 + (S - 1)(1 - d)) (RecD's DedupeFactor)."""
        s, d = self.samples_per_session, self.stay_probability
        return s / (1 + (s - 1) * (1 - d))


def _all_ids_once() -> tuple[float, ...]:
    return (1.0, *(0.0,) * (REUSE_BINS - 1))


@public("shardgym")
@dataclass(frozen=True)
class TableSpec:
    """One embedding table: what is placed on a device.

    Args:
        name: unique in its set.
        rows: number of embeddings, >= 1.
        dim: numbers per embedding, >= 1.
        pooling: mean ids per bag (pooling factor), >= 0.
        reuse_bins: 17 shares; share k is the part of a batch's unique ids whose count in the batch of
            `REFERENCE_BATCH` bags falls in bin k (DreamShard, arXiv 2210.02023, appendix). They sum to 1.
        dtype: "fp32", "fp16", "int8" or "int4": how a stored number is held.
        tensor_train: the cores' shape when the table is held compressed, None when dense.
        dedup: how the feature repeats inside a session.
        group: name of the feature group whose lists repeat together, or None.

    Raises:
        InputError: names the field that does not fit.
    """

    name: str
    rows: int
    dim: int
    pooling: float = 1.0
    reuse_bins: tuple[float, ...] = field(default_factory=_all_ids_once)
    dtype: str = "fp32"
    tensor_train: TensorTrainFormat | None = None
    dedup: Dedup = Dedup()
    group: str | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise InputError("table: name is empty; give each table a name")
        self._require(isinstance(self.rows, int) and self.rows >= 1, "rows", "a whole number of at least 1")
        self._require(isinstance(self.dim, int) and self.dim >= 1, "dim", "a whole number of at least 1")
        self._require(0 <= self.pooling < math.inf, "pooling", "a mean count of ids per bag of 0 or more")
        self._require(self.dtype in ROW_BYTES, "dtype", f"one of {', '.join(ROW_BYTES)}")
        bins = self.reuse_bins
        self._require(
            len(bins) == REUSE_BINS and all(0 <= share <= 1 for share in bins) and abs(sum(bins) - 1) < 1e-3,
            "reuse_bins",
            f"{REUSE_BINS} shares between 0 and 1 that sum to 1",
        )
        if self.tensor_train is not None:
            self._require(self.dtype in ("fp32", "fp16"), "dtype", "fp32 or fp16 for a tensor-train table")
            tt = self.tensor_train
            self._require(
                math.prod(tt.row_shape) >= self.rows and math.prod(tt.dim_shape) >= self.dim,
                "tensor_train",
                f"factors whose products reach rows {self.rows} and dim {self.dim}",
            )

    def _require(self, holds: bool, name: str, wanted: str) -> None:
        if not holds:
            raise InputError(f"table {self.name!r}: {name} is {getattr(self, name)!r}; give {wanted}")

    def bytes(self) -> int:
        """Device memory of the weights and of the row-wise optimizer state, in bytes."""
        tt = self.tensor_train
        if tt is None:
            return self.rows * (ROW_BYTES[self.dtype](self.dim) + OPTIMIZER_BYTES_PER_ROW)
        cores = tt.parameters() * ROW_BYTES[self.dtype](1) + sum(tt.row_shape) * OPTIMIZER_BYTES_PER_ROW
        return cores + tt.cached_rows * (ROW_BYTES[self.dtype](self.dim) + OPTIMIZER_BYTES_PER_ROW)

    def column_shards(self, pieces: int) -> tuple["TableSpec", ...]:
        """Cut the columns into `pieces` tables of dim / pieces, named `name/0`, `name/1`, ...

        Raises:
            InputError: when dim does not divide evenly, or the table is not dense.
        """
        if self.tensor_train is not None or pieces < 1 or self.dim % pieces:
            raise InputError(
                f"table {self.name!r}: dim {self.dim} cannot be cut into {pieces} equal column shards; "
                "choose a divisor of dim, and a dense table"
            )
        if pieces == 1:
            return (self,)
        return tuple(replace(self, name=f"{self.name}/{k}", dim=self.dim // pieces) for k in range(pieces))
