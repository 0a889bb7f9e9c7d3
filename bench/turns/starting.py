"""A command in a process group of its own, of which nothing is left at the end."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.server import clean_env


@contextmanager
def started(
    command: list[str], directory: Path, log: Path, env: Mapping[str, str] | None = None
) -> Iterator[int]:
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=clean_env(**(env or {})),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process.pid
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
