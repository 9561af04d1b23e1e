"""First values of tensor-train cores, scaled so that the reconstructed rows have the variance asked for.

TT-Rec (arXiv 2101.11714, section 4) draws "sampled Gaussian" cores: normal numbers with the middle |w| < 2 left out,
which makes the products of three cores look Gaussian. Here the cut is solved for each format, so that the kurtosis of
the reconstructed entries is 3 in closed form, and the cores are then rescaled by their exact norm.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shardgym.problem.errors import InputError
from shardgym.problem.tables import TensorTrainFormat

HIGHEST_CUT = 4.0


def init_cores(
    form: TensorTrainFormat, std: float, init: str = "sampled_gaussian", generator: torch.Generator | None = None
) -> list[Tensor]:
    """Cores (float64) whose reconstructed entries have mean square exactly std ** 2.

    Args:
        form: shapes of the cores.
        std: wanted root mean square of the padded table's entries.
        init: "sampled_gaussian" (kurtosis 3) or "gaussian" (plain normal cores, heavier tails).

    Raises:
        InputError: for an unknown init or a std that is not positive.
    """
    if init not in ("sampled_gaussian", "gaussian"):
        raise InputError(f"init: {init!r} is unknown; give 'sampled_gaussian' or 'gaussian'")
    if not 0 < std < math.inf:
        raise InputError(f"init_std: {std} is not a positive number; leave it out for 1 / sqrt(3 rows)")
    with torch.device("cpu"):
        cut = gaussian_cut(form.ranks) if init == "sampled_gaussian" else 0.0
        cores = [_draw(shape, cut, generator) for shape in form.core_shapes()]
        if init == "sampled_gaussian" and len(cores) == 4:
            # No cut reaches kurtosis 3 through two iid inner cores at low rank; inner slices that keep lengths do.
            cores[1:3] = [_orthogonal_slices(core) for core in cores[1:3]]
        scale = (std / root_mean_square(cores)) ** (1 / len(cores))
        return [core * scale for core in cores]


def root_mean_square(cores: Sequence[Tensor]) -> float:
    """Root mean square of all entries of the (padded) table, without building it, through the Gram matrices."""
    gram = torch.ones(1, 1, dtype=torch.float64)
    entries = 1
    for core in cores:
        core = core.double().cpu()
        half = torch.einsum("ab,paqc->pbqc", gram, core)  # (p, r, q, r')
        gram = torch.einsum("pbqc,pbqd->cd", half, core)
        entries *= core.shape[0] * core.shape[2]
    return math.sqrt(float(gram) / entries)


def _draw(shape: tuple[int, ...], cut: float, generator: torch.Generator | None) -> Tensor:
    """Normal numbers with |w| >= cut, through the inverse distribution (no redrawing); unit variance."""
    uniform = torch.rand(shape, dtype=torch.float64, generator=generator).clamp_(1e-16, 1.0)
    signs = torch.randint(0, 2, shape, generator=generator) * 2.0 - 1.0
    tail = 0.5 * math.erfc(cut / math.sqrt(2))
    return -torch.special.ndtri(uniform * tail) * signs / math.sqrt(_moments(cut)[0])


def _orthogonal_slices(core: Tensor) -> Tensor:
    """Every (r, r') slice made (semi-)orthogonal, entries of unit mean square; signs of R kept, so it stays uniform."""
    slices = core.transpose(1, 2)  # (p, q, r, r')
    tall = slices.shape[-2] >= slices.shape[-1]
    q, r = torch.linalg.qr(slices if tall else slices.mT)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    slices = (q if tall else q.mT) * math.sqrt(max(core.shape[1], core.shape[3]))
    return slices.transpose(1, 2).contiguous()


def _moments(cut: float) -> tuple[float, float]:
    """E w^2 and E w^4 of a normal number given |w| >= cut."""
    tail = 0.5 * math.erfc(cut / math.sqrt(2))
    ratio = math.exp(-cut * cut / 2) / math.sqrt(2 * math.pi) / tail
    return 1 + cut * ratio, 3 + (cut**3 + 3 * cut) * ratio


def product_kurtosis(ranks: Sequence[int], kurtosis: float) -> float:
    """Kurtosis of a reconstructed entry when core entries are independent with the given kurtosis.

    The fourth moment of the running vector is carried as a (d12 d34 + d13 d24 + d14 d23) + b d1234.
    With four cores the two inner ones are taken as orthogonal slices, as `init_cores` draws them.
    """
    if len(ranks) == 3:
        # x = |u| |v| cos(angle) with a uniform angle in the space of the smallest rank.
        ends = [1 + (kurtosis - 1) / rank for rank in (ranks[0], ranks[2])]
        middle = min(ranks)
        return 3 * middle / (middle + 2) * ends[0] * ends[1]
    a, b = 1.0, kurtosis - 3
    for rank in ranks:
        a, b = a * (rank * rank + 2 * rank) + b * rank, (kurtosis - 3) * rank * (3 * a + b)
    return (3 * a + b) / math.prod(ranks) ** 2


def gaussian_cut(ranks: Sequence[int]) -> float:
    """The cut at which the kurtosis of the entries is 3 (the nearest within [0, 4] where none reaches it)."""

    def excess(cut: float) -> float:
        square, fourth = _moments(cut)
        return product_kurtosis(ranks, fourth / square**2) - 3

    low, high = 0.0, HIGHEST_CUT
    if excess(high) > 0:
        return high
    if excess(low) < 0:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return low
