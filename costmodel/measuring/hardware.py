"""Which hardware and versions a measurement belongs to."""

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from shardgym.embeddings.tables.table_batched import FBGEMM_AVAILABLE
from shardgym.problem.faces import public


@public("shardgym.costmodel")
@dataclass(frozen=True)
class Hardware:
    """What a latency depends on besides the work.

    Args:
        device: "cpu" or "cuda".
        model: processor or GPU name as the system gives it.
        cores: cores of the machine (CPU) or multiprocessors (GPU).
        threads: torch threads used; 0 on a GPU.
        kernel: "fbgemm" or "torch".
        versions: torch and kernel versions, "torch 2.13.0, fbgemm-gpu-cpu 1.8.0".
    """

    device: str
    model: str
    cores: int
    threads: int
    kernel: str
    versions: str

    def same_machine(self, other: "Hardware") -> bool:
        """Whether the two are one kind of processor with one kind of kernel."""
        return (self.device, self.model, self.kernel) == (other.device, other.model, other.kernel)

    def comparable(self, other: "Hardware") -> bool:
        """Whether latencies of the two may be mixed: the same machine and threads (versions may differ)."""
        return self.same_machine(other) and self.threads == other.threads

    def __str__(self) -> str:
        return f"{self.model} ({self.device}, {self.threads} of {self.cores} threads, {self.kernel})"


def this_hardware(device: str = "cpu") -> Hardware:
    """Describe the machine this runs on, with torch's present number of threads."""
    versions = [f"torch {torch.__version__.partition('+')[0]}"]
    for package in ("fbgemm-gpu-cpu", "fbgemm-gpu"):
        try:
            versions.append(f"{package} {metadata.version(package)}")
            break
        except metadata.PackageNotFoundError:
            continue
    kernel = "fbgemm" if FBGEMM_AVAILABLE else "torch"
    if device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        return Hardware(device, properties.name, properties.multi_processor_count, 0, kernel, ", ".join(versions))
    threads = torch.get_num_threads()
    return Hardware(device, _cpu_model(), os.cpu_count() or 1, threads, kernel, ", ".join(versions))


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
