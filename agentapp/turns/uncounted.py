"""Turns whose end is being stored, in a file that outlives the process.

A worker can be killed when it has stored the end of a turn and has not counted it. The next worker in its
place finds the turn here, and counts it if its end is in the database.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from agentapp.errors import MissingId
from agentapp.isolation import Scope

SLOTS = 64  # far more than can be written to the database at once
SLOT_BYTES = 512
FILE = "uncounted-turns-{place}"


@dataclass(frozen=True, slots=True)
class TurnEnd:
    scope: Scope
    turn_id: str
    status: str
    contained: bool
    ended_at: datetime

    def packed(self) -> bytes:
        """Its ids are those of rows that exist, so no line break is in them."""
        scope, contained = self.scope, "contained" if self.contained else ""
        ids = f"{scope.request_id}\n{scope.tenant_id}\n{scope.user_id}\n{scope.session_id}\n{self.turn_id}"
        return f"{ids}\n{self.status}\n{contained}\n{self.ended_at.isoformat()}".encode()

    @classmethod
    def unpacked(cls, packed: bytes) -> TurnEnd:
        request, tenant, user, session, turn_id, status, contained, ended_at = packed.decode().split("\n")
        scope = Scope(request_id=request, tenant_id=tenant, user_id=user, session_id=session)
        return cls(scope, turn_id, status, bool(contained), datetime.fromisoformat(ended_at))


class UncountedTurns:
    """Without a file until it has `joined`: in a server of one process nobody could read it afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = None
        self._free: list[int] = []
        self._left: dict[int, TurnEnd] = {}

    def join(self, directory: Path, place: int) -> None:
        """Once in each worker, before it serves. No other living worker has this place."""
        file = os.open(directory / FILE.format(place=place), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(file, SLOTS * SLOT_BYTES)
            self._memory = mmap.mmap(file, SLOTS * SLOT_BYTES)  # agentapp: shared ok - once, before serving
        finally:
            os.close(file)
        for slot in range(SLOTS):
            found = self._memory[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES].rstrip(b"\0")
            if found and found[0]:
                with suppress(ValueError, MissingId):  # of one that was not written to its end
                    self._left[slot] = TurnEnd.unpacked(found)
        self._free = [slot for slot in range(SLOTS) if slot not in self._left]

    def left(self) -> Mapping[int, TurnEnd]:
        """What the worker that had this place before has left, by slot. `clear` each."""
        with self._lock:
            return dict(self._left)

    def note(self, end: TurnEnd) -> int | None:
        """Before the end is committed. The slot is to be cleared when it is counted, or not committed."""
        if self._memory is None:
            return None
        packed = end.packed()
        with self._lock:
            if not self._free or len(packed) > SLOT_BYTES:
                return None
            slot = self._free.pop()
            self._memory[slot * SLOT_BYTES : (slot + 1) * SLOT_BYTES] = packed.ljust(SLOT_BYTES, b"\0")
        return slot

    def clear(self, slot: int | None) -> None:
        if self._memory is None or slot is None:
            return
        with self._lock:
            self._memory[slot * SLOT_BYTES] = 0  # the first byte decides
            self._left.pop(slot, None)
            self._free.append(slot)
