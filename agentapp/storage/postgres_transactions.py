"""Transactions and single statements on the driver's own connections to PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, PoolProxiedConnection
from sqlalchemy.orm import Session

from agentapp.storage.postgres_connector import PostgresConnector
from agentapp.storage.statements import CompiledStatements, DriverConnection


class PostgresTransactions:
    def __init__(self, engine: Engine, connector: PostgresConnector, statements: CompiledStatements) -> None:
        self._engine, self._connector, self._statements = engine, connector, statements

    @contextmanager
    def begun(self, on_begin: Callable[[], object] = lambda: None) -> Iterator[DriverConnection]:
        """A transaction. Its statements go to the server together as far as nobody asks for their results."""
        with self._lent() as connection, self._transaction(connection, on_begin):
            yield connection

    @contextmanager
    def looking(self) -> Iterator[DriverConnection]:
        """For statements that only read, each by itself; in one transaction if that brings settings along."""
        with self._lent() as connection:
            if self._connector.local_settings() is None:
                yield connection
            else:
                with self._transaction(connection):
                    yield connection

    @staticmethod
    def can_go_on(reader: Session) -> bool:
        """Not after a statement that failed, or on a connection that broke."""
        connection = reader.connection()
        return not connection.invalidated and connection.connection.dbapi_connection.can_go_on()  # type: ignore[union-attr]

    @contextmanager
    def looking_with(self, reader: Session) -> Iterator[DriverConnection]:
        """The same on the connection of a transaction that SQLAlchemy has begun."""
        raw = reader.connection().connection.dbapi_connection
        try:
            yield DriverConnection(raw, self._statements)
        except self._error_of_driver as error:
            self._statements.translate(error)

    @contextmanager
    def _transaction(
        self, connection: DriverConnection, on_begin: Callable[[], object] = lambda: None
    ) -> Iterator[None]:
        raw = connection.driver
        try:
            with raw.pipeline():
                connection.run_text("BEGIN")
                if (settings := self._connector.local_settings()) is not None:
                    connection.run_text(settings)
                on_begin()
                yield
                connection.run_text("COMMIT")
        except BaseException:
            if not raw.closed:
                connection.run_text("ROLLBACK")
            raise

    @contextmanager
    def _lent(self) -> Iterator[DriverConnection]:
        with self._borrowed() as borrowed, _in_our_own_words(borrowed.dbapi_connection):
            yield DriverConnection(borrowed.dbapi_connection, self._statements)

    @contextmanager
    def _borrowed(self) -> Iterator[PoolProxiedConnection]:
        """A connection of the pool. If it broke, it does not go back to it."""
        borrowed = None
        try:
            borrowed = self._engine.raw_connection()
            yield borrowed
        except self._error_of_driver as error:
            if borrowed is not None and getattr(borrowed.dbapi_connection, "closed", False):
                borrowed.invalidate(error)
            self._statements.translate(error)
        finally:
            if borrowed is not None:
                borrowed.close()

    @property
    def _error_of_driver(self) -> type[Exception]:
        error: type[Exception] = self._engine.dialect.loaded_dbapi.Error
        return error


@contextmanager
def _in_our_own_words(connection: Any) -> Iterator[None]:
    """A transaction is begun and ended only by statements of ours, or there is none. PostgreSQL's driver
    would ask the server to begin one, and again to end it, and wait for the answer each time.
    """
    connection.autocommit = True
    try:
        yield
    finally:
        if not connection.closed:
            connection.autocommit = False
