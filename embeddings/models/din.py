"""DIN (Zhou et al., arXiv 1706.06978) on plain, deduplicated or partially deduplicated batches."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shardgym.embeddings.models.dlrm import mlp
from shardgym.embeddings.models.inverse_bags import Batch
from shardgym.embeddings.models.sequence_layers import DINAttention
from shardgym.embeddings.models.sequences import embed, same_group
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public


@public("shardgym.embeddings")
class DIN(nn.Module):
    """Click logits from a candidate and the history's interest in it.

    Where the candidate repeats with the history (they are in one group), the attention runs on unique rows. Where
    each sample has its own candidate, the history is looked up and projected once, and scored for each sample.

    Args:
        tables: an embedding a pair of history and candidate key; both share it.
        history: keys of the histories, which run side by side.
        candidate: keys of the candidate, one id per sample, in the order of `history`.
        attention: hidden units of the activation unit.
        hidden: hidden sizes of the last MLP.

    Raises:
        InputError: when tables, history and candidate are not equally many.
    """

    def __init__(
        self,
        tables: Sequence[nn.Embedding],
        history: Sequence[str],
        candidate: Sequence[str],
        attention: int = 36,
        hidden: Sequence[int] = (200, 80),
    ) -> None:
        super().__init__()
        if not len(tables) == len(history) == len(candidate):
            raise InputError(
                f"DIN: {len(tables)} tables, {len(history)} history and {len(candidate)} candidate keys; give as many"
            )
        self.tables = nn.ModuleList(tables)
        self.history, self.candidate = tuple(history), tuple(candidate)
        dim = sum(table.embedding_dim for table in tables)
        self.attention = DINAttention(dim, attention)
        self.mlp = mlp([2 * dim, *hidden, 1], last_activation=False)

    def forward(self, batch: Batch) -> Tensor:
        """Logits (B,) of a batch of B rows.

        Raises:
            InputError: when a key is missing, or a row has not exactly one candidate.
        """
        sequences = embed(batch, self.history, list(self.tables))
        candidates = embed(batch, self.candidate, list(self.tables))
        if bool((candidates.lengths != 1).any()):
            raise InputError(f"candidate {'+'.join(self.candidate)}: a row has not exactly one id; give one per sample")
        query = candidates.at_positions(candidates.values)  # one row per unique candidate: (R, D)
        together = same_group(batch, [*self.history, *self.candidate])
        if together and sequences.rows() == candidates.rows():
            interest = sequences.per_sample(self.attention(query, sequences))
            query = candidates.per_sample(query)
        else:
            query = candidates.per_sample(query)
            interest = self.attention.per_sample(query, sequences)
        return self.mlp(torch.cat([interest, query], dim=1)).squeeze(1)
