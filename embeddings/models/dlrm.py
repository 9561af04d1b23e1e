"""DLRM (Naumov et al., arXiv 1906.00091) on plain or deduplicated batches."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from shardgym.embeddings.models.dot_pairs import dot_pairs
from shardgym.embeddings.models.inverse_bags import Batch, InverseBags
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public


def mlp(sizes: Sequence[int], last_activation: bool) -> nn.Sequential:
    """Linear layers of the given sizes with ReLU between them, and after the last one where asked."""
    layers: list[nn.Module] = []
    for k, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(inputs, outputs))
        if last_activation or k < len(sizes) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


@public("shardgym.embeddings")
class DLRM(nn.Module):
    """Click logits from dense features and pooled embeddings, with dot products between all pairs of them.

    Args:
        bags: the tables, all of one dim D.
        dense_features: number of dense features, >= 1.
        bottom: hidden sizes of the bottom MLP; its output is D.
        top: hidden sizes of the top MLP; its output is the logit.

    Raises:
        InputError: when the tables' dims differ.
    """

    def __init__(
        self,
        bags: InverseBags,
        dense_features: int,
        bottom: Sequence[int] = (512, 256),
        top: Sequence[int] = (512, 256),
    ) -> None:
        super().__init__()
        if len(set(bags.dims)) != 1:
            raise InputError(f"bags: dims are {bags.dims}; DLRM takes dot products, give all tables one dim")
        self.bags, self.dim = bags, bags.dims[0]
        self.bottom = mlp([dense_features, *bottom, self.dim], last_activation=True)
        vectors = len(bags.dims) + 1
        self.top = mlp([self.dim + vectors * (vectors - 1) // 2, *top, 1], last_activation=False)

    def forward(self, dense: Tensor, batch: Batch) -> Tensor:
        """Logits (B,) from dense features (B, dense features) and a batch of B rows."""
        x = self.bottom(dense)  # (B, D)
        # (B, D) and (B, F * D) -> (B, 1 + F, D)
        vectors = torch.cat([x, self.bags(batch)], dim=1).view(-1, len(self.bags.dims) + 1, self.dim)
        return self.top(torch.cat([x, dot_pairs(vectors)], dim=1)).squeeze(1)
