"""Under which name this process plays turns, and for how long they count as alive without news."""

from __future__ import annotations

import hashlib
import os
import threading
from datetime import timedelta
from pathlib import Path

from agentapp.storage.values import Lease, new_id

# Renewed four times in that time: what is not was on a worker that died, or on one as good as dead.
LENGTH = timedelta(seconds=12)


class Leases:
    """A worker is named after its machine and its process, so that others on that machine see at once when
    it is gone. A fork has a name of its own, and nobody else's turns.
    """

    def __init__(self, length: timedelta = LENGTH) -> None:
        self._length = length
        self._lock = threading.Lock()
        self._pid, self._name = 0, ""
        self._machine = _machine()

    def current(self) -> Lease:
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._name = os.getpid(), f"{self._machine}.{os.getpid()}.{new_id()}"
            return Lease(self._name, self._length)

    def is_gone(self, worker: str) -> bool:
        """Whether it was a process of this machine that is there no more. False if that cannot be known."""
        machine, _, rest = worker.partition(".")
        pid = rest.partition(".")[0]
        if not machine or machine != self._machine or not pid.isdigit():
            return False
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False  # it is there, and somebody else's
        return False


def _machine() -> str:
    """The same for all processes that see each other under the same numbers; empty if nobody can tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hashlib.sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:16]
    except OSError:
        return ""
