"""Whether the changes of one object are safe together, and the sentence if they are not."""

from __future__ import annotations

from collections.abc import Iterator

from agentapp.audit.judge.hazards import Hazard
from agentapp.audit.judge.locks import Locks
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import last_name
from agentapp.audit.judge.reads import Reads
from agentapp.audit.judge.state import State, Touch
from agentapp.audit.known import GLANCES, INITS

UNGUARDED = " without the lock that guards it elsewhere"


class Verdicts:
    def __init__(self, program: Program, locks: Locks, reads: Reads) -> None:
        self._program, self._locks, self._reads = program, locks, reads

    def of(self, state: State) -> Iterator[Hazard]:
        writes = state.writes
        common = frozenset.intersection(*(touch.locks for touch in writes))
        if common:
            yield from self._of_guarded(state, common)
            return
        unlocked = [touch for touch in writes if not touch.locks]
        if len(unlocked) < len(writes):
            touch = unlocked[0] if unlocked else writes[-1]
            if touch.broken.rule != "ISO005":
                yield self._hazard(touch, "ISO015", state, UNGUARDED)
                return
        touch = min(
            unlocked or writes,
            key=lambda touch: (touch.broken.rule == "ISO005", touch.module.path, touch.line),
        )
        yield self._hazard(touch, touch.broken.rule, state)

    def _of_guarded(self, state: State, common: frozenset[str]) -> Iterator[Hazard]:
        """All changes hold one lock. So must whoever asks before, and whoever may see half of a change."""
        asked_outside = [touch for touch in state.writes if touch.lazy == 1]
        if asked_outside and all(touch.broken.rule == "ISO005" for touch in state.writes):
            yield self._hazard(asked_outside[0], "ISO005", state, " after a check outside the lock")
        elif any(touch.is_in_place for touch in state.writes):
            yield from self._unlocked_read(state, common)

    def _unlocked_read(self, state: State, common: frozenset[str]) -> Iterator[Hazard]:
        asks = {(touch.module.name, touch.function.name) for touch in state.writes if touch.lazy}
        for module, function, read in self._reads.of(state.key):
            last = last_name(function)
            if (module.name, function.name) in asks or last in INITS or last in GLANCES:
                continue
            locks = self._locks.at(module, function, read.locks)
            if not locks & common:
                touch = Touch(state.writes[0].broken, module, function, read.line, locks, 0, True)
                yield self._hazard(touch, "ISO015", state, UNGUARDED, "read")
                return

    def _hazard(self, touch: Touch, rule: str, state: State, how: str = "", done: str = "changed") -> Hazard:
        _, _, name, module, line = touch.broken
        others = {other.line for other in state.writes if other.module is touch.module} - {touch.line}
        lines = ", ".join(map(str, sorted(others)[:5]))
        more = f" (also changed in {'line' if len(others) == 1 else 'lines'} {lines})" if others else ""
        home = f"{self._program.modules[module].path}:{line}"
        message = f"{name}, from {home}, is {done} by `{touch.function.name}`{how}{more}"
        return Hazard(touch.module.path, touch.line, rule, message, touch.function.name, name)
