"""Tables made from dense ones: exact ones recovered through padding, scale spread, ranks cut."""

import logging

import pytest
import torch

from shardgym.embeddings import Adagrad, TTEmbeddingBag, choose_format
from shardgym.embeddings.tensor_train.init import init_cores
from shardgym.embeddings.tensor_train.shapes import cap_ranks, choose_dim_shape, step_work
from shardgym.embeddings.tensor_train.svd import reconstruct
from shardgym.embeddings.tensor_train.write_back import write_back
from shardgym.problem.tables import TensorTrainFormat


def exact_table(rows, dim, rank):
    form = choose_format(rows, dim, rank)
    cores = init_cores(form, 1.0, generator=torch.Generator().manual_seed(0))
    return form, reconstruct(cores)[:rows, :dim]


@pytest.mark.parametrize(("rows", "dim", "rank"), [(256, 16, 4), (997, 13, 8), (100_003, 32, 8)])
def test_an_exact_tensor_train_is_recovered_through_its_padding(rows, dim, rank):
    form, weight = exact_table(rows, dim, rank)
    table = TTEmbeddingBag.from_dense(weight, form.ranks, row_shape=form.row_shape, dim_shape=form.dim_shape)
    assert ((table.to_dense() - weight).norm() / weight.norm()).item() < 1e-9


def test_a_first_adagrad_step_towards_the_same_table_does_little_harm():
    weight = exact_table(1000, 16, 8)[1]
    weight = (0.1 * (weight + 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)))).float()
    table = TTEmbeddingBag.from_dense(weight, 8, optimizer=Adagrad(0.01))
    sizes = torch.stack([core.detach().square().mean().sqrt() for core in table.cores])
    assert (sizes.max() / sizes.min()).item() == pytest.approx(1, abs=1e-4)

    def error():
        return ((table.to_dense() - weight).norm() / weight.norm()).item()

    before = error()
    ids = torch.arange(1000).view(-1, 1)
    (table(ids) - weight).square().sum().backward()
    assert before < 0.1
    assert error() < 0.2


@pytest.mark.parametrize(("rows", "dim", "rank"), [(1000, 32, 200), (100, 16, 32), (7, 3, 50)])
def test_ranks_are_cut_to_what_shapes_can_use(rows, dim, rank, caplog):
    with caplog.at_level(logging.WARNING):
        table = TTEmbeddingBag(rows, dim, rank, name="clicks")
    assert table.format == cap_ranks(table.format) == choose_format(rows, dim, rank)
    # Still more than the dense table, at such ranks: said once, with the way out.
    assert (table.compression_ratio < 1) == ("clicks: cores of ranks" in caplog.text)
    weight = torch.randn(rows, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    fitted = TTEmbeddingBag.from_dense(weight, rank)
    torch.testing.assert_close(fitted.to_dense(), weight)  # cut ranks lose nothing


def test_the_chosen_dim_shape_is_smaller_and_quicker_than_the_balanced_one():
    chosen = choose_format(11_000_000, 64, 32)
    balanced = TensorTrainFormat((32, 32), chosen.row_shape, choose_dim_shape(64, 3))
    assert chosen.dim_shape == (2, 2, 16)
    assert chosen.parameters() < 0.75 * balanced.parameters()
    assert step_work(chosen) < 0.6 * step_work(balanced)


def test_write_back_moves_the_rows_asked_for_and_little_else():
    form = choose_format(2000, 16, 8)
    cores = init_cores(form, 1.0, generator=torch.Generator().manual_seed(0))
    before = reconstruct(cores)[:2000, :16]
    positions = torch.tensor([3, 700, 1500])
    wanted = before[positions] + torch.randn(3, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    after = reconstruct(write_back(cores, positions, wanted))[:2000, :16]
    gap = (wanted - before[positions]).norm()
    assert (after[positions] - wanted).norm() < 0.2 * gap
    others = torch.ones(2000, dtype=torch.bool).index_fill_(0, positions, False)
    # Rows share slices: some movement of the others is the price, well below that of the rows written back.
    assert (after - before)[others].square().mean().sqrt() < 0.3 * (wanted - before[positions]).square().mean().sqrt()
