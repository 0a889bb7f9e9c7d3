"""Hosts whose clocks differ: the real server, each with a wall clock and processes of its own."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.server import SCRIPTS, Server, server
from tests.support.server_users import OFF

# Of a namespace that is gone, nothing goes on running. What faketime leaves in /dev/shm goes with it too: its
# names have the number of a process in them, which is the same one in each namespace.
NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--")
APART = (*NAMESPACE, "sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh")
# Of Debian's package "faketime". It is loaded into every process of the host.
LIBRARY = "libfaketimeMT.so.1"
# With it, `time.sleep` fails: it takes the steady clock's time, at which the sleep ends, for a date.
SLEEP_OTHERWISE = """\
import select, time
time.sleep = lambda seconds: (select.select((), (), (), seconds), None)[1]
"""


@contextmanager
def hosts(
    directory: Path, url: str, ahead: Sequence[float], **settings: object
) -> Iterator[tuple[Server, ...]]:
    """One for each of these clocks, which are so many seconds ahead of this machine's, all on one database.

    Each has its own process ids. Otherwise they would see whether a worker of another one lives, and would
    never look at a lease.
    """
    env = OFF | {"AGENTAPP_DATABASE_URL": url, "AGENTAPP_SECRET_KEY": "s" * 32}
    env |= {f"AGENTAPP_{name.upper()}": str(value) for name, value in settings.items()}
    with ExitStack() as stack, ThreadPoolExecutor(len(ahead)) as pool:
        started = [
            pool.submit(stack.enter_context, _host(directory, number, each, env))
            for number, each in enumerate(ahead)
        ]
        yield tuple(each.result() for each in started)


@contextmanager
def _host(directory: Path, number: int, ahead: float, env: Mapping[str, str]) -> Iterator[Server]:
    home = directory / f"host{number}"
    home.mkdir()
    (home / "sitecustomize.py").write_text(SLEEP_OTHERWISE)
    command = (*apart(), "env", *clock(ahead, home), SCRIPTS / "agentapp", "serve")
    with server(home, env=env, command=command) as running:
        yield running


@functools.cache
def apart() -> tuple[str, ...]:
    """How a command is started with process ids of its own."""
    try:
        tried = subprocess.run([*APART, "true"], capture_output=True, timeout=10, check=False)
    except OSError:
        pytest.skip("there is no unshare here")
    if tried.returncode:
        pytest.skip(f"no PID namespace can be made here: {tried.stderr.decode().strip()}")
    return APART


def clock(ahead: float, directory: Path) -> tuple[str, ...]:
    """What must be in the environment for a wall clock that is so many seconds ahead. Clocks that only count
    are left as they are, as on a machine whose date is wrong.
    """
    if not ahead:
        return ()
    library = next(Path("/usr/lib").glob(f"**/faketime/{LIBRARY}"), None)
    if library is None:
        pytest.skip("faketime is not installed")
    faked = (f"LD_PRELOAD={library}", f"FAKETIME={ahead:+g}s", "FAKETIME_DONT_FAKE_MONOTONIC=1")
    return (*faked, "NO_FAKE_STAT=1", f"PYTHONPATH={directory}")
