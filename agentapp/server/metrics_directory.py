"""The directory in which the workers of one server keep their metrics: new at each start, gone at its end."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

NAME = "agentapp-metrics-"
# In memory, where there is such a place: a disk that stalls must not stop who counts.
MEMORY = Path("/dev/shm")  # noqa: S108
LIVE_GAUGES = "gauge_live*_{place}.db"


def make(parent: Path | None = None) -> Path:
    """For the server whose master is this process. Those of servers that were killed are removed."""
    parent = parent or (MEMORY if os.access(MEMORY, os.W_OK | os.X_OK) else Path(tempfile.gettempdir()))
    for old in parent.glob(f"{NAME}*"):
        if not _lives(old):
            delete(old)
    return Path(tempfile.mkdtemp(prefix=f"{NAME}{os.getpid()}-", dir=parent))


def delete(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def forget_gauges(directory: Path, place: int) -> None:
    """Of a worker that has ended: there is nothing of it now. What it counted stays."""
    for file in directory.glob(LIVE_GAUGES.format(place=place)):
        with suppress(FileNotFoundError):
            file.unlink()


def _lives(directory: Path) -> bool:
    """Whether the server lives. One of another user, or with an unknown name, counts as alive."""
    master = re.fullmatch(rf"{NAME}(\d+)-.*", directory.name)
    try:
        return master is None or directory.stat().st_uid != os.getuid() or _exists(int(master[1]))
    except FileNotFoundError:
        return True  # another server has just removed it


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
