"""Seats: what each thread of each worker is busy with, and for whom, in memory that all workers share.

The master makes the memory before it forks. Each worker has a row of seats there. It takes and releases seats
in its own row only, and reads all rows. There is no lock between the processes, so nobody waits to count over
all workers: whoever must not exceed a limit takes a seat first, then counts, and releases the seat again if
there are too many. If two do that at the same moment, at least one of them sees the other.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

# Another layout needs another mark: after SIGHUP, new code may find the memory that old code has laid out.
MARK = b"seats\x00\x002"
HEADER = struct.Struct("8sII")
KEY_BYTES = 16
NO_KEY = bytes(KEY_BYTES)
NUMBER = struct.Struct("q")
ASKED = struct.Struct(f"{KEY_BYTES}sq")  # who asked for a seat, and when

FREE, PAGE, TURN, FOLLOWER = range(4)


def key_of(kind: str, id: str) -> bytes:
    """Ids have any length, keys have one. The same id has another key for each kind of thing.

    No byte of it is zero, as those of free seats are: so a search goes over these in large steps.
    """
    digest = hashlib.blake2b(id.encode(), digest_size=KEY_BYTES, person=kind.encode()).digest()
    return digest.replace(b"\0", b"\1")


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each column of the memory begins. A column has one value for each seat, one row after another."""

    rows: int
    width: int  # seats in a row

    @property
    def seats(self) -> int:
        return self.rows * self.width

    @property
    def in_use(self) -> int:
        """One byte for each row."""
        return HEADER.size

    @property
    def asked(self) -> int:
        """For each row the one who asked for a stream last, and the last one before who was another."""
        return self.in_use + self.rows + -self.rows % 8

    @property
    def connections(self) -> int:
        """For each row how many its worker has."""
        return self.asked + self.rows * 2 * ASKED.size

    @property
    def opened(self) -> int:
        """When each seat was taken, in nanoseconds. No two takings of one seat have the same time."""
        return self.connections + self.rows * NUMBER.size

    @property
    def displaced(self) -> int:
        """Which taking of the seat is to give way, by its time. A later taking of the seat is not meant."""
        return self.opened + self.seats * NUMBER.size

    @property
    def users(self) -> int:
        return self.displaced + self.seats * NUMBER.size

    @property
    def tenants(self) -> int:
        """Of a stream. A page has none here."""
        return self.users + self.seats * KEY_BYTES

    @property
    def kinds(self) -> int:
        return self.tenants + self.seats * KEY_BYTES

    @property
    def size(self) -> int:
        return self.kinds + self.seats


def make_memory(rows: int, width: int) -> mmap.mmap:
    """Memory that this process shares with every process that it forks afterwards."""
    memory = mmap.mmap(-1, Layout(rows, width).size)
    HEADER.pack_into(memory, 0, MARK, rows, width)
    return memory


def clear_row(memory: mmap.mmap, row: int) -> None:
    """Its worker has ended, perhaps without releasing anything."""
    layout = Layout(*HEADER.unpack_from(memory)[1:])
    if row >= layout.rows:
        return
    memory[layout.in_use + row] = 0
    NUMBER.pack_into(memory, layout.connections + row * NUMBER.size, 0)
    columns = ((layout.kinds, 1), (layout.users, KEY_BYTES), (layout.tenants, KEY_BYTES))
    for column, size in columns:
        start, length = column + row * layout.width * size, layout.width * size
        memory[start : start + length] = bytes(length)


@dataclass(frozen=True, slots=True)
class Seat:
    """One seat as it is now. The number is its place among the seats of all rows."""

    number: int
    kind: int
    opened: int
    gives_way: bool


class Seats:  # agentapp: shared ok - joined before the first request; each seat is written by its owner alone
    """The seats of one worker, and a look at those of all. Until `join`, memory of its own with one row."""

    def __init__(self, width: int) -> None:
        self._lock = threading.Lock()
        self._use(make_memory(1, width), 0)

    def join(self, memory: mmap.mmap, row: int) -> bool:
        """Go over to a row of this memory. False if the memory has another layout or no such row."""
        mark, rows, _ = HEADER.unpack_from(memory)
        if mark != MARK or row >= rows:
            return False
        clear_row(memory, row)
        self._use(memory, row)
        return True

    def _use(self, memory: mmap.mmap, row: int) -> None:
        layout = Layout(*HEADER.unpack_from(memory)[1:])
        self._memory, self._row, self.width = memory, row, layout.width
        self._first = row * layout.width
        self._in_use, self._rows, self._asked = layout.in_use, layout.rows, layout.asked
        self._connections, self._opened, self._displaced = layout.connections, layout.opened, layout.displaced
        self._users, self._tenants, self._kinds = layout.users, layout.tenants, layout.kinds
        memory[layout.in_use + row] = 1

    def take(self, kind: int, user: bytes, tenant: bytes = NO_KEY) -> int | None:
        """The number of a seat in this worker's row; None if all are taken."""
        memory = self._memory
        with self._lock:  # between the threads of this worker: no other one writes into its row
            free = self._slice(self._kinds, self._first, 1).find(FREE)
            if free < 0:
                return None
            number = self._first + free
            NUMBER.pack_into(memory, self._opened + number * NUMBER.size, time.monotonic_ns())
            memory[self._kinds + number] = kind
        if tenant != NO_KEY:
            self._set_key(self._tenants, number, tenant)
        self._set_key(self._users, number, user)
        return number

    def release(self, number: int) -> None:
        """No lock is needed: until the last line the seat is its owner's alone."""
        self._set_key(self._users, number, NO_KEY)
        self._set_key(self._tenants, number, NO_KEY)
        self._memory[self._kinds + number] = FREE

    def count_here(self, *kinds: int) -> int:
        """Seats of this worker that are taken for such things."""
        taken = self._slice(self._kinds, self._first, 1)
        return sum(taken.count(kind) for kind in kinds)

    def count_user(self, user: bytes) -> int:
        return self._column(self._users).count(user)

    def count_tenant(self, tenant: bytes) -> int:
        return self._column(self._tenants).count(tenant)

    def count_tenant_here(self, tenant: bytes) -> int:
        return self._slice(self._tenants, self._first, KEY_BYTES).count(tenant)

    def count_tenant_kind_here(self, tenant: bytes, kind: int) -> int:
        """The tenant's seats in this worker that are taken for such things. It looks at each of them."""
        taken = self._slice(self._kinds, self._first, 1)
        numbers = self._numbers(self._slice(self._tenants, self._first, KEY_BYTES), tenant)
        return sum(taken[number] == kind for number in numbers)

    def seats_of(self, user: bytes) -> list[Seat]:
        """All seats of the user, in whichever worker."""
        return [self._seat(number) for number in self._numbers(self._column(self._users), user)]

    def opened(self, number: int) -> int:
        return int(NUMBER.unpack_from(self._memory, self._opened + number * NUMBER.size)[0])

    def displace(self, seat: Seat) -> None:
        """Tell the seat's worker, whichever it is, that this seat is to give way."""
        NUMBER.pack_into(self._memory, self._displaced + seat.number * NUMBER.size, seat.opened)

    def is_displaced(self, number: int, opened: int) -> bool:
        found: int = NUMBER.unpack_from(self._memory, self._displaced + number * NUMBER.size)[0]
        return found == opened

    def note_asking(self, tenant: bytes) -> None:
        """The tenant has asked for a stream. The caller has a lock around it."""
        last = self._asked + self._row * 2 * ASKED.size
        before, at = ASKED.unpack_from(self._memory, last)
        if before not in (tenant, NO_KEY):
            ASKED.pack_into(self._memory, last + ASKED.size, before, at)
        ASKED.pack_into(self._memory, last, tenant, time.monotonic_ns())

    def others_want(self, tenant: bytes, seconds: float) -> bool:
        """Whether another tenant has a stream now, or asked for one within so many seconds, anywhere."""
        since = time.monotonic_ns() - int(seconds * 1e9)
        end = self._asked + self._last_row() * 2 * ASKED.size
        for asked, at in ASKED.iter_unpack(self._memory[self._asked : end]):
            if asked not in (tenant, NO_KEY) and at > since:
                return True
        taken = self._memory[self._kinds : self._kinds + self._last_row() * self.width]
        streams = taken.count(TURN) + taken.count(FOLLOWER)
        return streams > self.count_tenant(tenant)

    def note_connections(self, count: int) -> None:
        """So many this worker has now. Only its main loop says so."""
        NUMBER.pack_into(self._memory, self._connections + self._row * NUMBER.size, count)

    def fewest_connections(self) -> int:
        """Those of the worker that has the fewest."""
        rows = self._last_row()
        in_use = self._memory[self._in_use : self._in_use + rows]
        end = self._connections + rows * NUMBER.size
        counts = NUMBER.iter_unpack(self._memory[self._connections : end])
        return min((int(count) for (count,), used in zip(counts, in_use, strict=True) if used), default=0)

    def _last_row(self) -> int:
        """How many rows there are up to the last that is in use."""
        return self._memory.rfind(b"\1", self._in_use, self._in_use + self._rows) - self._in_use + 1

    def _column(self, column: int) -> bytes:
        return self._memory[column : column + self._last_row() * self.width * KEY_BYTES]

    def _slice(self, column: int, first: int, size: int) -> bytes:
        start = column + first * size
        return self._memory[start : start + self.width * size]

    def _set_key(self, column: int, number: int, key: bytes) -> None:
        start = column + number * KEY_BYTES
        self._memory[start : start + KEY_BYTES] = key

    def _seat(self, number: int) -> Seat:
        opened = self.opened(number)
        kind = self._memory[self._kinds + number]
        return Seat(number, kind, opened, self.is_displaced(number, opened))

    def _numbers(self, column: bytes, key: bytes) -> Iterator[int]:
        found = column.find(key)
        while found >= 0:
            yield found // KEY_BYTES
            found = column.find(key, found + KEY_BYTES)
