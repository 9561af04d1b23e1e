"""Hardware constants of the analytic cost model, each with where it comes from."""

from dataclasses import dataclass

from shardgym.problem.faces import public


@public("shardgym.costmodel")
@dataclass(frozen=True)
class Machine:
    """One device of an analytic machine.

    Args:
        name: for reports.
        memory_bandwidth: bytes/s from memory.
        cache_bandwidth: bytes/s from the last-level cache.
        cache_bytes: of the last-level cache.
        flops: fp32 multiply-adds and adds a second, counted apart.
        memory_latency: seconds of one random read.
        bags_in_flight: bags that can be pooled at the same time (resident warps of a GPU, one on a core).
        bytes_in_flight: bytes that one bag has on the way from memory; 0 for one row.
        access_bytes: a read brings at least this much.
        launch: seconds of starting a phase's op.
        table_overhead: seconds that each table adds to a phase on the device.
        link_bandwidth: bytes/s that a device sends inside its host, and as much that it receives.
        link_latency: seconds of an all-to-all of nothing.
        peer_latency: seconds that each peer adds to an all-to-all.
        devices_per_host: devices of a host.
    """

    name: str
    memory_bandwidth: float
    cache_bandwidth: float
    cache_bytes: float
    flops: float
    memory_latency: float
    bags_in_flight: int
    bytes_in_flight: float
    access_bytes: int
    launch: float
    table_overhead: float
    link_bandwidth: float
    link_latency: float
    peer_latency: float = 1e-6
    devices_per_host: int = 8


# NVIDIA's data sheets: HBM and NVLink bandwidth (one direction), L2 size, fp32 rate without tensor cores; resident
# warps are multiprocessors * 64. L2 bandwidth and memory latency are rounded from published microbenchmarks (Luo et
# al., arXiv 2402.13499); launches are the usual 5 us a kernel, two kernels a phase.
A100 = Machine(
    "A100 80 GB SXM (analytic)", 2039e9, 4.5e12, 40e6, 19.5e12, 600e-9, 108 * 64, 0, 32, 10e-6, 0.1e-6, 300e9, 20e-6
)
H100 = Machine(
    "H100 80 GB SXM (analytic)", 3350e9, 5.6e12, 50e6, 67e12, 650e-9, 132 * 64, 0, 32, 10e-6, 0.1e-6, 450e9, 20e-6
)
H200 = Machine(
    "H200 141 GB SXM (analytic)", 4800e9, 5.6e12, 50e6, 67e12, 650e-9, 132 * 64, 0, 32, 10e-6, 0.1e-6, 450e9, 20e-6
)
# One core of a server processor near 3 GHz: two 512-bit multiply-adds a cycle, a dozen cache lines on the way, its
# share of a 32 MB last-level cache, gloo over loopback.
CPU_CORE = Machine(
    "one CPU core (analytic)", 20e9, 60e9, 32e6, 190e9, 90e-9, 1, 12 * 64, 64, 80e-6, 5e-6, 2e9, 200e-6,
    peer_latency=150e-6, devices_per_host=64,
)  # fmt: skip

MACHINES = {"a100": A100, "h100": H100, "h200": H200, "cpu-core": CPU_CORE}
"""Machines by the name that a command line takes."""
