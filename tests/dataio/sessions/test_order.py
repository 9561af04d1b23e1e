"""Ranks and workers share an epoch by samples, and share what is left of it anew when their numbers change."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardgym.dataio.sessions.order import (
    MOST_STRETCHES,
    ReadOrder,
    RowGroup,
    Stretch,
    advanced,
    cut,
    joined,
    resumed,
    served,
)
from shardgym.problem.errors import InputError

COUNTS = st.lists(st.integers(1, 40), max_size=8)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.data())
def test_turns_are_served_as_a_plain_walk_does(counts, data):
    turns = []
    left = list(counts)
    while any(left):
        for worker in range(len(counts)):
            if left[worker]:
                turns.append(worker)
                left[worker] -= 1
    consumed = data.draw(st.integers(0, len(turns) + 2))
    done, turn = served(counts, consumed)
    assert done == [turns[:consumed].count(worker) for worker in range(len(counts))]
    if consumed < len(turns):
        assert turn == turns[consumed]


@given(COUNTS, st.integers(1, 9), st.integers(1, 8), st.integers(1, 4), st.booleans())
def test_samples_are_split_evenly_and_next_to_none_are_left_out(counts, B, world, workers, drop_last):
    order = ReadOrder(tuple(RowGroup(0, n, count) for n, count in enumerate(counts)), B, drop_last=drop_last)
    lanes = order.lanes((Stretch(world, workers),))
    positions = [at for rank in lanes for lane in rank for piece in lane.pieces for at in piece]
    assert len(positions) == len(set(positions))
    assert set(positions) <= set(range(sum(counts)))
    batches = [sum(lane.batches for lane in rank) for rank in lanes]
    assert batches == [order.batches((Stretch(world, workers),), rank) for rank in range(world)]
    lost = sum(counts) - len(positions)
    if drop_last:
        assert len(set(batches)) == 1
        assert lost < B * world
        assert all(lane.samples % B == 0 for rank in lanes for lane in rank)
    else:
        assert lost == 0
        assert max(batches) - min(batches) <= 1
    for rank in lanes:
        sizes = [[sum(map(len, lane.batch(k))) for k in range(lane.batches)] for lane in rank]
        _, turn = served([lane.batches for lane in rank], sum(map(len, sizes)) - 1) if any(sizes) else (None, None)
        for worker, own in enumerate(sizes):
            full = own[:-1] if worker == turn else own
            assert all(size == B for size in full), "only the batch that comes last may be short"


@given(COUNTS, st.integers(1, 5), st.booleans(), st.data())
def test_an_epoch_that_changes_hands_gives_every_sample_once(counts, B, drop_last, data):
    order = ReadOrder(tuple(RowGroup(0, n, count) for n, count in enumerate(counts)), B, drop_last=drop_last)
    stretches, seen = (), []
    for _ in range(data.draw(st.integers(0, 3))):
        world, workers = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
        stretches = resumed(stretches, world, workers)
        totals = [order.batches(stretches, rank) for rank in range(world)]
        begun = stretches[-1].batches
        upto = data.draw(st.integers(begun, max(begun, max(totals))))
        for lanes in order.lanes(stretches):
            counts_ = [lane.batches for lane in lanes]
            before, _ = served(counts_, begun)
            done, _ = served(counts_, upto)
            seen += [
                at for lane, a, b in zip(lanes, before, done) for k in range(a, b) for p in lane.batch(k) for at in p
            ]
        stretches = advanced(stretches, upto)
    assert len(seen) == len(set(seen))
    rest = [
        at
        for lanes in ReadOrder(order.row_groups, B, drop_last=False).lanes((*stretches, Stretch(2, 2)))
        for lane in lanes
        for piece in lane.pieces
        for at in piece
    ]
    if not drop_last:
        assert sorted(seen + rest) == list(range(sum(counts)))


def test_many_changes_of_hands_are_refused_with_the_way_out():
    stretches = tuple(Stretch(1, 1 + at % 2, 1) for at in range(MOST_STRETCHES))
    assert resumed(stretches, 1, 2) == stretches
    with pytest.raises(InputError, match="changed 64 times amid epoch; go on with 1 ranks of 2 workers"):
        resumed(stretches, 3, 1)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=6), st.integers(0, 20), st.integers(0, 20))
def test_pieces_are_cut_and_joined_as_lists_are(drawn, start, size):
    pieces = [range(a, a + n) for a, n in drawn]
    flat = [at for piece in pieces for at in piece]
    assert [at for piece in cut(pieces, start, start + size) for at in piece] == flat[start : start + size]
    ends = np.cumsum([0, *(n + gap for gap, n in drawn)]).tolist()
    apart = [range(e - n, e) for e, (_, n) in zip(ends[1:], drawn)]
    merged = joined(apart[::-1])
    assert [at for piece in merged for at in piece] == [at for piece in apart for at in piece]
    assert all(a.stop < b.start for a, b in zip(merged, merged[1:]))  # noqa: RUF007


def test_epochs_have_orders_of_their_own():
    order = ReadOrder(tuple(RowGroup(0, n, n + 1) for n in range(13)), 2, window=2, shuffle=True, seed=1)
    assert order.row_group_order(0) != order.row_group_order(1)
    assert sorted(group.number for group in order.row_group_order(1)) == list(range(13))
    assert order.session_order(0, order.row_groups[5], 9).tolist() != list(range(9))
    windows = [order.window_order(0, number) for number in range(-(-91 // 4))]
    assert np.concatenate(windows).size == 91
    assert all(sorted(window) == list(range(4 * n, min(91, 4 * n + 4))) for n, window in enumerate(windows))
