"""The main loop's part in new turns: few begin at once, some wait, and who would wait too long is refused."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from random import random

from agentapp.server.connection import Connection
from agentapp.server.lanes import PAGES_WAITING, Job, Lane
from agentapp.server.request_loop import RequestLoop
from agentapp.server.shedding import REFUSED_WITHIN_SECONDS, Shedding

BEGINNING_SECONDS = 0.5  # a turn that has a thread for so long and has not begun lets the next one begin
RETRY_AFTER_SECONDS = 1  # for what is no turn

BusyAnswer = Callable[[bool, int, int], bytes]
TenantOf = Callable[[str], str | None]
NoteBusy = Callable[[str], None]


class TurnLoop(RequestLoop):
    """Everything here happens in the main loop."""

    def init_process(self) -> None:
        self._shedding, self._most_turns = Shedding(), self.cfg.threads
        self._tenant_of: TenantOf = lambda user: None
        self._make_busy_answer: BusyAnswer = lambda wants_page, most, seconds: b""
        self._note_busy: NoteBusy = lambda tenant: None
        self._busy_answers: dict[tuple[bool, int, int], bytes] = {}  # that were made already
        self._beginning: dict[Connection, None] = {}  # turns that have not begun yet, or still wait
        super().init_process()

    def configure_turns(
        self, most_turns: int, tenant_of: TenantOf, busy_answer: BusyAnswer, note_busy: NoteBusy
    ) -> None:
        """More than ``most_turns`` at once would be refused by the application, so they are refused here.
        ``tenant_of`` gives the tenant of a user whose request is here, if that is known. ``busy_answer`` is
        what a person or a script is told that has met a limit and is to come back in so many seconds;
        ``note_busy`` is told of each, with the tenant.
        """
        self._most_turns, self._tenant_of, self._make_busy_answer = most_turns, tenant_of, busy_answer
        self._note_busy = note_busy

    def add_to_lane(self, connection: Connection, lane: Lane, key: str, part: str, job: Job) -> None:
        connection.is_turn = lane is self.tpool.turns
        if not connection.is_turn:
            super().add_to_lane(connection, lane, key, part, job)
        elif lane.at_work >= self._most_turns and not lane.has_no_thread:
            job.refuse()
        else:
            connection.has_begun, connection.in_thread_since = False, 0.0
            connection.leave_lane = partial(self._leave_turns, connection, key)
            self._beginning[connection] = None
            lane.add(key, job, group=self._tenant_of(key))
            self._shed()

    def note_begun(self, connection: Connection) -> None:
        """A turn has begun. Its thread has told so."""
        if connection in self._beginning:
            self._shedding.note_begun(time.monotonic())
            self._let_next_begin(connection)
            self._shed()

    def _leave_turns(self, connection: Connection, key: str) -> None:
        self._beginning.pop(connection, None)
        self.tpool.turns.done(key, has_begun=connection.has_begun)
        self._shed()

    def _refuse(self, connection: Connection) -> None:
        self._beginning.pop(connection, None)
        super()._refuse(connection)

    def _sweep(self, now: float) -> None:
        self._pass_over_stuck(now)
        self._shed()
        super()._sweep(now)

    def _pass_over_stuck(self, now: float) -> None:
        """A turn that waits for something of its own, as for a row that its tenant has locked, must not keep
        the others from beginning.
        """
        for connection in list(self._beginning):
            if connection.in_thread_since and now - connection.in_thread_since > BEGINNING_SECONDS:
                self._let_next_begin(connection)

    def _let_next_begin(self, connection: Connection) -> None:
        del self._beginning[connection]
        connection.has_begun = True
        self.tpool.turns.begun()

    def _shed(self) -> None:
        """Refuse the turns that have just come and would have to wait too long, or in vain: those at work and
        those that wait are together never more than may run.
        """
        now, turns = time.monotonic(), self.tpool.turns
        most = self._shedding.most_waiting(now)
        if not turns.has_no_thread:
            most = min(most, max(0, self._most_turns - turns.at_work))
        turns.let_wait(most, came_after=now - REFUSED_WITHIN_SECONDS)
        self._shedding.note_waiting(turns.waiting, now)

    def busy_answer(self, connection: Connection) -> bytes:
        self._note_busy(self._tenant_of(connection.user or "") or "")
        most, seconds = PAGES_WAITING, RETRY_AFTER_SECONDS
        if connection.is_turn:
            spread = random()  # noqa: S311 - no secret
            most, seconds = self._most_turns, self._shedding.retry_after(time.monotonic(), spread)
        which = connection.incoming.wants_page, most, seconds
        if which not in self._busy_answers:
            self._busy_answers[which] = self._make_busy_answer(*which)
        return self._busy_answers[which]
