"""Orders of rows: which ids share tensor-train core slices. `order[id]` is the position that the id is held at."""

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import svds
from torch import Tensor

from shardgym.problem.errors import InputError


def frequency_order(counts: Tensor) -> Tensor:
    """Most looked-up ids first; ids of equal counts keep their order.

    Args:
        counts: (rows,) look-ups of each id in the training data.

    Returns:
        order: (rows,) int64, the position of each id.
    """
    if counts.dim() != 1:
        raise InputError(f"counts: {counts.dim()}-D; give one count a row")
    ranking = torch.argsort(counts, descending=True, stable=True)
    return _positions(ranking)


def cluster_order(interactions: Tensor, rows: int, vectors: int = 32, seed: int = 0) -> Tensor:
    """Ids that are looked up by the same users (or in the same bags) next to each other.

    The co-occurrence matrix is factored (truncated SVD after degree normalisation), and the ids are then halved again
    and again along the direction in which their vectors differ most. Give training interactions only.

    Args:
        interactions: (n, 2) int64 pairs (context, id), the context being a user, session or bag.
        rows: of the table; ids without interactions come last.
        vectors: singular vectors kept.
        seed: of the SVD's start vector.

    Returns:
        order: (rows,) int64, the position of each id.

    Raises:
        InputError: when ids lie outside the table or pairs are malformed.
    """
    if interactions.dim() != 2 or interactions.shape[1] != 2:
        raise InputError(f"interactions: shape {tuple(interactions.shape)}; give (n, 2) pairs of context and id")
    if interactions.numel() and not (int(interactions[:, 1].min()) >= 0 and int(interactions[:, 1].max()) < rows):
        raise InputError(f"interactions: an id lies outside [0, {rows}); give the table's own ids")
    contexts, ids = interactions.cpu().numpy().T
    seen = np.unique(ids)
    embedded = _id_vectors(contexts, np.searchsorted(seen, ids), len(seen), vectors, seed)
    ranking = np.concatenate([seen[_bisect(embedded)], np.setdiff1d(np.arange(rows), seen)])
    return _positions(torch.from_numpy(ranking.astype(np.int64)))


def check_order(order: Tensor, rows: int) -> Tensor:
    """The order itself, once it is known to be a permutation of [0, rows).

    Raises:
        InputError: when it is not.
    """
    whole = order.dim() == 1 and order.numel() == rows and not order.is_floating_point()
    if not whole or not torch.equal(torch.sort(order.long()).values, torch.arange(rows, device=order.device)):
        raise InputError(f"row_order: not a permutation of the {rows} rows; give each row one position")
    return order.long()


def _positions(ranking: Tensor) -> Tensor:
    order = torch.empty_like(ranking)
    order[ranking] = torch.arange(ranking.numel(), device=ranking.device)
    return order


def _id_vectors(contexts: np.ndarray, ids: np.ndarray, count: int, vectors: int, seed: int) -> np.ndarray:
    """Vectors (count, <= vectors) of ids that lie close when their contexts agree."""
    _, context_of = np.unique(contexts, return_inverse=True)
    pairs = sp.coo_matrix((np.ones(len(ids)), (context_of, ids)), shape=(context_of.max(initial=-1) + 1, count)).tocsr()
    pairs.data = np.log1p(pairs.data)  # a context that repeats one id must not outweigh the others
    kept = min(vectors, min(pairs.shape) - 1)
    if kept < 1:
        return np.zeros((count, 1))
    by_context = sp.diags(_inverse_roots(pairs.sum(axis=1)))
    by_id = sp.diags(_inverse_roots(pairs.sum(axis=0)))
    start = np.random.default_rng(seed).standard_normal(min(pairs.shape))
    _, values, right = svds(by_context @ pairs @ by_id, k=kept, v0=start)
    embedded = right.T * values
    return embedded / np.maximum(np.linalg.norm(embedded, axis=1, keepdims=True), 1e-12)


def _inverse_roots(sums: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(np.maximum(np.asarray(sums).ravel(), 1e-12))


def _bisect(embedded: np.ndarray) -> np.ndarray:
    """Ids ranked by repeated halving along the main direction of each part."""
    ranked = []
    parts = [np.arange(len(embedded))]
    while parts:
        part = parts.pop()
        if len(part) <= 4:
            ranked.append(part)
            continue
        centred = embedded[part] - embedded[part].mean(axis=0)
        _, directions = np.linalg.eigh(centred.T @ centred)
        main = directions[:, -1] * np.sign(directions[np.abs(directions[:, -1]).argmax(), -1])
        along = part[np.argsort(centred @ main, kind="stable")]
        half = len(part) // 2
        parts += [along[half:], along[:half]]
    return np.concatenate(ranked) if ranked else np.arange(0)
