"""Whether the database has the schema that this code needs, and the lock under which it is changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, exc, inspect, text

from agentapp.errors import SettingError, StartError, StorageUnavailable
from agentapp.storage.away import is_away
from agentapp.storage.copying.marker import UNFINISHED, is_marked
from agentapp.storage.engines import make_engine
from agentapp.storage.migration_lock import (
    IN_USE,
    MIGRATION_WAIT_SECONDS,
    TablesInUse,
    take_migration_lock,
    waited_too_long,
)

# The newest revision in migrations/versions. It is written here, so that a worker can compare it without
# loading alembic, and a test checks it. Revisions are numbered: an older one sorts before a newer one.
HEAD = "0012"

MISSING = "the database has no tables yet: run `agentapp db upgrade`"
NO_FULL_TEXT = (
    "this Python's SQLite was built without FTS5, which the search needs: "
    "use another build of Python or SQLite, or PostgreSQL (AGENTAPP_DATABASE_URL)"
)

_FULL_TEXT_MODULE = "fts5"


def engine_for(url: str) -> Engine:
    """An engine that has not opened anything yet. Raises `SettingError` if the URL cannot be used."""
    variable = "AGENTAPP_DATABASE_URL"
    try:
        return make_engine(url)
    except ModuleNotFoundError as error:
        needed = f"needs {error.name}: install agentapp with its extra postgres"
        raise SettingError(variable, needed) from error
    except (exc.ArgumentError, ValueError) as error:
        raise SettingError(variable, "is not a database URL") from error


def require_usable(url: str) -> None:
    """Raises a `StartError` that says what to do, unless this code can work with the schema."""
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
    """What is wrong with the schema and what to do about it; None if this code can work with it."""
    try:
        return find_problem(engine)
    except exc.DBAPIError as error:
        raise StorageUnavailable(f"cannot use the database: {first_line(error)}") from error


def find_problem(engine: Engine) -> str | None:
    """The same, with the database's own errors."""
    if _has_no_file(engine):
        return MISSING  # to connect would make an empty file
    with engine.connect() as connection:
        return problem_in(connection)


def problem_in(connection: Connection) -> str | None:
    """The same, of a database that is open."""
    if _lacks_full_text(connection):
        return NO_FULL_TEXT
    if is_marked(connection):
        return UNFINISHED
    revision = revision_of(connection)
    if revision is None:
        return MISSING
    if revision < HEAD:
        needs = f"this agentapp needs {HEAD}: run `agentapp db upgrade`"
        return f"the database is at revision {revision} and {needs}"
    return None if revision == HEAD else _too_new(revision, _oldest_code(connection))


def revision_of(connection: Connection) -> str | None:
    """The schema's revision. None if there are no tables."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return max(connection.scalars(text("SELECT version_num FROM alembic_version")), default=None)


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
                take_migration_lock(connection)
                if is_marked(connection):
                    raise StartError(UNFINISHED)
                yield connection
    except exc.DBAPIError as error:
        if waited_too_long(error):
            raise TablesInUse(f"cannot migrate the database: {IN_USE}") from error
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


def needs_migration(connection: Connection) -> bool:
    """Whether it is older than this code. One that is newer is left alone, if this code can work with it; if
    not, that is a `StartError`.
    """
    revision = revision_of(connection)
    if revision is not None and revision > HEAD and (problem := problem_in(connection)):
        raise StartError(problem)
    return revision is None or revision < HEAD


def note_oldest_code(connection: Connection, revision: str) -> None:
    """From now on, only code that knows this revision can work with the schema."""
    connection.execute(
        text("UPDATE schema_compatibility SET oldest_code = :revision"), {"revision": revision}
    )


def described(revision: str) -> str:
    """For an operator, of a schema that this code can work with."""
    return (
        revision
        if revision <= HEAD
        else f"{revision}, newer than this agentapp's {HEAD}, which works with it"
    )


def check_references(connection: Connection) -> None:
    if connection.dialect.name != "sqlite":
        return
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").first()
    if broken is not None:
        raise StartError(f"cannot migrate the database: a row of {broken[0]} would refer to nothing")


def _has_no_file(engine: Engine) -> bool:
    file = engine.url.database
    return engine.dialect.name == "sqlite" and (not file or not Path(file).exists())


def _oldest_code(connection: Connection) -> str | None:
    """What the schema itself says about who can work with it. There is such a table since revision 0012."""
    if not inspect(connection).has_table("schema_compatibility"):
        return None
    return max(connection.scalars(text("SELECT oldest_code FROM schema_compatibility")), default=None)


def _lacks_full_text(connection: Connection) -> bool:
    if connection.dialect.name != "sqlite":
        return False
    modules = text("SELECT count(*) FROM pragma_module_list WHERE name = :name")
    return not connection.scalar(modules, {"name": _FULL_TEXT_MODULE})


def _too_new(revision: str, oldest_code: str | None) -> str | None:
    if oldest_code is not None and oldest_code <= HEAD:
        return None
    needs = "" if oldest_code is None else f" and works with those that know {oldest_code}"
    return (
        f"the database is at revision {revision}, made by a newer agentapp than this one{needs}; this one "
        f"knows {HEAD}: update agentapp, then run `agentapp db upgrade`"
    )


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
    cursor.execute(f"PRAGMA busy_timeout = {MIGRATION_WAIT_SECONDS * 1000}")
    cursor.close()


def first_line(error: exc.DBAPIError) -> str:
    lines = str(error.orig).strip().splitlines()
    return lines[0] if lines else type(error.orig).__name__
