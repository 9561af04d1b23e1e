"""Compiles the C++ kernels on first use and keeps them in the user's cache."""

import ctypes
import fcntl
import functools
import hashlib
import logging
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TypeVar

import torch

log = logging.getLogger("shardgym.kernels")

FLAGS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-fopenmp", "-DAT_PARALLEL_OPENMP=1")
COMPILE_SECONDS = 600

Library = TypeVar("Library")


@functools.cache
def load_kernel(name: str) -> ModuleType | None:
    """The operators of embeddings/kernels/NAME.cpp, compiled on first use.

    The source registers its operators with TORCH_LIBRARY(shardgym_NAME, ...). The binary lies in the user's cache,
    keyed by source, torch version, compiler, flags and processor; processes that ask at once compile once.

    Args:
        name: file name without the suffix.

    Returns:
        The namespace torch.ops.shardgym_NAME, or None (with one warning that says why) where there is no compiler or
        it fails, or where the environment has SHARDGYM_KERNELS=off; callers then use their torch reference.
    """

    def load(path: str) -> ModuleType:
        torch.ops.load_library(path)
        return getattr(torch.ops, f"shardgym_{name}")

    return _load(name, load)


@functools.cache
def load_c_kernel(source: Path | str) -> ctypes.CDLL | None:
    """As `load_kernel`, for a source with a plain C interface: without torch's headers it compiles in seconds.

    Args:
        source: its path, or the name of one of this folder.
    """
    return _load(source, ctypes.CDLL)


def _load(name: Path | str, loader: Callable[[str], Library]) -> Library | None:
    """What the loader makes of the kernel's binary, or None, having said why."""
    source = name if isinstance(name, Path) else Path(__file__).with_name(f"{name}.cpp")
    if os.environ.get("SHARDGYM_KERNELS") == "off":
        return None
    try:
        return loader(str(_compiled(source)))
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        reason = getattr(error, "stderr", None) or str(error)
        log.warning("kernel %s is not available, slower code is used instead: %s", source.stem, reason.strip()[-2000:])
        return None


def _compiled(source: Path) -> Path:
    """Path of the source's binary, which is made where it is not in the cache yet."""
    compiler = os.environ.get("CXX", "g++")
    command = [compiler, *FLAGS, *_torch_flags()]
    library = _cache_folder() / f"{source.stem}-{_key(source, command)}.so"
    if library.exists():
        return library
    with _locked(library.with_suffix(".lock")):
        if not library.exists():
            log.info("compiling kernel %s", source.name)
            _compile(command, source, library)
    return library


def _compile(command: list[str], source: Path, library: Path) -> None:
    handle, temporary = tempfile.mkstemp(dir=library.parent, suffix=".so.partial")
    os.close(handle)
    try:
        subprocess.run(
            [*command, str(source), "-o", temporary, *_torch_libraries()],
            check=True,
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
        )
        os.replace(temporary, library)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _torch_flags() -> list[str]:
    root = Path(torch.__file__).parent / "include"
    includes = [f"-isystem{root}", f"-isystem{root / 'torch' / 'csrc' / 'api' / 'include'}"]
    return [*includes, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]


def _torch_libraries() -> list[str]:
    # -fopenmp resolves to the libgomp.so.1 that torch has loaded already, so there is one pool of threads.
    folder = Path(torch.__file__).parent / "lib"
    return [f"-L{folder}", "-lc10", "-ltorch_cpu", "-ltorch", f"-Wl,-rpath,{folder}"]


def _key(source: Path, command: list[str]) -> str:
    version = subprocess.run([command[0], "--version"], check=True, capture_output=True, text=True).stdout
    parts = [_whole_text(source), torch.__version__, " ".join(command), version, _processor()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def _whole_text(source: Path) -> str:
    """The source, and the headers of this folder that it includes, directly or through others."""
    files = [source]
    for file in files:
        included = re.findall(r'^#include "([^"]+)"', file.read_text(), flags=re.MULTILINE)
        files += [path for name in included if (path := source.with_name(name)) not in files]
    return "\0".join(file.read_text() for file in files)


def _processor() -> str:
    """What -march=native depends on: the processor's instruction sets."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "shardgym" / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the file's lock; it falls by itself when the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
