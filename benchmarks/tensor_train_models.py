"""Two small models over categorical fields, with tables of any kind: matrix factorisation and a DLRM."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class MatrixFactorization(nn.Module):
    """logit = user row . item row + their biases (Koren et al., 2009).

    Args:
        tables: of users and of items, rows of one length.
        biases: tables of one number a row, for users and items.
    """

    def __init__(self, tables: Sequence[nn.Module], biases: Sequence[nn.Module]) -> None:
        super().__init__()
        self.tables, self.biases = nn.ModuleList(tables), nn.ModuleList(biases)
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B,) of ids (B, 2)."""
        user, item = (table(ids[:, k : k + 1]) for k, table in enumerate(self.tables))
        bias = sum(table(ids[:, k : k + 1]) for k, table in enumerate(self.biases))
        return (user * item).sum(1) + bias.squeeze(1) + self.offset


class SmallDLRM(nn.Module):
    """Rows of all fields, their pairwise products, and a top MLP (Naumov et al., arXiv 1906.00091; no dense features).

    Args:
        tables: one a field, rows of `dim` numbers.
        dim: numbers a row.
        hidden: of the top MLP.
    """

    def __init__(self, tables: Sequence[nn.Module], dim: int, hidden: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(tables)
        fields = len(tables)
        first, second = torch.triu_indices(fields, fields, offset=1)
        self.register_buffer("first", first)
        self.register_buffer("second", second)
        self.scale = math.sqrt(dim)
        self.top = nn.Sequential(
            nn.Linear(fields * dim + len(first), hidden), nn.ReLU(), nn.Dropout(0.2), nn.Linear(hidden, 1)
        )

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (B,) of ids (B, fields)."""
        rows = torch.stack([table(ids[:, k : k + 1]) for k, table in enumerate(self.tables)], dim=1)  # (B, fields, D)
        products = torch.bmm(rows, rows.transpose(1, 2)) / self.scale
        crossed = products[:, self.first, self.second]
        return self.top(torch.cat([rows.flatten(1), crossed], dim=1)).squeeze(1)
