"""Under which name this process plays turns, and for how long they count as alive without news."""

from __future__ import annotations

import os
import threading
from datetime import timedelta

from agentapp.storage.values import Lease, new_id

# Renewed four times in that time: what is not was on a worker that died, or on one as good as dead.
LENGTH = timedelta(seconds=12)


class Leases:
    """A fork has a name of its own, and nobody else's turns."""

    def __init__(self, length: timedelta = LENGTH) -> None:
        self._length = length
        self._lock = threading.Lock()
        self._pid, self._name = 0, ""

    def current(self) -> Lease:
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._name = os.getpid(), new_id()
            return Lease(self._name, self._length)
