from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from agentapp.server.memory import limit_memory

HASHING = """
import os, threading
from pathlib import Path
from argon2 import PasswordHasher
from agentapp.server.memory import limit_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

assert limit_memory({})
hasher = PasswordHasher(time_cost=1, memory_cost=19_456, parallelism=1)
before = resident()
begin = threading.Barrier(4)
threads = [threading.Thread(target=lambda: (begin.wait(), *map(hasher.hash, "abc"))) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print((resident() - before) // 2**20)
"""

# The whole of Python's own limit of calls in each other, through the parts of Python that are written in C.
NESTED = """
from agentapp.server.lanes import Job, Lane

def nest(depth):
    return sorted([depth], key=lambda depth: nest(depth + 1))

def run():
    try:
        nest(0)
    except RecursionError:
        print("an error", flush=True)

lane = Lane("page", 1, 1, 1)
lane.add("somebody", Job(run, print))
lane.shutdown(wait=True)
"""

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has arenas")


@needs_glibc
def test_threads_that_hash_passwords_leave_no_memory_taken() -> None:
    assert int(_run(HASHING)) < 20  # MiB; without the limits, that of four hashes


@needs_glibc
def test_what_an_operator_has_chosen_stays() -> None:
    for name in ("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        assert not limit_memory({name: "8"})


def test_calls_nested_as_deep_as_python_allows_do_not_end_the_worker() -> None:
    assert _run(NESTED) == "an error"


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done
    return done.stdout.strip()
