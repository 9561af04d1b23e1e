"""TTEmbeddingBag against the dense reconstruction: values, gradients, fused optimizers, conventions, errors."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from shardgym.embeddings.kernels.bags import Bags
from shardgym.embeddings.tables.fused_optimizers import SGD, Adagrad, RowwiseAdagrad
from shardgym.embeddings.tensor_train import lookup
from shardgym.embeddings.tensor_train.bag import TTEmbeddingBag
from shardgym.problem.errors import InputError
from shardgym.problem.tables import TableSpec, TensorTrainFormat
from tests.embeddings.tensor_train.truth import KERNELS, dense_table, pooled, random_bags, shapes, table_of

# p larger than r * q, duplicates, fewer rows than prod(p), dim not divisible by 4.
WIDE = (30_000, 7, (250, 11, 13), (2, 2, 2), (3, 2))


@pytest.mark.parametrize("kernel", KERNELS)
@settings(deadline=None, max_examples=60)
@given(shape=shapes(), bags=st.integers(0, 9), seed=st.integers(0, 99), mode=st.sampled_from(["sum", "mean"]),
       short=st.booleans())  # fmt: skip
def test_values_and_gradients_match_the_dense_table(kernel, shape, bags, seed, mode, short):
    table = table_of(shape, seed, mode=mode, include_last_offset=True, kernel=kernel)
    index_type = torch.int32 if short else torch.int64
    indices, offsets = random_bags(shape[0], bags, 5, seed, hot=min(shape[0], 6) if short else None)
    out = table(indices.to(index_type), offsets.to(index_type))
    cores = [core.detach().clone().requires_grad_() for core in table.cores]
    truth = pooled(dense_table(cores, *shape[:2]), indices, offsets, mode)
    torch.testing.assert_close(out, truth)
    upstream = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(seed))
    for ours, theirs in zip(
        torch.autograd.grad(out, list(table.cores), upstream), torch.autograd.grad(truth, cores, upstream)
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kernel", KERNELS)
@settings(deadline=None, max_examples=25)
@given(shape=shapes(8), seed=st.integers(0, 99))
def test_weights_and_their_gradients(kernel, shape, seed):
    table = table_of(shape, seed, include_last_offset=True, kernel=kernel)
    indices, offsets = random_bags(shape[0], 6, 4, seed)
    weights = torch.randn(indices.numel(), dtype=torch.float64, requires_grad=True)
    out = table(indices, offsets, weights)
    truth = pooled(dense_table(list(table.cores), *shape[:2]), indices, offsets, weights=weights)
    torch.testing.assert_close(out, truth)
    upstream = torch.randn_like(out)
    inputs = [weights, *table.cores]
    for ours, theirs in zip(torch.autograd.grad(out, inputs, upstream), torch.autograd.grad(truth, inputs, upstream)):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("cores", [2, 3, 4])
def test_gradcheck(kernel, cores):
    shape = (20, 5, (3, 4, 2, 2)[:cores], (2, 3, 1, 2)[:cores], (3, 2, 2)[: cores - 1])
    shape = (min(shape[0], torch.tensor(shape[2]).prod().item()), *shape[1:])
    table = table_of(shape, include_last_offset=True, kernel=kernel)
    indices, offsets = random_bags(shape[0], 4, 3, 1)
    weights = torch.rand(indices.numel(), dtype=torch.float64, requires_grad=True)

    def run(weights, *cores):
        return lookup._Lookup.apply([table], Bags(indices, offsets, weights), kernel, weights, None, *table.cores)

    assert torch.autograd.gradcheck(run, (weights, *table.cores))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    "shape", [WIDE, (200, 4, (15, 14), (2, 2), (5,)), (600, 16, (5, 5, 5, 5), (2,) * 4, (9, 3, 4))]
)
@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise"])
def test_five_fused_steps_match_steps_on_the_dense_table(kernel, shape, name):
    fused = {"sgd": SGD(0.05), "adagrad": Adagrad(0.05), "rowwise": RowwiseAdagrad(0.05)}[name]
    table = table_of(shape, optimizer=fused, include_last_offset=True, kernel=kernel)
    cores = [core.detach().clone().requires_grad_() for core in table.cores]
    outside = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}.get(name)
    optimizer = outside(cores, lr=0.05) if outside else None
    squares = [torch.zeros(core.shape[0], dtype=core.dtype) for core in cores]
    for step in range(5):
        indices, offsets = random_bags(shape[0], 40, 8, step, hot=40 if step == 2 else None)
        upstream = torch.randn(40, shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        table(indices, offsets).backward(upstream)
        grads = torch.autograd.grad(pooled(dense_table(cores, *shape[:2]), indices, offsets), cores, upstream)
        if optimizer:
            for core, grad in zip(cores, grads):
                core.grad = grad
            optimizer.step()
        else:
            for core, grad, square in zip(cores, grads, squares):
                square += grad.square().mean(dim=(1, 2, 3))
                core.data -= 0.05 * grad / (square.sqrt() + 1e-10).view(-1, 1, 1, 1)
    assert all(core.grad is None for core in table.cores)
    for ours, theirs in zip(table.cores, cores):
        torch.testing.assert_close(ours.detach(), theirs.detach())


@pytest.mark.parametrize("kernel", KERNELS)
def test_float32_stays_within_1e_4(kernel):
    shape = (11_000, 64, (20, 22, 25), (4, 4, 4), (32, 32))
    exact = table_of(shape, include_last_offset=True)
    table = table_of(shape, include_last_offset=True, dtype=torch.float32, kernel=kernel)
    with torch.no_grad():
        for core, target in zip(exact.cores, table.cores):
            core.copy_(target)
    indices, offsets = random_bags(shape[0], 200, 20, 0)
    upstream = torch.randn(200, 64)
    out, truth = table(indices, offsets), exact(indices, offsets)
    torch.testing.assert_close(out.double(), truth, rtol=1e-4, atol=1e-4)
    ours = torch.autograd.grad(out, list(table.cores), upstream)
    for grad, theirs in zip(ours, torch.autograd.grad(truth, list(exact.cores), upstream.double())):
        torch.testing.assert_close(grad.double(), theirs, rtol=1e-4, atol=1e-4 * theirs.abs().max().item())


@pytest.mark.parametrize("kernel", KERNELS)
def test_offset_conventions_padding_and_two_dimensional_indices(kernel):
    table = table_of(WIDE, padding_idx=3, mode="mean", kernel=kernel)
    indices = torch.tensor([3, 5, 7, 3, 3, 9, 29_999])
    offsets = torch.tensor([0, 3, 3, 5])
    truth = pooled(
        dense_table(list(table.cores), *WIDE[:2]), indices, torch.tensor([0, 3, 3, 5, 7]), "mean", padding_idx=3
    )
    torch.testing.assert_close(table(indices, offsets), truth)
    table.include_last_offset = True
    torch.testing.assert_close(table(indices, torch.tensor([0, 3, 3, 5, 7])), truth)
    square = table(indices[:6].view(2, 3))
    torch.testing.assert_close(square, table(indices[:6], torch.tensor([0, 3, 6])))
    assert table(indices[:0], torch.tensor([0])).shape == (0, 7)
    assert torch.equal(table(indices[:0], torch.tensor([0, 0, 0])), torch.zeros(2, 7, dtype=torch.float64))


def ids(*values):
    return torch.tensor(values)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"indices": ids(1, 30_000), "offsets": ids(0)}, "id 30000 is outside"),
        ({"indices": ids(-1, 2), "offsets": ids(0)}, "id -1 is outside"),
        ({"indices": ids(1, 2), "offsets": ids(0, 3)}, "offsets"),
        ({"indices": ids(1, 2), "offsets": ids(1)}, "offsets: must start at 0"),
        ({"indices": ids(1, 2, 3), "offsets": ids(0, 2, 1)}, "never fall"),
        ({"indices": ids(1, 2)}, "offsets: missing"),
        ({"indices": torch.tensor([1.0, 2.0]), "offsets": ids(0)}, "indices: dtype"),
        ({"indices": ids(1), "offsets": ids(0), "per_sample_weights": torch.tensor([torch.nan])}, "holds NaN"),
        ({"indices": ids(1), "offsets": ids(0), "per_sample_weights": torch.ones(2)}, "do not fit"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(kernel, call, message):
    table = table_of(WIDE, optimizer=SGD(1.0), cache_rows=4, kernel=kernel)
    before = {name: tensor.clone() for name, tensor in table.state_dict().items() if torch.is_tensor(tensor)}
    with pytest.raises(InputError, match=message):
        table(**call)
    assert table.cache.steps == 0
    after = table.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_last_offset_must_be_the_number_of_indices():
    table = table_of(WIDE, include_last_offset=True)
    with pytest.raises(InputError, match="the last one is 1 but there are 2 indices"):
        table(torch.tensor([1, 2]), torch.tensor([0, 1]))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_fused_table_looked_up_twice_before_backward_is_refused(kernel):
    table = table_of(WIDE, optimizer=SGD(0.1), kernel=kernel)
    both = table(torch.tensor([[1, 2]])) + table(torch.tensor([[3, 4]]))
    with pytest.raises(RuntimeError, match="look a table up once a step"):
        both.sum().backward()


def test_without_a_compiler_the_look_up_runs_on_torch(monkeypatch):
    table = table_of(WIDE, dtype=torch.float32, init_std=0.1)
    compiled = table(torch.arange(12).view(3, 4))
    monkeypatch.setattr(lookup.tt_cpu, "load_c_kernel", lambda name: None)
    torch.testing.assert_close(table(torch.arange(12).view(3, 4)), compiled)
    table.kernel = "compiled"
    with pytest.raises(InputError, match="'compiled' needs a C"):
        table(torch.arange(12).view(3, 4))
    table.kernel = "fast"
    with pytest.raises(InputError, match="kernel: 'fast' is unknown"):
        table(torch.arange(12).view(3, 4))


def test_a_frozen_fused_table_stays_as_it_is():
    table = table_of(WIDE, optimizer=SGD(1.0)).requires_grad_(False)
    assert not table(torch.tensor([[1, 2]])).requires_grad


@pytest.mark.parametrize("kernel", KERNELS)
def test_same_input_same_bits(kernel):
    grads = []
    for _ in range(2):
        table = table_of((11_000, 16, (20, 22, 25), (2, 2, 4), (8, 8)), include_last_offset=True, kernel=kernel)
        indices, offsets = random_bags(11_000, 300, 10, 0, hot=500)
        table(indices, offsets).square().sum().backward()
        grads.append([core.grad for core in table.cores])
    assert all(torch.equal(one, other) for one, other in zip(*grads))


UNPADDED = {
    2: (156, 12, (13, 12), (3, 4), (3,)),
    3: (60, 12, (4, 5, 3), (2, 2, 3), (3, 4)),
    4: (180, 12, (4, 5, 3, 3), (2, 2, 3, 1), (3, 4, 2)),
}


@pytest.mark.parametrize("cores", [2, 3, 4])
def test_tt_svd_recovers_a_table_of_that_rank_whatever_the_row_order(cores):
    shape = UNPADDED[cores]
    weight = table_of(shape).to_dense()
    # One rank more than the table has: the surplus must do no harm.
    options = {"ranks": tuple(rank + 1 for rank in shape[4]), "row_shape": shape[2], "dim_shape": shape[3]}
    torch.testing.assert_close(TTEmbeddingBag.from_dense(weight, **options).to_dense(), weight)
    order = torch.randperm(shape[0], generator=torch.Generator().manual_seed(1))
    mixed = TTEmbeddingBag.from_dense(weight[order], row_order=order, **options)
    torch.testing.assert_close(mixed.to_dense(), weight[order])


def test_tt_svd_error_is_within_the_tails_of_the_unfoldings():
    weight = torch.randn(60, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table = TTEmbeddingBag.from_dense(weight, (3, 4), row_shape=(4, 5, 3), dim_shape=(2, 2, 3))
    whole = weight.reshape(4, 5, 3, 2, 2, 3).permute(0, 3, 1, 4, 2, 5)
    tails = [torch.linalg.svdvals(whole.reshape(rows, -1))[rank:].square().sum() for rows, rank in ((8, 3), (80, 4))]
    assert (table.to_dense() - weight).square().sum() <= sum(tails) * (1 + 1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_state_dict_round_trip(kernel):
    def build(seed):
        order = torch.randperm(WIDE[0], generator=torch.Generator().manual_seed(seed))
        return table_of(WIDE, seed, optimizer=Adagrad(0.1), cache_rows=5, row_order=order, kernel=kernel)

    first, second = build(1), build(2)
    indices = torch.arange(40).view(8, 5)
    first(indices).sum().backward()
    first.cache_populate()
    first(indices).sum().backward()
    second.load_state_dict(first.state_dict())
    torch.testing.assert_close(second.to_dense(), first.to_dense(), rtol=0, atol=0)
    for table in (first, second):
        table(indices).sum().backward()
    torch.testing.assert_close(second.to_dense(), first.to_dense(), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_cores_train(dtype):
    table = table_of(WIDE, dtype=dtype, optimizer=RowwiseAdagrad(0.01))
    indices = torch.arange(40).view(8, 5)
    before = table(indices)
    assert before.dtype == dtype
    before.float().square().sum().backward()
    assert table(indices).float().square().sum() < before.float().square().sum()


def test_a_spec_format_makes_the_table():
    form = TensorTrainFormat((8, 8), (12, 10, 9), (2, 2, 4), cached_rows=3)
    spec = TableSpec("clicks", 1000, 16, tensor_train=form)
    table = TTEmbeddingBag.from_format(spec.rows, spec.dim, spec.tensor_train, optimizer=RowwiseAdagrad())
    assert table.format == form
    weights = sum(p.numel() * 4 for p in table.parameters())
    state = 4 * (12 + 10 + 9 + 3)
    assert weights + state == spec.bytes()
    with pytest.raises(InputError, match="do not reach rows 1000"):
        TTEmbeddingBag(1000, 16, 4, (2, 2, 2), (2, 2, 4))


def test_tables_of_more_than_two_to_the_32_rows():
    shape = (5_000_000_000, 4, (1800, 1700, 1700), (2, 2, 1), (2, 2))
    tables = [table_of(shape, kernel=kernel, include_last_offset=True) for kernel in ("torch", "auto")]
    indices = torch.tensor([0, 4_999_999_999, 1 << 32, (1 << 32) - 1, 1 << 32])
    outs = [table(indices, torch.tensor([0, 2, 5])) for table in tables]
    torch.testing.assert_close(*outs)
