"""Pooling, DIN attention and a transformer layer over embedded histories, on rows that samples share (RecD's O7)."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardgym.embeddings.jagged.ops import expand_rows, offsets_from_lengths
from shardgym.embeddings.kernels.build import load_kernel
from shardgym.embeddings.models.sequences import Sequences
from shardgym.problem.faces import public


def pool_sequences(sequences: Sequences, mode: str = "mean", weights: Tensor | None = None) -> Tensor:
    """Pooled rows (R, D), empty rows giving zeros.

    Args:
        sequences: rows of embeddings.
        mode: "sum", "mean" or "max".
        weights: (T,) one weight for each of the rows' positions, for "sum" only.
    """
    offsets = sequences.offsets().long()
    return F.embedding_bag(
        sequences.positions(),
        sequences.values,
        offsets,
        mode=mode,
        include_last_offset=True,
        per_sample_weights=weights,
    )


@public("shardgym.embeddings")
class DINAttention(nn.Module):
    """Target attention of DIN (Zhou et al., arXiv 1706.06978, section 4.3): sums a history by its relevance to a query.

    The activation unit is an MLP of query, key and their product; scores are not normalised, as in the paper. Its
    first layer is held as three maps, which is the same function, so that the key's part is computed once for a
    position that rows share, and all of it once for a row that samples share.

    Args:
        dim: numbers D of a query and of a position.
        hidden: units of the hidden layer.
    """

    def __init__(self, dim: int, hidden: int = 36) -> None:
        super().__init__()
        self.from_query = nn.Linear(dim, hidden)
        self.from_key = nn.Linear(dim, hidden, bias=False)
        self.from_product = nn.Linear(dim, hidden, bias=False)
        self.activation = nn.PReLU(hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, query: Tensor, sequences: Sequences) -> Tensor:
        """Pooled rows (R, D) for queries (R, D); for one query per sample (B, D) see `per_sample`."""
        return self._attend(query, replace(sequences, inverse=None))

    def per_sample(self, query: Tensor, sequences: Sequences) -> Tensor:
        """Pooled (B, D) for one query per sample (B, D), over rows that samples share.

        A history is read once for all of its samples' queries.
        """
        return self._attend(query, sequences)

    def _attend(self, query: Tensor, sequences: Sequences) -> Tensor:
        on_cpu = query.device.type == "cpu" and query.dtype == sequences.values.dtype == torch.float32
        if on_cpu and load_kernel("din_attention_cpu") is not None:
            return _attention(
                query,
                self.from_query(query),
                sequences.values,
                self.from_key(sequences.values),
                self.from_product.weight,
                self.activation.weight,
                self.score.weight,
                self.score.bias,
                sequences,
            )
        return self.reference(query, sequences.one_row_per_sample())

    def reference(self, query: Tensor, sequences: Sequences) -> Tensor:
        """The attention on torch alone; one query per row (R, D)."""
        row = sequences.row_of_position()
        keys = sequences.at_positions(sequences.values)  # (T, D)
        hidden = sequences.at_positions(self.from_key(sequences.values)) + expand_rows(self.from_query(query), row)
        hidden = hidden + self.from_product(keys * expand_rows(query, row))
        scores = self.score(self.activation(hidden)).squeeze(1)  # (T,)
        return pool_sequences(sequences, "sum", scores)


def _attention(
    query: Tensor,
    query_part: Tensor,
    values: Tensor,
    key_part: Tensor,
    product: Tensor,
    slope: Tensor,
    score: Tensor,
    bias: Tensor,
    sequences: Sequences,
) -> Tensor:
    """Pooled (B, D) by the compiled attention; the kernel's file says what the arguments are."""
    R = sequences.rows()
    if sequences.inverse is None:
        order = torch.arange(R, device=query.device)
        bounds = torch.arange(R + 1, device=query.device)
    else:
        inverse = sequences.inverse.long()
        order = torch.argsort(inverse, stable=True)
        bounds = offsets_from_lengths(torch.bincount(inverse, minlength=R))
    rows = (sequences.starts.long(), sequences.lengths.long(), bounds, order)
    return _Attention.apply(query, query_part, values, key_part, product, slope, score, bias, *rows)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> Tensor:
        kernel: Any = load_kernel("din_attention_cpu")
        tensors = tuple(tensor.contiguous() for tensor in tensors)
        ctx.save_for_backward(*tensors)
        return kernel.din_attention(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        kernel: Any = load_kernel("din_attention_cpu")
        return (*kernel.din_attention_backward(grads[0].contiguous(), *ctx.saved_tensors), None, None, None, None)


@public("shardgym.embeddings")
class SequenceTransformer(nn.Module):
    """A transformer encoder layer over histories, then the mean of its positions.

    Args:
        dim: numbers D of a position.
        heads: attention heads, a divisor of D.
        feedforward: units of the feed-forward layer.
    """

    def __init__(self, dim: int, heads: int = 4, feedforward: int = 128) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(dim, heads, feedforward, dropout=0.0, batch_first=True)

    def forward(self, sequences: Sequences) -> Tensor:
        """Pooled rows (R, D), empty rows giving zeros."""
        lengths = sequences.lengths.long()
        L = max(1, int(lengths.max())) if lengths.numel() else 1
        column = torch.arange(L, device=lengths.device)
        inside = column < lengths.unsqueeze(1)  # (R, L)
        D = sequences.values.shape[1]
        keys = sequences.at_positions(sequences.values)  # (T, D)
        padded = keys.new_zeros(sequences.rows(), L, D).masked_scatter(inside.unsqueeze(2), keys)
        # A row with nothing to attend to would give NaN: let it see its first, zero place.
        blind = ~inside & ~((lengths == 0).unsqueeze(1) & (column == 0))
        mixed = self.layer(padded, src_key_padding_mask=blind)
        summed = (mixed * inside.unsqueeze(2)).sum(1)  # (R, L, D) -> (R, D)
        return summed / lengths.clamp(min=1).unsqueeze(1)
