"""Connections to SQLite that stay open between two uses.

SQLAlchemy's pool makes them and then has nothing to do with them any more: to take one from the pool and to
give it back takes longer than most statements.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import cast

from sqlalchemy import Engine, PoolProxiedConnection

from agentapp.storage.holders import ConnectionHolders
from agentapp.storage.time_limit import StatementClock
from agentapp.storage.together import Together


class KeptConnection:
    """One of them, with what is known about it."""

    def __init__(self, made: PoolProxiedConnection) -> None:
        made.detach()  # from now on the pool neither lends it nor has it back
        self._made = made
        self.driver = cast(sqlite3.Connection, made.dbapi_connection)
        self.clock: StatementClock | None = made.info.get("statement_clock")
        self.together = Together()
        self.pid = os.getpid()

    def close(self) -> None:
        self._made.close()


class KeptConnections:  # agentapp: shared ok - each change of the list and of the set is atomic
    """Those of one engine. Whoever takes one has it alone. Those used last are used first: they have the
    statements and the pages of the file in memory.
    """

    def __init__(self, engine: Engine, most_idle: int, holders: ConnectionHolders) -> None:
        self._engine, self._most_idle, self._holders = engine, most_idle, holders
        self._idle: list[KeptConnection] = []
        self._taken: set[KeptConnection] = set()

    @property
    def taken(self) -> int:
        return len(self._taken)

    def take(self) -> KeptConnection:
        found = self._idle_one() or KeptConnection(self._engine.raw_connection())
        self._taken.add(found)
        self._holders.note(found, found.close)
        return found

    def _idle_one(self) -> KeptConnection | None:
        while self._idle:
            with suppress(IndexError):  # another thread was quicker
                found = self._idle.pop()
                if found.pid == os.getpid():  # else it was opened before a fork, and is the parent's
                    return found
        return None

    def give_back(self, connection: KeptConnection) -> None:
        """What was begun and not committed is rolled back."""
        self._taken.discard(connection)
        self._holders.forget(connection)
        try:
            if connection.driver.in_transaction:
                connection.driver.rollback()
        except sqlite3.Error:
            connection.close()
        else:
            if len(self._idle) < self._most_idle:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        """Those that nobody has taken."""
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()
