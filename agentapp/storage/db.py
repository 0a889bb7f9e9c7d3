"""The database: one engine per process, a db per request for reading, short transactions for writing."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any

from sqlalchemy import Engine, exc
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from agentapp.errors import NotBound
from agentapp.isolation import Binder
from agentapp.storage.clock import CLOCK, DatabaseClock
from agentapp.storage.disk import Disk
from agentapp.storage.engines import (
    KEPT_SQLITE_CONNECTIONS,
    POSTGRES_WRITERS,
    QUEUE_WAIT_SECONDS,
    begin_writing,
    make_engine,
    make_postgres_engine,
    make_sqlite_writer,
)
from agentapp.storage.holders import ConnectionHolders
from agentapp.storage.kept_connections import KeptConnections
from agentapp.storage.postgres_connector import PostgresConnector
from agentapp.storage.postgres_options import PostgresOptions
from agentapp.storage.postgres_transactions import PostgresTransactions
from agentapp.storage.statements import CompiledStatements, DriverConnection, Row, Statement, Values
from agentapp.storage.time_limit import limit_statements
from agentapp.storage.translated_errors import translating_errors
from agentapp.storage.write_permits import Shares, WritePermits
from agentapp.storage.write_token import WriteToken
from agentapp.telemetry import NullTelemetry, Telemetry, Wait


class Database:
    """Nothing is opened until the first query, so it may be made before a fork and used after it.

    ``reading()`` gives the db of the scope that is bound on this thread. Another thread of the same
    request gets a db of its own, because two threads must never use one at once. It is removed when
    the binding ends. With ``statement_seconds``, a statement that takes longer is a `StatementTimeout`.
    ``disk_reserve`` is how many bytes of the disk are for what has begun: see `Disk`.
    """

    def __init__(
        self,
        url: str,
        binder: Binder,
        statement_seconds: float | None = None,
        disk_reserve: int | None = None,
        telemetry: Telemetry | None = None,
        postgres: PostgresOptions | None = None,
    ) -> None:
        is_sqlite = url.startswith("sqlite")
        self.connector: PostgresConnector | None = None
        if is_sqlite:
            self.engine = make_engine(url)
        else:
            options = postgres or PostgresOptions(statement_seconds=statement_seconds)
            self.engine, self.connector = make_postgres_engine(url, options)
        self.write_token = WriteToken()
        self.writing_engine = make_sqlite_writer(url, self.write_token) if is_sqlite else self.engine
        self.disk = Disk(self.engine.url.database if is_sqlite else None, disk_reserve)
        if is_sqlite and statement_seconds is not None:
            for engine in (self.engine, self.writing_engine):
                limit_statements(engine, statement_seconds)
        self.clock = DatabaseClock.of(self.engine, self.looking)
        self._telemetry = telemetry or NullTelemetry()
        self._binder, self._holders = binder, ConnectionHolders(binder)
        for engine in {self.engine, self.writing_engine}:
            self._holders.watch(engine)
        # For the hot statements, on the driver's own connections.
        self._kept_readers = self._kept(self.engine, KEPT_SQLITE_CONNECTIONS) if is_sqlite else None
        self._kept_writers = self._kept(self.writing_engine, 1) if is_sqlite else None
        self._statements = CompiledStatements(self.engine.dialect, self.clock)
        if self.connector is not None:
            self._postgres = PostgresTransactions(self.engine, self.connector, self._statements)
        info = {CLOCK: self.clock}
        self._readers = scoped_session(sessionmaker(self.engine, info=info), scopefunc=self._reader_key)
        self._writers = sessionmaker(self.writing_engine, info=info)
        # SQLite lets one writer in at a time. To wait for it in SQLite's own busy loop is slow and unfair,
        # so one lock for the whole process stands in front of it and keeps the queue short and in order.
        # PostgreSQL has no such limit; but see there. It also leaves connections for requests that only read.
        writers_at_once = 1 if is_sqlite else POSTGRES_WRITERS
        self._write_permits = WritePermits(writers_at_once)
        self._shares = None if is_sqlite else Shares(POSTGRES_WRITERS - 1)
        binder.at_release(self.release)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """The scope's own db. It keeps its connection until `release`."""
        self._require_answers()
        with translating_errors(self.disk):
            yield self._readers()

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """One short write transaction: committed at the end, rolled back on any error.

        The scope's reading connection is given back first. If every thread kept one while it waited
        for a second, the pool would run empty and all of them would wait for ever.
        """
        self.release()
        self._require_answers()
        with self._wait_observed() as wait, self._permit(), translating_errors(self.disk):
            try:
                with self._writers.begin() as db:
                    db.connection()  # now it begins
                    wait.end()
                    yield db
            finally:
                self.write_token.give_back()

    def transaction(
        self, tenant: str | None = None, *, urgent: bool = False
    ) -> AbstractContextManager[DriverConnection]:
        """The same on the driver's own connection, for statements that are compiled once. One that is
        ``urgent`` goes before all others of this process that wait. If it may wait for a row of a ``tenant``,
        those of that tenant leave a writer for the others.

        On PostgreSQL the statements go to the server together as far as nobody asks for their results. So an
        error may be raised by a later one, or at the end.
        """
        if self._kept_writers is not None:
            return self._sqlite_transaction(self._kept_writers, urgent=urgent)
        return self._postgres_transaction(tenant, urgent=urgent)

    def looking(self) -> AbstractContextManager[DriverConnection]:
        """A connection for statements that only read, each by itself. It takes no part in the scope's db, and
        must be given back soon.
        """
        if self._kept_readers is not None:
            return self._looking_in_sqlite(self._kept_readers)
        return self._looking_in_postgres()

    def look(self, statement: Statement, values: Values) -> list[Row]:
        with self.looking() as db:
            return db.run(statement, values).all()

    def compile(self, statements: Iterable[Statement]) -> None:
        """Have them ready before they are run for the first time."""
        self._statements.compile(statements)

    def release(self) -> None:
        """Give the bound scope's connection back, at the end of every binding and before every write."""
        try:
            has_reader = self._readers.registry.has()
        except NotBound:
            return
        if has_reader:
            self._readers.remove()

    def close(self) -> None:
        """Close the connections that are not in use."""
        for kept in (self._kept_readers, self._kept_writers):
            if kept is not None:
                kept.close()
        if self.connector is not None:
            self.connector.watch.close()
        self.engine.dispose()
        self.writing_engine.dispose()

    @contextmanager
    def maintaining(self) -> Iterator[Any]:
        """A driver's connection of its own, in no transaction and without a limit on statements, for what is
        done to the whole database. On SQLite nobody else of this process writes meanwhile.
        """
        self.release()
        engine = make_engine(self.engine.url.render_as_string(hide_password=False))
        alone = nullcontext() if self._kept_writers is None else self._permit()
        with alone, translating_errors(self.disk), closing(engine.raw_connection()) as borrowed:
            connection: Any = borrowed.dbapi_connection
            if self._kept_writers is None:
                connection.autocommit = True
            try:
                yield connection
            except self._driver_error as error:
                self._statements.translate(error)
            finally:
                borrowed.detach()  # it is closed, and does not go back to the pool

    def open_readers(self) -> int:
        """How many request-scoped db sessions are open. If some leak, this number grows."""
        return len(self._readers.registry.registry)

    def share_writing(self, pipe: tuple[int, int]) -> None:
        """With the other workers, to which the same pipe was given: see `write_token`."""
        if self._kept_writers is not None:
            self.write_token.join(pipe)

    def close_left(self, request_id: str) -> int:
        """The request is over on this thread: take away the connections that it still has. How many there
        were.
        """
        left = self._readers.registry.registry.pop((request_id, threading.get_ident()), None)
        if left is not None:
            left.close()
        return (left is not None) + self._holders.close_left(request_id)

    def _kept(self, engine: Engine, most_idle: int) -> KeptConnections:
        return KeptConnections(engine, most_idle, self._holders)

    def connections_in_use(self) -> int:
        pools: Any = {self.engine.pool, self.writing_engine.pool}
        kept = [each for each in (self._kept_readers, self._kept_writers) if each is not None]
        in_use: int = sum(pool.checkedout() for pool in pools) + sum(each.taken for each in kept)
        return in_use

    @contextmanager
    def _wait_observed(self) -> Iterator[Wait]:
        wait = Wait()
        try:
            yield wait
        finally:
            self._observe(wait)

    def _observe(self, wait: Wait) -> None:
        """After the transaction, so that nobody waits for this too."""
        self._telemetry.observe("writer_wait_seconds", wait.seconds)

    def _share_of(self, tenant: str | None) -> AbstractContextManager[None]:
        if self._shares is None or tenant is None:
            return nullcontext()
        return self._shares.held(tenant, QUEUE_WAIT_SECONDS)

    def _permit(self, *, urgent: bool = False) -> AbstractContextManager[None]:
        return self._write_permits.held(QUEUE_WAIT_SECONDS, urgent=urgent)

    @contextmanager
    def _sqlite_transaction(self, kept: KeptConnections, *, urgent: bool) -> Iterator[DriverConnection]:
        """Every turn comes here twice, so there are no context managers within each other."""
        self.release()
        wait = Wait()
        try:
            self._write_permits.take(QUEUE_WAIT_SECONDS, urgent=urgent)
        except BaseException:
            self._observe(wait)
            raise
        taken = None
        try:
            taken = kept.take()
            connection = DriverConnection(taken.driver, self._statements, taken.clock, taken.together)
            begin_writing(taken.driver.cursor(), self.write_token)
            wait.end()
            try:
                yield connection
                connection.run_text("COMMIT")
            finally:
                connection.close_results()
            taken.together.learn(taken.driver)
        except (sqlite3.Error, exc.SQLAlchemyError) as error:
            raise self._translated(error) from error
        finally:
            try:
                if taken is not None:
                    kept.give_back(taken)
                self.write_token.give_back()
            finally:
                self._write_permits.give_back()
                self._observe(wait)

    @contextmanager
    def _looking_in_sqlite(self, kept: KeptConnections) -> Iterator[DriverConnection]:
        taken = None
        try:
            taken = kept.take()
            yield DriverConnection(taken.driver, self._statements, taken.clock)
        except (sqlite3.Error, exc.SQLAlchemyError) as error:
            raise self._translated(error) from error
        finally:
            if taken is not None:
                kept.give_back(taken)

    def _translated(self, error: sqlite3.Error | exc.SQLAlchemyError) -> Exception:
        """As SQLAlchemy would have raised it, and then as we do."""
        try:
            with translating_errors(self.disk):
                if isinstance(error, sqlite3.Error):
                    self._statements.translate(error)
                raise error
        except Exception as translated:
            return translated

    @contextmanager
    def _postgres_transaction(self, tenant: str | None, *, urgent: bool) -> Iterator[DriverConnection]:
        self.release()
        self._require_answers()
        with (
            self._wait_observed() as wait,
            self._share_of(tenant),
            self._permit(urgent=urgent),
            translating_errors(self.disk),
            self._postgres.begun(wait.end) as connection,
        ):
            yield connection

    @contextmanager
    def _looking_in_postgres(self) -> Iterator[DriverConnection]:
        """On the connection that the scope reads with on this thread, if it has one: if all threads of a full
        pool kept one and waited for a second, all of them would wait for ever.
        """
        self._require_answers()
        reader = self._open_reader()
        with translating_errors(self.disk):
            looking = self._postgres.looking() if reader is None else self._postgres.looking_with(reader)
            with looking as connection:
                yield connection

    def _open_reader(self) -> Session | None:
        if self._binder.bound_now() is None or not self._readers.registry.has():
            return None
        reader = self._readers()
        if reader.in_transaction() and self._postgres.can_go_on(reader):
            return reader
        self.release()
        return None

    def _require_answers(self) -> None:
        """Nobody waits for a database that hangs."""
        if self.connector is not None:
            self.connector.watch.require_answers()

    @property
    def _driver_error(self) -> type[Exception]:
        error: type[Exception] = self.engine.dialect.loaded_dbapi.Error
        return error

    def _reader_key(self) -> tuple[str, int]:
        return self._binder.current().request_id, threading.get_ident()
