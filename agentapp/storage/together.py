"""Several statements as one call of SQLite's driver, as PostgreSQL's pipeline does it over the network.

Around each call the driver gives way to the other threads, and with many of them at work it takes long to get
back, while all who write wait. A trigger does its statements in one call. So the statements of a transaction
whose results nobody needs become the trigger of a view, which is there for this one connection only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

MOST_KNOWN = 64  # There are a dozen. Others are run one by one.


class Together:
    """What one connection knows to do at once: sequences of statements that it has run before."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], str] = {}
        self._wanted: tuple[str, ...] | None = None

    def run(self, connection: sqlite3.Connection, statements: Sequence[tuple[str, Sequence[object]]]) -> None:
        """Run them in this order. A sequence that is new is run one by one, and is known next time."""
        texts = tuple(text for text, _ in statements)
        insert = self._known.get(texts)
        if insert is not None:
            connection.execute(insert, [value for _, values in statements for value in values])
            return
        for text, values in statements:
            connection.execute(text, values)
        if len(statements) > 1 and len(self._known) < MOST_KNOWN:
            self._wanted = texts

    def learn(self, connection: sqlite3.Connection) -> None:
        """To be called after a transaction: what is made within one may be gone again. It never fails: what
        cannot be learnt is run one by one for ever.
        """
        texts, self._wanted = self._wanted, None
        if texts is not None:
            with suppress(sqlite3.Error):
                self._known[texts] = _made(connection, texts, f"together_{len(self._known)}")


def _made(connection: sqlite3.Connection, texts: Sequence[str], name: str) -> str:
    """Make the view and its trigger. Gives the statement that runs it."""
    number = count()
    body = "".join(f"{_with_columns(text, number)};\n" for text in texts)
    columns = [f"c{n}" for n in range(next(number))]
    nothing = ", ".join(["NULL"] * len(columns))
    connection.execute(f"CREATE TEMP VIEW {name} ({', '.join(columns)}) AS SELECT {nothing}")
    connection.execute(f"CREATE TEMP TRIGGER run_{name} INSTEAD OF INSERT ON {name} BEGIN\n{body}END")
    return f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})"  # noqa: S608 - names of our own


def _with_columns(text: str, number: count[int]) -> str:
    """The statement with the next columns of the view in the place of its parameters."""
    first, *rest = text.split("?")
    return first + "".join(f"NEW.c{next(number)}{piece}" for piece in rest)
