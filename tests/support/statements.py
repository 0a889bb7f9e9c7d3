"""What is sent to databases meanwhile: through SQLAlchemy, and on the driver's own connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from sqlalchemy import Connection, Engine, event

from agentapp.storage.db import Database
from agentapp.storage.statements import DriverConnection

Note = Callable[
    [str, Any], object
]  # the statement, and its parameters; those of the first row if there are many


@contextmanager
def statements_noted(note: Note, db: Database | None = None, *, after: bool = False) -> Iterator[None]:
    """Each statement before it is sent, or ``after`` it was; those of one database, or of all. What migrates
    a database is left out.
    """
    engines = None if db is None else (db.engine, db.writing_engine)
    send, send_many = DriverConnection.run_text, DriverConnection.run_many
    send_later = DriverConnection.run_text_later

    def of_sqlalchemy(
        conn: Connection, cursor: Any, text: str, values: Any, context: Any, many: bool
    ) -> None:
        if conn.get_execution_options().get("agentapp_migrates"):
            return
        if engines is None or conn.engine in engines:
            note(text, values[0] if many else values)

    def run_text(connection: DriverConnection, text: str, parameters: Any = ()) -> Any:
        concerns = db is None or connection._statements is db._statements
        if concerns and not after:
            note(text, parameters)
        sent = send(connection, text, parameters)
        if concerns and after:
            note(text, parameters)
        return sent

    def run_text_later(connection: DriverConnection, text: str, parameters: Any) -> None:
        """On SQLite it is sent with others; on PostgreSQL at once, by the method above."""
        concerns = db is None or connection._statements is db._statements
        if concerns and connection._together is not None:
            note(text, parameters)
        send_later(connection, text, parameters)

    def run_many(connection: DriverConnection, statement: Any, values: Any) -> None:
        compiled = connection._statements.get(statement)
        if db is None or connection._statements is db._statements:
            note(compiled.text, compiled.parameters(values[0]))
        send_many(connection, statement, values)

    moment = "after_cursor_execute" if after else "before_cursor_execute"
    event.listen(Engine, moment, of_sqlalchemy)
    try:
        with mock.patch.multiple(
            DriverConnection, run_text=run_text, run_many=run_many, run_text_later=run_text_later
        ):
            yield
    finally:
        event.remove(Engine, moment, of_sqlalchemy)
