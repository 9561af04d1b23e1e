"""Pooling, DIN attention and a transformer layer over embedded histories, on rows that samples share (RecD's O7)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardgym.embeddings.jagged.ops import expand_rows
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
        """Pooled rows (R, D) for queries (R, D).

        For one query per sample over rows that samples share, give `sequences.one_row_per_sample()`.
        """
        row = sequences.row_of_position()
        keys = sequences.at_positions(sequences.values)  # (T, D)
        hidden = sequences.at_positions(self.from_key(sequences.values)) + expand_rows(self.from_query(query), row)
        hidden = hidden + self.from_product(keys * expand_rows(query, row))
        scores = self.score(self.activation(hidden)).squeeze(1)  # (T,)
        return pool_sequences(sequences, "sum", scores)


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
