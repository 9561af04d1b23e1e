"""What tensor-train tables are held to: steps over nn.EmbeddingBag's on one core, small calls, long bags, threads."""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks import tensor_train_speed as speed
from shardgym.embeddings import SGD, Adagrad, CacheSchedule, TTEmbeddingBag

RANKS = (16, 32, 64)
LONG_BAG = 40
SMALL_ROWS = 100_000
SMALL_CALLS = 2000


def one_thread_steps(steps: int) -> dict[str, dict[str, float]]:
    """Medians of tensor-train steps over those of nn.EmbeddingBag, by rank and traffic, in shapes as chosen."""
    streams = speed.id_streams(steps)
    dense = speed.embedding_bag()
    tables = {}
    for rank in RANKS:
        table = TTEmbeddingBag(speed.ROWS, speed.DIM, rank, optimizer=SGD(speed.LR))
        tables[f"r{rank}"] = contestant(table, speed.OFFSETS)
    steep = streams.pop("zipf_1.2_sorted")
    races = {traffic: speed.Race(batches, {"dense": dense} | tables, {}) for traffic, batches in streams.items()}
    cached = cached_contestant(steep)
    races["cached"] = speed.Race(steep, {"dense": dense, "cached": cached}, {})
    measured = speed.run_races(races)
    ratios = {name: {traffic: _ratio(measured[traffic], name) for traffic in streams} for name in tables}
    return ratios | {"cached": _ratio(measured["cached"], "cached")}


def _ratio(measured: dict[str, tuple[float, float]], name: str) -> float:
    return round(measured[name][0] / measured["dense"][0], 3)


def contestant(table: TTEmbeddingBag, offsets: Tensor) -> speed.Contestant:
    """A table with a fused optimizer: forward and backward are the whole step."""
    return speed.Contestant(lambda ids: table(ids, offsets), lambda ids: None)


def cached_contestant(batches: speed.Batches) -> speed.Contestant:
    """A table of the chosen shape whose cache answers 90% of the look-ups; its tracking is on, as in training."""
    ids, counts = torch.unique(torch.cat(batches), return_counts=True)
    covered = counts.sort(descending=True).values.cumsum(0) / counts.sum()
    rows = int((covered < speed.HIT_RATE).sum()) + 1
    table = TTEmbeddingBag(speed.ROWS, speed.DIM, speed.RANK, optimizer=SGD(speed.LR), cache_rows=rows)
    table.cache.tracker.add(ids, counts)
    table.cache_populate()
    return contestant(table, speed.OFFSETS)


def small_call_ratio() -> float:
    """Median time of a forward of 2 bags of 4 ids without gradients, over nn.EmbeddingBag's."""
    table, dense = TTEmbeddingBag(SMALL_ROWS, 64, 32), nn.EmbeddingBag(SMALL_ROWS, 64, mode="sum")
    ids, offsets = torch.randint(0, SMALL_ROWS, (8,)), torch.tensor([0, 4])
    times: dict[str, list[float]] = {"table": [], "dense": []}
    with torch.no_grad():
        for _ in range(SMALL_CALLS):
            times["table"].append(_seconds(lambda: table(ids, offsets)))
            times["dense"].append(_seconds(lambda: dense(ids, offsets)))
    return statistics.median(times["table"]) / statistics.median(times["dense"])


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def long_bags(steps: int) -> float:
    """A uniform step with 40 ids per bag over nn.EmbeddingBag's."""
    offsets = torch.arange(0, speed.BATCH * LONG_BAG, LONG_BAG)
    dense = nn.EmbeddingBag(speed.ROWS, speed.DIM, mode="sum", sparse=True)
    optimizer = torch.optim.SGD(dense.parameters(), lr=speed.LR)

    def finish(ids: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    table = TTEmbeddingBag(speed.ROWS, speed.DIM, speed.RANK, optimizer=SGD(speed.LR))
    batches = [torch.randint(0, speed.ROWS, (speed.BATCH * LONG_BAG,)) for _ in range(steps)]
    runners = {"dense": speed.Contestant(lambda ids: dense(ids, offsets), finish), "tt": contestant(table, offsets)}
    return _ratio(speed.run_races({"long": speed.Race(batches, runners, {})})["long"], "tt")


def thread_speedup(steps: int) -> float:
    """Median uniform step at rank 32 on one thread over that on two, interleaved; wants two free cores."""
    step = contestant(TTEmbeddingBag(speed.ROWS, speed.DIM, speed.RANK, optimizer=SGD(speed.LR)), speed.OFFSETS)
    upstream = torch.randn(speed.BATCH, speed.DIM)
    times: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(2 * steps):
        ids = torch.randint(0, speed.ROWS, (speed.BATCH * speed.BAG,))
        for threads, taken in times.items():
            torch.set_num_threads(threads)
            taken.append(step.step(ids, upstream)[0])
    return statistics.median(times[1]) / statistics.median(times[2])


def measure(steps: int) -> dict:
    """All of them; the caller's number of threads is set again."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    found = {
        "one_core": one_thread_steps(steps),
        "small_call_us_ratio": round(small_call_ratio(), 3),
        "pool_40": long_bags(max(3, steps // 3)),
        "threads_2_over_1": round(thread_speedup(steps), 3),
    }
    torch.set_num_threads(threads)
    return found


def flat(found: dict, prefix: str = "") -> dict[str, float]:
    """Numbers by dotted key."""
    numbers: dict[str, float] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            numbers |= flat(value, f"{prefix}{name}.")
        else:
            numbers[prefix + name] = value
    return numbers


def drift_recovery() -> float:
    """Hit rate in the period after the second refresh that follows a move of all hot ids, over that before the move."""
    rows, dim, period = 100_000, 16, 100
    schedule = CacheSchedule(warmup_steps=period, refresh_every=period, track_every=5, first_fill=1.0)
    generator = torch.Generator().manual_seed(0)
    table = TTEmbeddingBag(
        rows, dim, 8, optimizer=Adagrad(0.05), cache_rows=1000, cache_schedule=schedule, generator=generator
    )
    share = torch.arange(1, rows + 1).double() ** -1.1
    moved = 4 * period + period // 2
    hits = []
    for step in range(moved + period // 2 + 2 * period):
        ids = torch.multinomial(share, 2048, replacement=True, generator=generator)
        ids = (ids + rows // 2 * (step >= moved)) % rows
        hits.append(float(torch.isin(ids, table.cache.ids).double().mean()))
        table(ids.view(-1, 4)).square().mean().backward()
    return statistics.mean(hits[-period:]) / statistics.mean(hits[moved - period : moved])
