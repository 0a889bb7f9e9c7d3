"""How much of what was freed a worker keeps for later."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

# The numbers that glibc's `mallopt` knows these two by.
M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8
# By default eight a core, and each keeps what its threads have freed. A thread holds the interpreter's lock
# while it allocates, so more arenas would save no time.
ARENAS = 2
# What is larger goes back to the system when it is freed. By default this grows with what is freed: then each
# arena keeps the 19 MiB of its last password hash.
LARGE_BYTES = 1024 * 1024
# With these an operator has chosen already.
CHOSEN = ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def limit_memory(environ: Mapping[str, str]) -> bool:
    """For this process and those it forks, before there are threads. Whether the C library takes it: another
    one than glibc has nothing to limit.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or any(name in environ for name in CHOSEN):
        return False
    return bool(mallopt(M_ARENA_MAX, ARENAS) and mallopt(M_MMAP_THRESHOLD, LARGE_BYTES))
