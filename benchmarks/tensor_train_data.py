"""Real click and rating data for the accuracy runs: KuaiRand events, and ml-100k out of the PyPI package recbole."""

import importlib.metadata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor

from benchmarks.public_data import public_data

ML_100K = "recbole/dataset_example/ml-100k"
HOW_TO_GET_ML_100K = "pip install --no-deps recbole==1.2.1"
SPLIT = (0.8, 0.1, 0.1)


@dataclass(frozen=True, eq=False)
class ClickData:
    """Events with a yes or no, split once and for all.

    Args:
        fields: name of each categorical field; the first two are the user and the item.
        sizes: distinct values of each.
        ids: (events, fields) int64.
        labels: (events,) float32, 0 or 1.
        parts: events for training, validation and test.
    """

    fields: tuple[str, ...]
    sizes: tuple[int, ...]
    ids: Tensor
    labels: Tensor
    parts: tuple[Tensor, Tensor, Tensor]

    def part(self, k: int) -> tuple[Tensor, Tensor]:
        """ids and labels of training (0), validation (1) or test (2)."""
        return self.ids[self.parts[k]], self.labels[self.parts[k]]

    def interactions(self, field: int) -> Tensor:
        """Pairs (context, id) of one field in training events with a yes: users for items, items for all else."""
        ids, labels = self.part(0)
        liked = ids[labels > 0]
        return torch.stack([liked[:, 0 if field == 1 else 1], liked[:, field]], dim=1)

    def counts(self, field: int) -> Tensor:
        """How often each id of a field occurs in training."""
        return torch.bincount(self.ids[self.parts[0]][:, field], minlength=self.sizes[field])


@cache
def kuairand() -> ClickData | None:
    """KuaiRand events (Gao et al., 2022): was a shown video clicked; None where the file is absent."""
    path = public_data("kuairand_events.parquet")
    if path is None:
        return None
    table = pq.read_table(path)
    fields = ("user_id", "video_id", "author_id", "tag", "tab")
    columns = [table[name].to_numpy(zero_copy_only=False) for name in fields]
    # An hour of the day says when the feed was opened.
    hours = table["time_ms"].to_numpy() // 3_600_000 % 24
    return _split((*fields, "hour"), [*columns, hours], table["is_click"].to_numpy().astype(np.float32))


@cache
def ml_100k() -> ClickData | None:
    """MovieLens 100k: was a film rated 4 or 5; None where recbole is not installed. recbole is read, not imported."""
    folder = _installed_folder()
    if folder is None:
        return None
    users, items, ratings, _ = _columns(folder / "ml-100k.inter")
    user_ids, ages, genders, occupations, _ = _columns(folder / "ml-100k.user")
    item_ids, _, years, genres = _columns(folder / "ml-100k.item")
    user_row = {user: k for k, user in enumerate(user_ids)}
    item_row = {item: k for k, item in enumerate(item_ids)}
    of_user = np.array([user_row[user] for user in users])
    of_item = np.array([item_row[item] for item in items])
    decades = np.array([int(age) // 10 for age in ages])
    first_genres = np.array([genre.split(" ")[0] for genre in genres])
    columns = [users, items, decades[of_user], np.array(genders)[of_user], np.array(occupations)[of_user],
               np.array(years)[of_item], first_genres[of_item]]  # fmt: skip
    fields = ("user", "item", "age", "gender", "occupation", "year", "genre")
    return _split(fields, columns, np.array([float(rating) >= 4 for rating in ratings], dtype=np.float32))


def _installed_folder() -> Path | None:
    try:
        files = importlib.metadata.files("recbole") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = [file for file in files if str(file) == f"{ML_100K}/ml-100k.inter"]
    return Path(str(found[0].locate())).parent if found else None


def _columns(path: Path) -> list[list[str]]:
    """Columns of a tab-separated file with one header line."""
    lines = path.read_text(encoding="utf-8").splitlines()[1:]
    return [list(column) for column in zip(*(line.split("\t") for line in lines))]


def _split(fields: tuple[str, ...], columns: list, labels: np.ndarray) -> ClickData:
    """Events shuffled once with a fixed seed and cut; ids numbered in sorted order of the raw values."""
    numbered = [np.unique(np.asarray(column), return_inverse=True) for column in columns]
    ids = torch.from_numpy(np.stack([own for _, own in numbered], axis=1).astype(np.int64))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    sizes = [int(share * len(labels)) for share in SPLIT[:2]]
    parts = order.split([*sizes, len(labels) - sum(sizes)])
    return ClickData(
        fields,
        tuple(len(values) for values, _ in numbered),
        ids,
        torch.from_numpy(labels),
        (parts[0], parts[1], parts[2]),
    )


SOURCES = {"kuairand": kuairand, "ml100k": ml_100k}
HOW_TO_GET = {"kuairand": "set SHARDGYM_DATA to the folder of the public data", "ml100k": HOW_TO_GET_ML_100K}
