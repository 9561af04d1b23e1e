"""Keeping the C allocator from deciding what a measurement says."""

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def steady_allocator() -> bool:
    """Let freed memory stay with the process, for all of it and from now on; whether glibc agreed.

    By default glibc maps large buffers afresh or keeps them, depending on which sizes were freed before, and fresh
    pages cost as much as a look-up. The same 40 groups measured twice disagreed by 47% forward and 52% backward at the
    median; with buffers kept, as a long training run or a caching allocator keeps them, by 4% and 5%.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library than glibc
        return False
    return bool(mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
