"""The worker's own name, and how long its turns count as alive without news."""

from __future__ import annotations

import hashlib
import os
import threading
from datetime import timedelta
from pathlib import Path

from agentapp.isolation import new_id
from agentapp.turns.values import Lease

# Renewed four times in that time. A turn whose lease was not renewed has lost its worker.
LEASE_LENGTH = timedelta(seconds=12)


class Leases:
    """A worker is named after its machine and its process, so that others on the same machine see at once
    when it is gone. A forked process gets a name of its own, and so has none of its parent's turns.
    """

    def __init__(self, length: timedelta = LEASE_LENGTH) -> None:
        self._length = length
        self._lock = threading.Lock()
        self._pid, self._worker = 0, ""
        self._machine = _machine_id()

    def current(self) -> Lease:
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._worker = os.getpid(), f"{self._machine}.{os.getpid()}.{new_id()}"
            return Lease(self._worker, self._length)

    def is_gone(self, worker: str) -> bool:
        """Whether it was a process of this machine that does not exist any more. False if nobody can know."""
        machine, _, rest = worker.partition(".")
        pid = rest.partition(".")[0]
        if not machine or machine != self._machine or not pid.isdigit():
            return False
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # it exists and belongs to somebody else
        return False


def _machine_id() -> str:
    """The same for all processes that see each other under the same process ids; empty if nobody can tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hashlib.sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:16]
    except OSError:
        return ""
