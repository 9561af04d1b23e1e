"""First values, shapes and row orders: measured moments, arithmetic, planted structure."""

import math

import pytest
import torch
from hypothesis import given, settings, strategies as st

from shardgym.embeddings.tensor_train.bag import TTEmbeddingBag
from shardgym.embeddings.tensor_train.init import init_cores, product_kurtosis, root_mean_square
from shardgym.embeddings.tensor_train.row_order import cluster_order, frequency_order
from shardgym.embeddings.tensor_train.shapes import choose_format
from shardgym.problem.errors import InputError
from shardgym.problem.tables import TensorTrainFormat

KAGGLE = (10_131_227, 8_351_593, 7_046_547, 5_461_306, 2_202_608, 286_181, 142_572)


def entries(cores):
    """Every entry of the padded table, flat."""
    whole = torch.ones(1, 1, dtype=torch.float64)
    for core in cores:
        whole = torch.einsum("nr,prqs->npqs", whole, core).reshape(-1, core.shape[3])
    return whole.flatten()


@pytest.mark.parametrize("rank", [8, 16, 32, 64])
@pytest.mark.parametrize("cores", [2, 3, 4])
def test_sampled_gaussian_entries_have_the_variance_and_the_tails_asked_for(rank, cores):
    rows = 60_000
    form = choose_format(rows, 16, rank, cores=cores)
    kurtoses = []
    for seed in range(3):
        drawn = init_cores(form, std=(3 * rows) ** -0.5, generator=torch.Generator().manual_seed(seed))
        table = entries(drawn)
        assert table.var().item() == pytest.approx(1 / (3 * rows), rel=0.03)
        assert abs(table.mean().item()) < 0.05 * table.std().item()
        kurtoses.append((table.pow(4).mean() / table.pow(2).mean() ** 2).item())
    # Where ranks are cut to what the shapes can use, an outer core has as few vectors as numbers in one: chance counts.
    assert sum(kurtoses) / 3 == pytest.approx(3.0, abs=0.15 if min(form.ranks) == rank else 0.35)


@pytest.mark.parametrize(("ranks", "kurtosis"), [((8,), 3.0), ((8,), 1.1), ((6, 9), 3.0), ((6, 9), 1.1)])
def test_closed_form_kurtosis_matches_simulation(ranks, kurtosis):
    generator = torch.Generator().manual_seed(0)
    shape = [200_000, 1]
    # Entries +-b or 0 with the kurtosis wanted: E w^2 = 1, E w^4 = kurtosis.
    chance, size = 1 / kurtosis, math.sqrt(kurtosis)

    def draw(*shape):
        signs = torch.randint(0, 2, shape, generator=generator) * 2.0 - 1.0
        return signs * size * (torch.rand(shape, generator=generator) < chance)

    vector = draw(shape[0], ranks[0])
    for left, right in zip(ranks, (*ranks[1:], 1)):
        vector = torch.einsum("nr,nrs->ns", vector, draw(shape[0], left, right))
    measured = (vector.pow(4).mean() / vector.pow(2).mean() ** 2).item()
    assert product_kurtosis(ranks, kurtosis) == pytest.approx(measured, rel=0.03)


def test_norm_without_building_the_table():
    form = TensorTrainFormat((3, 5, 2), (4, 3, 5, 2), (2, 1, 3, 2))
    cores = [torch.randn(shape, dtype=torch.float64) for shape in form.core_shapes()]
    assert root_mean_square(cores) == pytest.approx(entries(cores).square().mean().sqrt().item())


def test_bad_init_is_named():
    with pytest.raises(InputError, match="init: 'uniform' is unknown"):
        TTEmbeddingBag(10, 4, 2, init="uniform")
    with pytest.raises(InputError, match="init_std: -1"):
        TTEmbeddingBag(10, 4, 2, init_std=-1)


def test_criteo_formats_pad_under_two_percent_and_compress_as_published():
    small = [1460, 583, 305, 24, 12517, 633, 3, 93145, 5683, 3194, 27, 14992, 10, 5652, 2173, 4, 18, 15, 105]
    for rank, ratio in ((32, 117), (8, 221)):
        formats = [choose_format(rows, 16, rank) for rows in KAGGLE]
        for rows, form in zip(KAGGLE, formats):
            assert rows <= math.prod(form.row_shape) < 1.02 * rows
            assert math.prod(form.dim_shape) == 16
        held = sum(form.parameters() for form in formats) + 16 * sum(small)
        assert 16 * (sum(KAGGLE) + sum(small)) / held >= ratio


@settings(deadline=None, max_examples=80)
@given(rows=st.integers(1, 3_000_000), dim=st.integers(1, 300), rank=st.integers(1, 40), cores=st.integers(2, 4))
def test_any_table_gets_a_format_that_holds_it(rows, dim, rank, cores):
    form = choose_format(rows, dim, rank, cores=cores)
    assert rows <= math.prod(form.row_shape)
    assert dim <= math.prod(form.dim_shape) <= 1.25 * dim + 1
    if rows > 10_000 and cores < 4:
        assert math.prod(form.row_shape) < 1.02 * rows


def test_frequency_order_puts_the_most_frequent_first():
    order = frequency_order(torch.tensor([5, 0, 9, 5]))
    assert order.tolist() == [1, 3, 0, 2]


def test_cluster_order_finds_planted_clusters():
    generator = torch.Generator().manual_seed(0)
    clusters, size, users = 8, 32, 400
    cluster_of = torch.arange(clusters * size).remainder(clusters)[torch.randperm(clusters * size, generator=generator)]
    members = [torch.where(cluster_of == c)[0] for c in range(clusters)]
    pairs = []
    for user in range(users):
        own = members[user % clusters]
        picked = own[torch.randint(0, size, (20,), generator=generator)]
        pairs += [(user, int(item)) for item in picked]
    order = cluster_order(torch.tensor(pairs), rows=clusters * size + 5)
    assert sorted(order.tolist()) == list(range(clusters * size + 5))
    assert order[-5:].tolist() == list(range(clusters * size, clusters * size + 5))
    held = torch.empty(clusters * size, dtype=torch.int64)
    held[order[:-5]] = cluster_of
    neighbours_agree = (held[1:] == held[:-1]).double().mean().item()
    assert neighbours_agree > 0.9  # chance would give 1 / 8


def test_cluster_order_of_nothing_and_bad_orders():
    assert cluster_order(torch.zeros(0, 2, dtype=torch.int64), rows=3).tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="an id lies outside"):
        cluster_order(torch.tensor([[0, 3]]), rows=3)
    with pytest.raises(InputError, match="row_order: not a permutation"):
        TTEmbeddingBag(3, 4, 2, row_order=torch.tensor([0, 0, 2]))
