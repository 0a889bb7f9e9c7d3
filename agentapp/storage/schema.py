"""Whether the database has the schema that this code needs, and the lock under which it is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, exc, inspect, text

from agentapp.errors import SettingError, StartError, StorageUnavailable
from agentapp.storage.away import is_away
from agentapp.storage.engines import make_engine

# The newest revision in migrations/versions. It is written here, so that a worker can compare it without
# loading alembic, and a test checks it. Revisions are numbered: an older one sorts before a newer one.
HEAD = "0011"

MISSING = "the database has no tables yet: run `agentapp db upgrade`"
NO_FULL_TEXT = (
    "this Python's SQLite was built without FTS5, which the search needs: "
    "use another build of Python or SQLite, or PostgreSQL (AGENTAPP_DATABASE_URL)"
)

# The process that migrates PostgreSQL holds the lock with this key. Any number will do, as long as it never
# changes: an older and a newer agentapp must ask for the same lock.
_MIGRATION_LOCK_KEY = 4_201_973_865_170_112
_MIGRATION_WAIT_SECONDS = 120
_FULL_TEXT_MODULE = "fts5"


def engine_for(url: str) -> Engine:
    """An engine that has not opened anything yet. Raises `SettingError` if the URL cannot be used."""
    variable = "AGENTAPP_DATABASE_URL"
    try:
        return make_engine(url)
    except ModuleNotFoundError as error:
        raise SettingError(variable, f"needs {error.name}: pip install 'agentapp[postgres]'") from error
    except (exc.ArgumentError, ValueError) as error:
        raise SettingError(variable, "is not a database URL") from error


def require_current(url: str) -> None:
    """Raises a `StartError` that says what to do, unless the schema is the one this code needs."""
    if problem := _problem_at(url):
        raise StartError(problem)


def is_missing(url: str) -> bool:
    """There are no tables yet, so making them cannot harm anybody."""
    return _problem_at(url) == MISSING


def _problem_at(url: str) -> str | None:
    engine = engine_for(url)
    try:
        return schema_problem(engine)
    finally:
        engine.dispose()


def schema_problem(engine: Engine) -> str | None:
    """What is wrong with the schema and what to do about it; None if it is the one this code needs."""
    if _has_no_file(engine):
        return MISSING  # to connect would make an empty file
    try:
        with engine.connect() as connection:
            return problem_in(connection)
    except exc.DBAPIError as error:
        raise StorageUnavailable(f"cannot use the database: {first_line(error)}") from error


def problem_in(connection: Connection) -> str | None:
    """The same, of a database that is open."""
    return NO_FULL_TEXT if _lacks_full_text(connection) else _problem(_revisions(connection))


@contextmanager
def migrating(url: str) -> Iterator[Connection]:
    """One transaction to change the schema in. A second process waits, then finds the schema changed. Raises
    `StorageUnavailable` if it helps to wait for the database.
    """
    engine = engine_for(url)
    try:
        connection = _connected(engine).execution_options(agentapp_writes=True, agentapp_migrates=True)
        with connection:
            _prepare_sqlite(connection)
            with connection.begin():
                if _lacks_full_text(connection):
                    raise StartError(NO_FULL_TEXT)
                _lock_postgresql(connection)
                _refuse_newer(_revisions(connection))
                yield connection
    except exc.DBAPIError as error:
        if error.connection_invalidated:  # such as a server that was stopped: nothing was changed
            raise StorageUnavailable(f"the database went away: {first_line(error)}") from error
        raise StartError(f"cannot migrate the database: {first_line(error)}") from error
    finally:
        engine.dispose()


def _connected(engine: Engine) -> Connection:
    try:
        return engine.connect()
    except exc.DBAPIError as error:
        if engine.dialect.name == "postgresql" and is_away(error):
            raise StorageUnavailable(f"cannot reach the database: {first_line(error)}") from error
        raise


def is_current(connection: Connection) -> bool:
    return _revisions(connection) == [HEAD]


def check_references(connection: Connection) -> None:
    if connection.dialect.name != "sqlite":
        return
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if broken is not None:
        raise StartError(f"cannot migrate the database: a row of {broken[0]} would refer to nothing")


def _has_no_file(engine: Engine) -> bool:
    file = engine.url.database
    return engine.dialect.name == "sqlite" and (not file or not Path(file).exists())


def _revisions(connection: Connection) -> list[str]:
    if not inspect(connection).has_table("alembic_version"):
        return []
    return list(connection.scalars(text("SELECT version_num FROM alembic_version")))


def _lacks_full_text(connection: Connection) -> bool:
    if connection.dialect.name != "sqlite":
        return False
    modules = text("SELECT count(*) FROM pragma_module_list WHERE name = :name")
    return not connection.scalar(modules, {"name": _FULL_TEXT_MODULE})


def _problem(found: list[str]) -> str | None:
    if found == [HEAD]:
        return None
    if not found:
        return MISSING
    if max(found) > HEAD:
        return (
            f"the database is at revision {max(found)}, made by a newer agentapp than this one, "
            f"which knows {HEAD}: update agentapp, then run `agentapp db upgrade`"
        )
    return (
        f"the database is at revision {', '.join(found)} and this agentapp needs {HEAD}: "
        "run `agentapp db upgrade`"
    )


def _refuse_newer(found: list[str]) -> None:
    if found and max(found) > HEAD:
        raise StartError(_problem(found))


def _prepare_sqlite(connection: Connection) -> None:
    """Settings that SQLite takes only outside a transaction. The connection is not used for anything else."""
    if connection.dialect.name != "sqlite":
        return
    cursor = connection.connection.cursor()
    # To alter a table, SQLite copies it and drops the old one. With foreign keys on, dropping it would delete
    # the rows that refer to it.
    cursor.execute("PRAGMA foreign_keys = OFF")
    # The new table then gets the name of the old one. Without this, SQLite refuses that while there are
    # triggers on other tables that write to it, as those that count the bytes of a user do.
    cursor.execute("PRAGMA legacy_alter_table = ON")
    cursor.execute(f"PRAGMA busy_timeout = {_MIGRATION_WAIT_SECONDS * 1000}")
    cursor.close()


def _lock_postgresql(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        # Whatever the role has: a migration takes as long as it takes.
        for setting in ("statement_timeout", "idle_in_transaction_session_timeout"):
            connection.execute(text(f"SET LOCAL {setting} = 0"))
        connection.execute(text(f"SET LOCAL lock_timeout = '{_MIGRATION_WAIT_SECONDS}s'"))
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK_KEY})"))


def first_line(error: exc.DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else type(error.orig).__name__
