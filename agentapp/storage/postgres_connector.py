"""Opens connections to PostgreSQL, directly or through a pooler such as PgBouncer.

A pooler that shares connections between transactions gives each transaction another one. What is set for a
session would be somebody else's then, and a statement that was prepared is not there the next time. So there
nothing is prepared, and each transaction brings its settings along.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, event

from agentapp.storage.hang_watch import HANGS, HangWatch
from agentapp.storage.postgres_options import (
    CONNECT_SECONDS,
    PostgresOptions,
    in_startup_message,
    statement_seconds,
)

if TYPE_CHECKING:
    from agentapp.storage.guarded_connection import GuardedConnection

PROBE_SECONDS = 2  # to connect, and as long again for the answer
# The server ends a statement by itself. Only if it has not been heard of for so long after that, we do.
SECONDS_BEYOND_A_STATEMENT = 2.0
REFUSES_OPTIONS = "unsupported startup parameter"

log = logging.getLogger(__name__)


class PostgresConnector:
    """Of one engine. ``is_pooled`` is None until a connection was made, if it is to be found out."""

    def __init__(self, engine: Engine, options: PostgresOptions) -> None:
        self._engine, self._options = engine, options
        self._local_settings = _setting_locally(self._settings_of_ours())
        self.is_pooled = {"1": True, "0": False}.get(options.pgbouncer)
        self.watch = HangWatch(self._can_answer)
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "checkout", self._refuse_while_it_hangs)
        event.listen(engine, "begin", self._bring_settings)

    def local_settings(self) -> str | None:
        """What a transaction begins with, if a pooler is between. It is a statement that lasts until the
        transaction ends.
        """
        return self._local_settings if self.is_pooled else None

    def open_for_check(self, seconds: int) -> GuardedConnection:
        """One that is not of the pool, and that gives up after so many seconds without an answer."""
        _, parameters = self._engine.dialect.create_connect_args(self._engine.url)
        made = self._open({**parameters, "connect_timeout": seconds})
        made.most_silent_seconds = seconds
        made.autocommit = True
        return made

    def _connect(self, dialect: object, record: object, args: object, parameters: dict[str, Any]) -> Any:
        if self.watch.hangs:
            self._raise_hangs()
        try:
            made = self._open(parameters)
        except self._driver.errors.ConnectionTimeout:
            self.watch.waits(float("inf"))
            raise
        self.watch.answered()
        made.most_silent_seconds = None
        if self._options.statement_seconds:  # else a migration, or the like, which may take its time
            made.watch = self.watch
            if limit := statement_seconds(self._startup_options(parameters)):
                made.most_silent_seconds = limit + SECONDS_BEYOND_A_STATEMENT
        return made

    def _open(self, parameters: Mapping[str, Any]) -> GuardedConnection:
        """Without a watch: who looks whether it hangs must not ask whether it hangs."""
        try:
            made = self._open_once(parameters)
        except self._driver.OperationalError as error:
            if self._options.pgbouncer == "0" or REFUSES_OPTIONS not in str(error):
                raise
            self._note_pooler(True)  # another thread may have done so meanwhile
            made = self._open_once(parameters)
        if self.is_pooled is None:
            # A pooler tells each client another number than that of the process that answers.
            ((pid,),) = made.execute("SELECT pg_backend_pid()").fetchall()
            made.rollback()
            self._note_pooler(pid != made.info.backend_pid)
        if self.is_pooled:
            made.prepare_threshold = None
        return made

    def _open_once(self, parameters: Mapping[str, Any]) -> GuardedConnection:
        from agentapp.storage.guarded_connection import GuardedConnection, PipelineCursor

        given = {**self._options.of_client(), **parameters}
        if not self.is_pooled and (options := self._startup_options(parameters)):
            given["options"] = options
        made = GuardedConnection.connect(**given, cursor_factory=PipelineCursor)
        made.most_silent_seconds = CONNECT_SECONDS  # until it is ready for use
        return made

    def _startup_options(self, parameters: Mapping[str, Any]) -> str:
        return in_startup_message(self._options.of_server(), parameters.get("options"))

    def _settings_of_ours(self) -> Mapping[str, str]:
        """But for those that the URL has."""
        _, parameters = self._engine.dialect.create_connect_args(self._engine.url)
        theirs = parameters.get("options", "")
        return {name: value for name, value in self._options.of_server().items() if f"{name}=" not in theirs}

    def _note_pooler(self, is_pooled: bool) -> None:
        self.is_pooled = is_pooled
        if is_pooled:
            log.info(
                "PostgreSQL is behind a pooler: nothing is prepared there, settings go with transactions"
            )

    def _can_answer(self) -> bool:
        """Whether a new connection gets an answer. A refusal is one too: then nobody waits in vain."""
        try:
            connection = self.open_for_check(PROBE_SECONDS)
        except self._driver.errors.ConnectionTimeout:
            return False
        except self._driver.Error as error:
            return HANGS not in str(error)
        try:
            connection.execute("SELECT 1")
        except self._driver.Error as error:
            return HANGS not in str(error)
        finally:
            connection.close()
        return True

    def _refuse_while_it_hangs(self, connection: Any, record: object, proxy: object) -> None:
        if self.watch.hangs:
            self._raise_hangs()

    def _raise_hangs(self) -> None:
        raise self._driver.OperationalError(HANGS)

    def _bring_settings(self, connection: Any) -> None:
        """SQLAlchemy's own transactions. Ours: see `postgres_transactions`."""
        settings = self.local_settings()
        if settings is not None and not connection.get_execution_options().get("agentapp_migrates"):
            raw = connection.connection.dbapi_connection
            with raw.pipeline():  # together with the BEGIN that the driver sends first
                raw.execute(settings)

    @property
    def _driver(self) -> Any:
        return self._engine.dialect.loaded_dbapi


def _setting_locally(settings: Mapping[str, str]) -> str | None:
    calls = [f"set_config('{name}', '{value}', true)" for name, value in settings.items()]
    return f"SELECT {', '.join(calls)}" if calls else None
