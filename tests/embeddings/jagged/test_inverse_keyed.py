"""Deduplicated batches: exact expansion on random batches, kept by every operation; TorchRec's defects are absent."""

import pickle

import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils import _pytree as pytree

from shardgym.embeddings.jagged import dedup
from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup, InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.problem.errors import InputError
from tests.embeddings.jagged.strategies import batches, bits, bits_of, groupings, kjt_of, lists_of

ROWS = {"clicks": [[1, 2], [1, 2], [3], [1, 2]], "tags": [[4], [4], [], [5]], "item": [[1], [2], [3], [4]]}


def distinct_rows(kjt, keys):
    rows = lists_of(kjt)
    return len({str([rows[key][row] for key in keys]) for row in range(kjt.stride())})


@st.composite
def deduplicated(draw):
    kjt = draw(batches())
    return kjt, InverseKeyedJaggedTensor.from_kjt(kjt, draw(groupings(kjt.keys())))


def by_hand():
    return InverseKeyedJaggedTensor.from_kjt(kjt_of(list(ROWS), ROWS), [["clicks", "tags"]])


def test_a_row_repeats_only_if_the_whole_group_agrees():
    together, alone = by_hand().groups
    assert together.inverse.tolist() == [0, 0, 1, 2]
    assert together.unique.values().tolist() == [1, 2, 3, 1, 2, 4, 5]
    assert together.factor() == pytest.approx(4 / 3)
    assert (alone.keys, alone.inverse) == (("item",), None)
    apart = InverseKeyedJaggedTensor.from_kjt(kjt_of(list(ROWS), ROWS), [["clicks"], ["tags"]])
    assert [group.inverse.tolist() for group in apart.groups[:2]] == [[0, 0, 1, 0], [0, 0, 1, 2]]
    assert apart.factor() == pytest.approx(14 / 9)


@given(deduplicated())
def test_expansion_is_exact_and_the_unique_rows_are_as_few_as_can_be(case):
    kjt, ikjt = case
    assert bits(ikjt.to_kjt()) == bits(kjt)
    assert sum(group.expanded_values() for group in ikjt.groups) == kjt.values().numel()
    for group in ikjt.groups:
        group.check()
        if group.inverse is not None:
            assert group.unique_rows() == distinct_rows(kjt, group.keys)


@given(batches(), st.data())
def test_sorted_rows_need_no_hash(kjt, data):
    rows = lists_of(kjt)
    order = sorted(range(kjt.stride()), key=lambda row: str([rows[key][row] for key in rows]))
    clustered = kjt.index_select(torch.tensor(order, dtype=torch.int64))
    groups = [kjt.keys()]
    hashed = InverseKeyedJaggedTensor.from_kjt(clustered, groups)
    adjacent = InverseKeyedJaggedTensor.from_kjt(clustered, groups, rows_sorted=True)
    assert bits(adjacent.groups[0].unique) == bits(hashed.groups[0].unique)
    assert torch.equal(adjacent.groups[0].inverse, hashed.groups[0].inverse)


@given(batches(), st.booleans())
def test_the_compiled_search_agrees_with_torch(kjt, rows_sorted):
    if kjt.stride():
        ours, reference = dedup.unique_rows(kjt, rows_sorted), dedup.unique_rows_reference(kjt, rows_sorted)
        assert [t.tolist() for t in ours] == [t.tolist() for t in reference]


@given(deduplicated())
def test_rows_that_share_a_hash_are_told_apart(case):
    kjt, _ = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dedup, "row_hashes", lambda kjt: torch.zeros(kjt.stride(), dtype=torch.int64))
        collided = dedup._by_hash(kjt) if kjt.stride() else None
    if collided:
        assert [t.tolist() for t in collided] == [t.tolist() for t in dedup.unique_rows(kjt)]


@given(deduplicated(), st.data())
def test_every_operation_keeps_the_inverse(case, data):
    kjt, ikjt = case
    order = data.draw(st.permutations(range(len(kjt.keys()))))
    permuted = ikjt.permute(order)
    assert bits(permuted.to_kjt()) == bits(kjt.permute(order))
    sizes = [1] * len(order)
    parts = permuted.split(sizes)
    assert [bits(part.to_kjt()) for part in parts] == [bits(part) for part in kjt.permute(order).split(sizes)]
    rejoined = InverseKeyedJaggedTensor.concat(parts)
    assert bits(rejoined.to_kjt()) == bits(kjt.permute(order))
    some = kjt.keys()[:1]
    assert bits(ikjt.select(some).to_kjt()) == bits(kjt.select(some))
    for ours in (permuted, *parts, rejoined):
        for group in ours.groups:
            group.check()
            assert (group.inverse is None) == (ikjt.group_of(group.keys[0]).inverse is None)


@given(deduplicated(), st.lists(st.integers(0, 8), max_size=6))
def test_index_select_drops_what_no_row_has(case, wanted):
    kjt, ikjt = case
    rows = torch.tensor([row for row in wanted if row < kjt.stride()], dtype=torch.int64)
    picked = ikjt.index_select(rows)
    assert bits(picked.to_kjt()) == bits(kjt.index_select(rows))
    for group in picked.groups:
        group.check()


@given(deduplicated())
def test_pickle_pytree_and_device_moves_keep_everything(case):
    _, ikjt = case
    leaves, structure = pytree.tree_flatten(ikjt)
    for copy in (pickle.loads(pickle.dumps(ikjt)), pytree.tree_unflatten(leaves, structure), ikjt.to("cpu")):
        assert type(copy) is InverseKeyedJaggedTensor
        assert (copy.keys(), copy.stride()) == (ikjt.keys(), ikjt.stride())
        assert bits_of(copy.tensors()) == bits_of(ikjt.tensors())


def test_a_batch_is_three_tensors_a_group():
    # Each tensor crosses between processes as a file descriptor.
    assert len(by_hand().tensors()) == 3 + 2


class TestTorchRecDefects:
    """Each is a defect seen in TorchRec's KJT with inverse indices; ours must not have it."""

    def test_split_permute_and_empty_like_keep_the_inverse(self):
        ikjt = by_hand()
        assert ikjt.split([2, 1])[0].groups[0].inverse.tolist() == [0, 0, 1, 2]
        assert ikjt.permute([1, 0, 2]).groups[0].inverse.tolist() == [0, 0, 1, 2]
        empty = InverseKeyedJaggedTensor.empty_like(ikjt)
        assert (empty.keys(), empty.stride(), empty.groups[0].inverse.tolist()) == (list(ROWS), 0, [])

    def test_size_in_bytes_counts_the_inverse(self):
        together, alone = by_hand().groups
        expected = 8 * (7 + 6 + 4) + 8 * (4 + 4)
        assert by_hand().size_in_bytes() == expected
        assert together.inverse.numel() == 4
        assert alone.inverse is None

    @pytest.mark.parametrize("inverse", [[0, 1, 3, 2], [0, 1, -1, 2]])
    def test_an_inverse_out_of_range_is_refused(self, inverse):
        group = FeatureGroup(by_hand().groups[0].unique, torch.tensor(inverse))
        with pytest.raises(InputError, match=r"clicks\+tags: the inverse has entries outside 0..2"):
            InverseKeyedJaggedTensor([group])

    def test_a_unique_row_that_none_has_is_refused(self):
        group = FeatureGroup(by_hand().groups[0].unique, torch.tensor([0, 1, 1]))
        with pytest.raises(InputError, match="no row refers to 1 of the 3 unique rows"):
            InverseKeyedJaggedTensor([group])

    def test_a_missing_key_says_which_there_are(self):
        with pytest.raises(InputError, match=r"no feature 'x'; there are \['clicks', 'tags', 'item'\]"):
            by_hand()["x"]

    def test_concat_with_a_plain_batch(self):
        plain = kjt_of(["age"], {"age": [[1], [2], [3], [4]]})
        both = InverseKeyedJaggedTensor.concat([by_hand(), plain])
        assert bits(both.to_kjt()) == bits(KeyedJaggedTensor.concat([kjt_of(list(ROWS), ROWS), plain]))

    def test_inconsistent_lengths_are_refused(self):
        with pytest.raises(InputError, match="lengths sum to 2"):
            KeyedJaggedTensor(["a"], torch.tensor([1, 2, 3]), lengths=torch.tensor([1, 1]))

    def test_an_empty_index_selects_nothing(self):
        empty = by_hand().index_select(torch.tensor([], dtype=torch.int64))
        assert empty.to_kjt().length_per_key() == [0, 0, 0]


def test_groups_that_do_not_fit_are_named():
    kjt = kjt_of(list(ROWS), ROWS)
    with pytest.raises(InputError, match=r"\['tags'\] come more than once"):
        InverseKeyedJaggedTensor.from_kjt(kjt, [["clicks", "tags"], ["tags"]])
    with pytest.raises(InputError, match="no feature 'x'"):
        InverseKeyedJaggedTensor.from_kjt(kjt, [["x"]])
    group = by_hand().groups[0]
    with pytest.raises(InputError, match="keys are"):
        InverseKeyedJaggedTensor([group], keys=["clicks"])
    with pytest.raises(InputError, match="parts have"):
        InverseKeyedJaggedTensor([group, FeatureGroup(kjt.select(["item"]).index_select(torch.tensor([0])), None)])
    with pytest.raises(InputError, match="a group is a _Keyed"):
        InverseKeyedJaggedTensor([_Keyed(kjt)])


class _Keyed(KeyedJaggedTensor):
    """A plain batch given where a group belongs."""

    def __init__(self, kjt):
        super().__init__(kjt.keys(), kjt.values(), lengths=kjt.lengths())
        self.keys = tuple(kjt.keys())


def test_groups_that_hardly_repeat_keep_their_rows():
    kjt = kjt_of(list(ROWS), ROWS)
    assert InverseKeyedJaggedTensor.from_kjt(kjt, [["clicks", "tags"]], least_factor=1.5).groups[0].inverse is None
    assert InverseKeyedJaggedTensor.from_kjt(kjt, [["clicks"]], least_factor=1.5).groups[0].inverse is not None
