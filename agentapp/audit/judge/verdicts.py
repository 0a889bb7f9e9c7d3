"""Decides whether all changes of one object are safe together, and words the message if not."""

from __future__ import annotations

from collections.abc import Iterator

from agentapp.audit.judge.hazards import Hazard
from agentapp.audit.judge.locks import Locks
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import last_name
from agentapp.audit.judge.reads import Reads
from agentapp.audit.judge.violations import Access, SharedObject
from agentapp.audit.known_names import CONSTRUCTION_METHODS, HARMLESS_READERS

UNGUARDED = " without the lock that guards it elsewhere"


class Verdicts:
    def __init__(self, program: Program, locks: Locks, reads: Reads) -> None:
        self._program, self._locks, self._reads = program, locks, reads

    def judge(self, shared: SharedObject) -> Iterator[Hazard]:
        writes = shared.writes
        common = frozenset.intersection(*(access.locks for access in writes))
        if common:
            yield from self._judge_guarded(shared, common)
            return
        unlocked = [access for access in writes if not access.locks]
        if len(unlocked) < len(writes):
            access = unlocked[0] if unlocked else writes[-1]
            if access.violation.rule != "ISO005":
                yield self._make_hazard(access, "ISO015", shared, UNGUARDED)
                return
        access = min(
            unlocked or writes,
            key=lambda access: (access.violation.rule == "ISO005", access.module.path, access.line),
        )
        yield self._make_hazard(access, access.violation.rule, shared)

    def _judge_guarded(self, shared: SharedObject, common: frozenset[str]) -> Iterator[Hazard]:
        """All changes hold a common lock. Checks before them, and reads during them, must hold it too."""
        asked_outside = [access for access in shared.writes if access.lazy == 1]
        if asked_outside and all(access.violation.rule == "ISO005" for access in shared.writes):
            yield self._make_hazard(asked_outside[0], "ISO005", shared, " after a check outside the lock")
        elif any(access.is_in_place for access in shared.writes):
            yield from self._find_unlocked_read(shared, common)

    def _find_unlocked_read(self, shared: SharedObject, common: frozenset[str]) -> Iterator[Hazard]:
        asks = {(access.module.name, access.function.name) for access in shared.writes if access.lazy}
        for module, function, read in self._reads.reads_of(shared.key):
            last = last_name(function)
            if (
                (module.name, function.name) in asks
                or last in CONSTRUCTION_METHODS
                or last in HARMLESS_READERS
            ):
                continue
            locks = self._locks.held_at(module, function, read.locks)
            if not locks & common:
                access = Access(shared.writes[0].violation, module, function, read.line, locks, 0, True)
                yield self._make_hazard(access, "ISO015", shared, UNGUARDED, "read")
                return

    def _make_hazard(
        self, access: Access, rule: str, shared: SharedObject, how: str = "", done: str = "changed"
    ) -> Hazard:
        _, _, name, module, line = access.violation
        others = {other.line for other in shared.writes if other.module is access.module} - {access.line}
        lines = ", ".join(map(str, sorted(others)[:5]))
        more = f" (also changed in {'line' if len(others) == 1 else 'lines'} {lines})" if others else ""
        home = f"{self._program.modules[module].path}:{line}"
        message = f"{name}, from {home}, is {done} by `{access.function.name}`{how}{more}"
        return Hazard(access.module.path, access.line, rule, message, access.function.name, name)
