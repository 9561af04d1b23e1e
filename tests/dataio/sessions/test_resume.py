"""Reading goes on where it was: at any batch, under any number of workers and ranks, through any loader."""

import itertools
import pickle
import warnings

import pytest
from torch.utils.data import DataLoader

from shardgym.dataio.sessions.loader import SessionLoader
from shardgym.dataio.sessions.reader import SessionDataset
from shardgym.problem.errors import InputError
from tests.dataio.sessions.reference import NAMES, clustered_log, fingerprint

pytest.importorskip("duckdb", reason="clustering needs the extra `sessions`")


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    return clustered_log(tmp_path_factory.mktemp("sessions"))


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("window", [1, 3])
def test_resume_at_every_batch_of_an_epoch(clustered, workers, window):
    def reading():
        dataset = SessionDataset(clustered, 64, shuffle=True, shuffle_window=window, seed=5, drop_last=False)
        return SessionLoader(dataset, workers, persistent_workers=False)

    loader = reading()
    states, seen = [loader.state_dict()], []
    for batch in loader:
        seen.append(fingerprint(batch))
        states.append(loader.state_dict())
    assert len(seen) == len(loader) > 14
    following = [fingerprint(batch) for batch in loader]
    assert following != seen, "a new order in the next epoch"
    resumed = reading()
    for at, state in enumerate(states):
        resumed.load_state_dict(pickle.loads(pickle.dumps(state)))
        batches = iter(resumed)
        wanted = seen[at:] if at < len(seen) else following
        for batch in wanted if workers == 0 else wanted[:3]:
            assert fingerprint(next(batches)) == batch
        del batches


def test_a_resumed_epoch_runs_to_its_end_and_on(clustered):
    def reading():
        return SessionLoader(SessionDataset(clustered, 64, shuffle=True), 2)

    whole = reading()
    two_epochs = [fingerprint(batch) for _ in range(2) for batch in whole]
    first = reading()
    for _, _batch in zip(range(5), first):
        pass
    second = reading()
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    second.dataset.set_epoch(0)
    assert [fingerprint(batch) for _ in range(2) for batch in second] == two_epochs[5:]


def test_a_state_of_another_reading_is_refused(clustered):
    saved = SessionDataset(clustered, 64)
    next(iter(saved))
    state = saved.state_dict()
    with pytest.raises(InputError, match="batch_size was 64 and is 32"):
        SessionDataset(clustered, 32).load_state_dict(state)
    with pytest.raises(InputError, match="version 7 is not 2"):
        saved.load_state_dict(state | {"version": 7})


def read(loader, batches=None):
    """Ids and times of the samples, batch by batch."""
    seen = []
    for batch in loader if batches is None else itertools.islice(loader, batches):
        names = ("timestamp", "item_id", "price")
        seen.append(list(zip(*(batch.samples[name].tolist() for name in names))))
    return seen


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("window", [1, 3])
def test_resume_with_other_ranks_and_workers_is_sample_exact(clustered, drop_last, window):
    def loaders(world, workers):
        options = {"shuffle": True, "shuffle_window": window, "drop_last": drop_last, "samples": NAMES}
        return [
            SessionLoader(SessionDataset(clustered, 20, rank=rank, world_size=world, **options), workers)
            for rank in range(world)
        ]

    (alone,) = loaders(1, 0)
    everything = sorted(sample for batch in read(alone) for sample in batch)
    state, seen = None, []
    for world, workers, batches in ((2, 2, 5), (3, 0, 4), (1, 2, 6), (2, 0, None)):
        running = loaders(world, workers)
        for loader in running:
            if state is not None:
                loader.load_state_dict(state)
        lengths = [len(loader) for loader in running]
        came = [read(loader, batches) for loader in running]
        seen += [sample for rank in came for batch in rank for sample in batch]
        if batches is None:
            assert lengths == [len(rank) for rank in came]
            assert running[0].state_dict()["epoch"] == 1
        else:
            states = [loader.state_dict() for loader in running]
            assert all(each == states[0] for each in states), "the state of any rank serves all"
            state = states[-1]
    assert len(seen) == len(set(seen))
    if drop_last:
        assert set(seen) <= set(everything)
        assert len(everything) - len(seen) < 2 * 20
    else:
        assert sorted(seen) == everything


def test_set_epoch_is_honoured_under_torchs_own_loader(clustered):
    def order(epoch, persistent):
        dataset = SessionDataset(clustered, 64, shuffle=True, samples=NAMES)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)
        passes = []
        for each in range(epoch + 1):
            dataset.set_epoch(each)
            passes.append(read(loader))
        assert len(loader) == len(passes[0])
        return passes

    expected = []
    loader = SessionLoader(SessionDataset(clustered, 64, shuffle=True, samples=NAMES), 2)
    for _ in range(3):
        expected.append(read(loader))
    assert expected[0] != expected[1]
    for persistent in (False, True):
        assert order(2, persistent) == expected


def test_a_loader_that_tells_nothing_is_warned_of_and_never_gives_a_wrong_state(clustered):
    dataset = SessionDataset(clustered, 64, shuffle=True, samples=NAMES)
    first = read(DataLoader(dataset, batch_size=None))
    assert read(DataLoader(dataset, batch_size=None)) != first, "without workers epochs follow each other"
    dataset.set_epoch(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(dataset, batch_size=None, num_workers=1)
        assert read(loader) == first
        with pytest.raises(InputError, match="save the state of torchdata's StatefulDataLoader"):
            dataset.state_dict()
        with pytest.raises(UserWarning, match="epoch 0 is read again in the same order; call set_epoch"):
            read(loader)
    saved = SessionLoader(SessionDataset(clustered, 64, shuffle=True, samples=NAMES))
    begun = read(saved, 5)
    dataset.load_state_dict(saved.state_dict())
    rest = read(DataLoader(dataset, batch_size=None, num_workers=2))
    assert not {s for batch in begun for s in batch} & {s for batch in rest for s in batch}
    with pytest.raises(InputError, match="the rest of a resumed epoch is asked for twice"):
        read(DataLoader(dataset, batch_size=None, num_workers=2))


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdatas_stateful_loader_goes_on_where_it_was(clustered, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")

    def loader():
        dataset = SessionDataset(clustered, 30, shuffle=True, samples=NAMES, drop_last=False)
        dataset.set_epoch(3)
        return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    whole = read(loader())
    for at in (0, 1, 5, len(whole) - 1):
        begun = loader()
        batches = iter(begun)
        taken = [next(batches) for _ in range(at)]
        state = pickle.loads(pickle.dumps(begun.state_dict()))
        assert len(taken) == at
        del batches
        resumed = loader()
        resumed.load_state_dict(state)
        assert read(resumed) == whole[at:]
