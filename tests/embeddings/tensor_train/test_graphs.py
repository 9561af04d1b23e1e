"""Look-ups inside graphs: torch.compile, torch.export, torch.func and AOT give what eager look-ups give."""

import copy

import pytest
import torch
import torch._dynamo.testing
from functorch.compile import aot_function, nop

from shardgym.embeddings import SGD, TableBatchedTTEmbeddingBags
from shardgym.embeddings.tensor_train import ops
from shardgym.problem.errors import InputError
from tests.embeddings.tensor_train.truth import random_bags, table_of

SHAPE = (500, 6, (8, 8, 8), (2, 1, 3), (4, 5))
TWO_CORES = (90, 4, (10, 10), (2, 2), (3,))
FOUR_CORES = (400, 8, (5, 4, 5, 4), (2, 2, 2, 1), (3, 4, 2))
OPTIONS = [
    {},
    {"kernel": "torch"},
    {"mode": "mean", "padding_idx": 3},
    {"row_order": torch.randperm(500, generator=torch.Generator().manual_seed(0)), "padding_idx": 7},
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    "shape", [SHAPE, (90, 4, (10, 10), (2, 2), (3,)), (400, 8, (5, 4, 5, 4), (2, 2, 2, 1), (3, 4, 2))]
)
def test_compiled_as_the_first_use_and_without_recompiling_per_batch(options, shape):
    options = options if shape == SHAPE or "row_order" not in options else {}
    table = table_of(shape, include_last_offset=True, **options)
    eager = copy.deepcopy(table)
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(table, backend=counter, fullgraph=True, dynamic=True)
    for seed, bags in enumerate((7, 12, 31)):
        indices, offsets = random_bags(shape[0], bags, 5, seed)
        indices[::4] = 3
        out, truth = compiled(indices, offsets), eager(indices, offsets)
        torch.testing.assert_close(out, truth)
        upstream = torch.randn_like(out)
        grads = torch.autograd.grad(out, list(table.cores), upstream)
        for ours, theirs in zip(grads, torch.autograd.grad(truth, list(eager.cores), upstream)):
            torch.testing.assert_close(ours, theirs)
    assert counter.frame_count == 1


def test_weights_and_batched_tables_compile_with_their_gradients():
    tables = [table_of(SHAPE, 0, padding_idx=3), table_of((90, 4, (10, 10), (2, 2), (3,)), 1)]
    batched = TableBatchedTTEmbeddingBags(tables)
    compiled = torch.compile(batched, backend="aot_eager", fullgraph=True)
    indices, offsets = random_bags(90, 8, 5, 0)
    indices[::4] = 3
    weights = torch.rand(indices.numel(), dtype=torch.float64, requires_grad=True)
    out, truth = compiled(indices, offsets, weights), batched(indices, offsets, weights)
    torch.testing.assert_close(out, truth)
    inputs = [weights, *batched.parameters()]
    upstream = torch.randn_like(out)
    for ours, theirs in zip(torch.autograd.grad(out, inputs, upstream), torch.autograd.grad(truth, inputs, upstream)):
        torch.testing.assert_close(ours, theirs)


def test_a_fused_and_cached_table_trains_between_graphs():
    def build():
        table = table_of(SHAPE, optimizer=SGD(0.1), cache_rows=20)
        table.cache.observe(torch.arange(10))
        table.cache_populate()
        return table

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = build()

        def forward(self, ids):
            return (self.table(ids) * 2).sin().sum()

    model = Model()
    eager = copy.deepcopy(model)
    compiled = torch.compile(model, backend="aot_eager")
    for step in range(3):
        ids = torch.arange(step, step + 12).view(3, 4)
        compiled(ids).backward()
        eager(ids).backward()
    torch.testing.assert_close(model.table.to_dense(), eager.table.to_dense())
    assert model.table.cache.steps == 3


@pytest.mark.parametrize("cached", [False, True])
def test_export_takes_any_batch_and_keeps_the_checks(cached):
    table = table_of(SHAPE, optimizer=SGD(0.1), cache_rows=20 * cached)
    if cached:
        table.cache.observe(torch.arange(10))
        table.cache_populate()
    batch = torch.export.Dim("batch", min=2, max=1000)
    program = torch.export.export(table.eval(), (torch.arange(12).view(4, 3),), dynamic_shapes=({0: batch},)).module()
    ids = torch.randint(0, 500, (9, 3))
    torch.testing.assert_close(program(ids), table(ids))
    with pytest.raises(InputError, match="id 500 is outside"):
        program(torch.full((9, 3), 500))


def test_functional_transforms_and_aot():
    table = table_of(SHAPE)
    ids = torch.arange(24).view(6, 4)
    parameters = dict(table.named_parameters())

    def loss(given):
        return torch.func.functional_call(table, given, (ids,)).square().sum()

    found = torch.func.grad(loss)(parameters)
    truth = torch.autograd.grad(table(ids).square().sum(), list(parameters.values()))
    for ours, theirs in zip(found.values(), truth):
        torch.testing.assert_close(ours, theirs)
    traced = aot_function(
        lambda ids, *cores: torch.func.functional_call(table, dict(zip(parameters, cores)), (ids,)).square().sum(),
        fw_compiler=nop,
    )
    out = traced(ids, *parameters.values())
    torch.testing.assert_close(torch.autograd.grad(out, list(parameters.values())), truth)


def test_the_operator_keeps_torchs_rules_for_operators():
    table = table_of(SHAPE, padding_idx=3)
    indices, offsets = random_bags(500, 6, 4, 0)
    weights = torch.rand(indices.numel(), dtype=torch.float64, requires_grad=True)
    layout = ops.Layout(500, 6, 3, 3, cached=0, ordered=0, mode="sum", kernel="auto", name="clicks").text()
    torch.library.opcheck(ops.tt_bags, (list(table.cores), indices, offsets, weights, layout))
    with pytest.raises(InputError, match="clicks: id 900"):
        ops.tt_bags(list(table.cores), indices + 900 - indices, offsets, weights, layout)
