"""PostgreSQL's driver, with a limit to how long it waits for the server. Imported only if PostgreSQL is used.

The driver itself waits for ever. The server's own time-outs are no help when it is the server that hangs, nor
are those of TCP while its kernel still acknowledges what it gets.
"""

from __future__ import annotations

import select
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from agentapp.storage.hang_watch import HANGS, HangWatch

T = TypeVar("T")

# As the driver says what it waits for, and what has come; that is 0 if nothing has for a moment.
READABLE, WRITABLE = 1, 2


class GuardedConnection(psycopg.Connection[Any]):
    """One whose call has timed out is closed: otherwise the late answer would be taken for that of the next
    call, which may be another person's.
    """

    watch: HangWatch | None = None
    # Of silence while an answer is due. More than the server gives itself for a statement; None is no limit.
    most_silent_seconds: float | None = None
    opened_pipeline: psycopg.Pipeline | None = None

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **options: Any) -> T:
        """Everything that the driver sends and receives goes through here."""
        return super().wait(self._guarded(gen), *args, **options)

    @contextmanager
    def pipeline(self) -> Iterator[psycopg.Pipeline]:
        with super().pipeline() as opened:
            before, self.opened_pipeline = self.opened_pipeline, opened
            try:
                yield opened
            finally:
                self.opened_pipeline = before

    def can_go_on(self) -> bool:
        """Whether the next statement will be run: no earlier one of the transaction has failed."""
        return self.pgconn.transaction_status in (TransactionStatus.IDLE, TransactionStatus.INTRANS)

    def _guarded(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """The driver resumes its generators when something can be read or written, and ten times a second."""
        try:
            wanted = next(gen)
            since = time.monotonic()
            while True:
                ready = yield from self._ready(wanted)
                if not ready:
                    self._check_silence(time.monotonic() - since)
                elif ready & READABLE:
                    since = time.monotonic()
                    if self.watch is not None:
                        self.watch.answered()
                wanted = gen.send(ready)
        except StopIteration as done:
            found: T = done.value
            return found

    def _ready(self, wanted: Any) -> Generator[Any, Any, Any]:
        """The driver waits for an answer also when not all of the question fitted into the socket. Then the
        server waits for the rest of it, and both would wait for ever.
        """
        while wanted == READABLE and self.pgconn.flush():
            ready = yield READABLE | WRITABLE
            if ready != WRITABLE:
                return ready & READABLE
        ready = yield wanted
        return ready

    def _check_silence(self, seconds: float) -> None:
        most, watch = self.most_silent_seconds, self.watch
        if watch is not None:
            watch.waits(seconds)
        is_over = (most is not None and seconds > most) or (watch is not None and watch.hangs)
        # This process itself may have been stopped for a while: then the answer is here.
        if is_over and not self._has_come():
            self.close()
            raise psycopg.OperationalError(HANGS)

    def _has_come(self) -> bool:
        answer = select.poll()
        answer.register(self.pgconn.socket, select.POLLIN)
        return bool(answer.poll(0))


class PipelineCursor(psycopg.Cursor[Any]):
    """Asking for a result in the middle of a pipeline ends a group of statements, and does not only flush
    them. It is the same round trip. But between two groups PostgreSQL counts for how long a transaction is
    idle; in the middle of one it does not, and a process that is stopped there would keep its rows locked.
    """

    def fetchone(self) -> Any:
        self._end_group()
        return super().fetchone()

    def fetchall(self) -> list[Any]:
        self._end_group()
        return super().fetchall()

    def __iter__(self) -> PipelineCursor:
        self._end_group()
        return super().__iter__()

    def _end_group(self) -> None:
        pipeline = getattr(self.connection, "opened_pipeline", None)
        if pipeline is not None and self.pgresult is None:
            pipeline.sync()
