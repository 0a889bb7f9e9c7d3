"""The worker's own name, how long its turns count as alive without news, and who of the others is alive."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from agentapp.guardrails.times import CLOCK_SKEW_SECONDS
from agentapp.isolation import new_id
from agentapp.turns.values import Lease

# Renewed four times in that time. A turn whose lease was not renewed has lost its worker, if nothing better
# is known about that.
LEASE_LENGTH = timedelta(seconds=12)
LONGEST_LEASE = timedelta(seconds=120)
CLOCK_SKEW = timedelta(seconds=CLOCK_SKEW_SECONDS)
# A lease is so many times as long as a renewal was late lately.
LAGS_PER_LEASE = 4
# Of what is remembered as the worst lag, so much is left with each beat: a tenth after two minutes.
LAG_KEPT = 0.995
DEAD_STATES = "ZX"  # of a process that has ended and that its parent has not asked after yet


class Leases:
    """A worker is named after its machine and its process, so that others on the same machine see at once
    when it is gone, and never take it for dead because it is slow. A forked process gets a name of its own,
    and so has none of its parent's turns.
    """

    def __init__(self, length: timedelta = LEASE_LENGTH) -> None:
        self._length, self._worst_lag = length, timedelta(0)
        self._lock = threading.Lock()
        self._pid, self._worker = 0, ""
        self._machine = _machine_id()
        self._trusted_from = 0.0

    def current(self) -> Lease:
        with self._lock:
            if self._pid != os.getpid():
                self._pid = os.getpid()
                process = Process(self._machine, self._pid, _own_start())
                self._worker = f"{process.name}.{new_id()}"
            grown = min(LAGS_PER_LEASE * self._worst_lag, LONGEST_LEASE)
            return Lease(self._worker, max(self._length, grown))

    def worker(self) -> str:
        return self.current().worker

    def note_lag(self, seconds: float) -> None:
        """The beat that renews leases came so late. The leases after it are longer than that by far, and
        become shorter again when the beats are in time.
        """
        with self._lock:
            self._worst_lag = max(timedelta(seconds=seconds), self._worst_lag * LAG_KEPT)

    def distrust(self) -> None:
        """After the database was away every lease looks as if it had run out. Others' leases are judged again
        only when this worker could have renewed its own all the while.
        """
        length = self.current().length.total_seconds()
        with self._lock:
            self._trusted_from = time.monotonic() + length

    def distrust_if_late(self, seconds: float) -> None:
        """A beat took so long: if the database was what hung, others could not renew their leases either."""
        if seconds >= self._length.total_seconds() / 2:
            self.distrust()

    @property
    def are_trusted(self) -> bool:
        return time.monotonic() >= self._trusted_from

    def is_alive(self, worker: str, lease_until: datetime, now: datetime) -> bool:
        """Whether somebody plays a turn with this lease. Of a process of this machine it is known if it
        lives, whatever the lease says; of others there is only the lease, if that can be judged now. A turn
        without a worker was given up.

        A lease that is longer than any that is given out comes from a clock that was put back since.
        """
        lives = self.lives(worker)
        if lives is not None:
            return lives
        return now <= lease_until <= self.latest_end(now) or (bool(worker) and not self.are_trusted)

    def latest_end(self, now: datetime) -> datetime:
        """No lease that is given out at this time ends later, in whichever worker."""
        return now + max(self._length, LONGEST_LEASE) + CLOCK_SKEW

    def lives(self, worker: str) -> bool | None:
        """Whether the worker's process exists. None if nobody can know: it is of another machine, or another
        process may have its number by now.
        """
        process = Process.named(worker)
        if process is None or not self._machine or process.machine != self._machine:
            return None
        try:
            state, started = _state_and_start(process.pid)
        except OSError:  # it may also be hidden, as it is where people do not see each other's processes
            return None if _exists(process.pid) else False
        if state in DEAD_STATES:
            return False
        return None if process.started is None else started == process.started


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a machine. Its number alone may be that of another one, later; with the time at which it
    started, in ticks since the machine did, it may not.
    """

    machine: str
    pid: int
    started: int | None

    @property
    def name(self) -> str:
        return f"{self.machine}.{self.pid}.{'' if self.started is None else self.started}"

    @classmethod
    def named(cls, worker: str) -> Process | None:
        """Of a worker's name, ``machine.pid.started.id``. Those of older versions have no ``started``."""
        machine, *parts = worker.split(".")
        if len(parts) not in (2, 3) or not parts[0].isdigit():
            return None
        started = parts[1] if len(parts) == 3 else ""
        return cls(machine, int(parts[0]), int(started) if started.isdigit() else None)


def _state_and_start(pid: int) -> tuple[str, int]:
    # The name of the program comes first, in brackets. There may be anything in it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _own_start() -> int | None:
    try:
        return _state_and_start(os.getpid())[1]
    except OSError:
        return None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # it belongs to somebody else
    return True


def _machine_id() -> str:
    """The same for all processes that see each other under the same process ids; empty if nobody can tell."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        return hashlib.sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:16]
    except OSError:
        return ""
