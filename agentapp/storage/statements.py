"""Statements that SQLAlchemy compiles once, and that are then run on the driver's own cursor.

Around a statement SQLAlchemy spends ten times what the database takes for it. Every turn and every page runs
the same few dozen statements, so these are built and compiled when their store is made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sqlalchemy import Dialect, Executable, exc

from agentapp.storage.clock import DatabaseClock
from agentapp.storage.time_limit import StatementClock
from agentapp.storage.together import Together

Row = tuple[Any, ...]
Values = Mapping[str, object]
_Process = Callable[[Any], Any] | None


@dataclass(frozen=True, slots=True, eq=False)
class Statement:
    """A statement with named parameters. The ``columns`` of an INSERT or UPDATE are parameters too, with the
    names of the columns; without any, those that its ``values`` name are set.
    """

    built: Executable
    columns: tuple[str, ...] | None = None


class CompiledStatement:
    """A statement in the words of one database, with what its values go through on the way in and out."""

    def __init__(self, statement: Statement, dialect: Dialect) -> None:
        built: Any = statement.built
        columns = None if statement.columns is None else list(statement.columns)
        compiled = built.compile(dialect=dialect, column_keys=columns)
        self.text: str = compiled.string
        self._names: list[str] | None = compiled.positiontup if compiled.positional else None
        binds = {name: bind for bind, name in compiled.bind_names.items()}
        self._processes = {
            name: process
            for name, bind in binds.items()
            if (process := bind.type.dialect_impl(dialect).bind_processor(dialect)) is not None
        }
        # Such as the word "running" in a condition: what was given a value when the statement was built.
        self._constants = {
            name: self._sent(name, bind.value) for name, bind in binds.items() if not bind.required
        }
        self._row = _row_processes(built, dialect)

    def parameters(self, values: Values) -> Any:
        """In the form that the driver takes. It takes a tuple of all, or a dict that may hold others too."""
        sent = {**self._constants, **values}
        for name, process in self._processes.items():
            if name in values:
                sent[name] = process(values[name])
        return sent if self._names is None else tuple([sent[name] for name in self._names])

    def rows(self, found: list[Row]) -> list[Row]:
        if self._row is None:
            return found
        return [self._received(row, self._row) for row in found]

    @staticmethod
    def _received(row: Row, processes: list[_Process]) -> Row:
        pairs = zip(row, processes, strict=True)
        return tuple([value if process is None else process(value) for value, process in pairs])

    def _sent(self, name: str, value: Any) -> Any:
        process = self._processes.get(name)
        return value if process is None else process(value)


class CompiledStatements:
    """Those of one database. A statement that was not compiled before is compiled when it is first used."""

    def __init__(self, dialect: Dialect, clock: DatabaseClock | None = None) -> None:
        self.dialect, self.clock = dialect, clock or DatabaseClock()
        self._compiled: dict[Statement, CompiledStatement] = {}
        self._lock = threading.Lock()

    def compile(self, statements: Iterable[Statement]) -> None:
        for statement in statements:
            self.get(statement)

    def get(self, statement: Statement) -> CompiledStatement:
        found = self._compiled.get(statement)
        if found is None:
            found = CompiledStatement(statement, self.dialect)
            with self._lock:
                self._compiled[statement] = found
        return found

    def translate(self, error: Exception) -> NoReturn:
        """Raise the driver's error as SQLAlchemy would have raised it, without the parameters: these are what
        people wrote.
        """
        base = self.dialect.loaded_dbapi.Error
        raise exc.DBAPIError.instance(
            None, None, error, base, hide_parameters=True, dialect=self.dialect
        ) from error


class Result:
    """What a statement gave. On PostgreSQL, statements that were run before their results are asked for go to
    the server together: only asking waits for it.
    """

    __slots__ = ("_compiled", "_cursor")

    def __init__(self, compiled: CompiledStatement, cursor: Any) -> None:
        self._compiled, self._cursor = compiled, cursor

    def all(self) -> list[Row]:
        return self._compiled.rows(self._cursor.fetchall())

    def close(self) -> None:
        self._cursor.close()

    def first(self) -> Row | None:
        found = self.all()
        return found[0] if found else None

    def scalar(self) -> Any:
        found = self.first()
        return None if found is None else found[0]


class DriverConnection:
    """A connection of the driver, for as long as it is borrowed from the pool."""

    def __init__(
        self,
        connection: Any,
        statements: CompiledStatements,
        clock: StatementClock | None = None,
        together: Together | None = None,
    ) -> None:
        self._connection, self._statements, self._clock = connection, statements, clock
        self._results: list[Result] = []
        self._together = together
        self._later: list[tuple[str, Sequence[object]]] = []  # statements that were not run yet

    @property
    def driver(self) -> Any:
        return self._connection

    @property
    def dialect(self) -> str:
        return self._statements.dialect.name

    @property
    def clock(self) -> DatabaseClock:
        return self._statements.clock

    def run(self, statement: Statement, values: Values) -> Result:
        compiled = self._statements.get(statement)
        result = Result(compiled, self.run_text(compiled.text, compiled.parameters(values)))
        self._results.append(result)
        return result

    def run_later(self, statement: Statement, values: Values) -> None:
        """The same for a statement whose result nobody needs. Such are run together, before the next one of
        which it is needed, or at the end of the transaction. So an error may be raised by a later one.
        """
        compiled = self._statements.get(statement)
        self.run_text_later(compiled.text, compiled.parameters(values))

    def run_text_later(self, text: str, parameters: Sequence[object]) -> None:
        if self._together is None:
            self.run_text(text, parameters)  # on PostgreSQL the pipeline does it
        else:
            self._later.append((text, parameters))

    def close_results(self) -> None:
        """One that nobody has read to its end keeps SQLite reading. And if its cursor is let go of only when
        others use the connection, the driver may take the error of their statement for none.
        """
        for result in self._results:
            result.close()

    def run_many(self, statement: Statement, values: Sequence[Values]) -> None:
        compiled = self._statements.get(statement)
        self._run_those_left()
        self._start_clock()
        self._connection.cursor().executemany(compiled.text, [compiled.parameters(each) for each in values])

    def run_text(self, text: str, parameters: Any = ()) -> Any:
        """For a statement in the database's own words. Gives the driver's cursor."""
        self._run_those_left()
        self._start_clock()
        return self._connection.execute(text, parameters)

    def _run_those_left(self) -> None:
        if self._later and self._together is not None:
            later, self._later = self._later, []
            self._start_clock()
            self._together.run(self._connection, later)

    def _start_clock(self) -> None:
        if self._clock is not None:
            self._clock.start()


def _row_processes(built: Any, dialect: Dialect) -> list[_Process] | None:
    """None if the values of a row can be taken as the driver gives them."""
    columns = getattr(built, "exported_columns", ())
    processes = [column.type.dialect_impl(dialect).result_processor(dialect, None) for column in columns]
    return processes if any(processes) else None
