"""Sessions in SQLite or PostgreSQL: a row for each message, and one that says how many there are."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    and_,
    delete,
    insert,
    or_,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from agentapp.isolation import ThreadBinder
from agentapp.parsing import supported_database_url
from agentapp.sessions.values import (
    MAX_ID_CHARS,
    SessionConflict,
    SessionKey,
    SessionLimits,
    StoredSession,
    checked_seconds,
    first_version,
    messages_as_json,
    state_as_json,
    too_many,
)
from agentapp.storage.clock import CLOCK, DatabaseClock
from agentapp.storage.db import Database
from agentapp.storage.translated_errors import translating_errors

PURGED_AT_ONCE = 1000
STATEMENT_SECONDS = 10.0
TABLES_LOCK = (
    7_203_114_201  # Any number. Two processes that make the tables at once would be in each other's way.
)

METADATA = MetaData()


def _id_columns() -> list[Column[str]]:
    names = ("tenant", "user_name", "session")
    return [Column(name, String(MAX_ID_CHARS), primary_key=True) for name in names]


KEPT = Table(
    "kept_sessions",
    METADATA,
    *_id_columns(),
    Column("version", BigInteger, nullable=False),
    Column("last", Integer, nullable=False),
    Column("state", Text),
    Column("expires_at", Float, index=True),
)
MESSAGES = Table(
    "kept_session_messages",
    METADATA,
    *_id_columns(),
    Column("number", Integer, primary_key=True),
    Column("body", Text, nullable=False),
)


class Found(NamedTuple):
    version: int
    last: int
    is_new: bool


class SqlSessions:
    """A `SessionStore`. ``url`` is ``sqlite:///file`` or ``postgresql+psycopg://user:password@host/name``.
    It makes its two tables when it is first used, and leaves all others alone. ``ttl`` is in seconds; None is
    for ever. What has expired is never seen again, but takes room until `purge` is called.
    """

    def __init__(self, url: str, *, ttl: float | None = None, limits: SessionLimits | None = None) -> None:
        self._url, self._ttl = supported_database_url(url), checked_seconds(ttl)
        self._limits = limits or SessionLimits()
        self._here = _Process(self._url)

    def load(self, key: SessionKey, after: int = 0) -> StoredSession | None:
        with self._process().reading() as db:
            # One statement, so that all of it is of one moment.
            query = (
                select(KEPT.c.version, KEPT.c.last, KEPT.c.state, MESSAGES.c.body)
                .outerjoin(MESSAGES, and_(_of(MESSAGES, key), MESSAGES.c.number > after))
                .where(_of(KEPT, key), _is_alive(_now(db)))
                .order_by(MESSAGES.c.number)
            )
            rows = db.execute(query).all()
        if not rows:
            return None
        version, last, state, _ = rows[0]
        messages = tuple(json.loads(row.body) for row in rows if row.body is not None)
        return StoredSession(version, last, messages, None if state is None else json.loads(state))

    def append(self, key: SessionKey, *messages: Any) -> int:
        bodies = messages_as_json(messages, self._limits)
        with self._process().writing() as db:
            before = self._locked(db, key).last
            last = before + len(bodies)
            if last > self._limits.messages:
                raise too_many(last, self._limits)
            rows = [{**_ids(key), "number": before + n, "body": body} for n, body in enumerate(bodies, 1)]
            db.execute(insert(MESSAGES), rows)
            db.execute(update(KEPT).where(_of(KEPT, key)).values(last=last, expires_at=self._expiry(db)))
        return last

    def save(self, key: SessionKey, state: Any, version: int) -> int:
        stored = state_as_json(state, self._limits)
        with self._process().writing() as db:
            found = self._locked(db, key)
            current = 0 if found.is_new else found.version
            if version != current:
                raise SessionConflict(current)
            new = found.version if found.is_new else found.version + 1
            values = {"version": new, "state": stored, "expires_at": self._expiry(db)}
            db.execute(update(KEPT).where(_of(KEPT, key)).values(values))
        return new

    def touch(self, key: SessionKey) -> bool:
        with self._process().writing() as db:
            alive = update(KEPT).where(_of(KEPT, key), _is_alive(_now(db))).returning(KEPT.c.last)
            return db.execute(alive.values(expires_at=self._expiry(db))).first() is not None

    def delete(self, key: SessionKey) -> bool:
        with self._process().writing() as db:
            alive = select(_is_alive(_now(db))).where(_of(KEPT, key)).with_for_update()
            was_alive = db.execute(alive).scalar()
            # Without a row nothing is locked: the messages would be those of a session that just begins.
            if was_alive is not None:
                _remove(db, _of(KEPT, key), _of(MESSAGES, key))
        return bool(was_alive)

    def purge(self) -> int:
        with self._process().writing() as db:
            keys = select(*KEPT.primary_key).where(KEPT.c.expires_at <= _now(db)).limit(PURGED_AT_ONCE)
            found = [tuple(row) for row in db.execute(keys.with_for_update(skip_locked=True))]
            if found:
                ids = (KEPT.c.tenant, KEPT.c.user_name, KEPT.c.session)
                theirs = (MESSAGES.c.tenant, MESSAGES.c.user_name, MESSAGES.c.session)
                _remove(db, tuple_(*ids).in_(found), tuple_(*theirs).in_(found))
        return len(found)

    def close(self) -> None:
        self._process().database.close()

    def __enter__(self) -> SqlSessions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _process(self) -> _Process:
        """Nothing is shared over a fork, not even the locks in which writers wait for each other."""
        if self._here.pid != os.getpid():
            self._here = _Process(self._url)
        return self._here

    def _locked(self, db: Session, key: SessionKey) -> Found:
        """The session's row, which nobody else can change before this transaction ends. It is made if need
        be, and made anew if it has expired.
        """
        fresh = {"version": first_version(), "last": 0, "state": None, "expires_at": self._expiry(db)}
        claim = _insert(db)(KEPT).values(_ids(key) | fresh).on_conflict_do_nothing().returning(KEPT.c.last)
        row = select(KEPT.c.version, KEPT.c.last, _is_alive(_now(db))).where(_of(KEPT, key)).with_for_update()
        while True:
            was_made = db.execute(claim).first() is not None
            found = db.execute(row).first()
            if found is not None:  # otherwise somebody has deleted it in between
                break
        version, last, is_alive = found
        if was_made or is_alive:
            return Found(version, last, was_made)
        db.execute(delete(MESSAGES).where(_of(MESSAGES, key)))
        db.execute(update(KEPT).where(_of(KEPT, key)).values(fresh))
        return Found(int(str(fresh["version"])), 0, True)

    def _expiry(self, db: Session) -> float | None:
        return None if self._ttl is None else _now(db) + self._ttl


class _Process:
    """What one process has. A child that is forked makes one of its own."""

    def __init__(self, url: str) -> None:
        self.pid = os.getpid()
        self.database = Database(url, ThreadBinder(), STATEMENT_SECONDS)
        self._making, self._has_tables = threading.Lock(), False

    @contextmanager
    def reading(self) -> Iterator[Session]:
        self._make_tables()
        with (
            translating_errors(self.database.disk),
            Session(self.database.engine, info={CLOCK: self.database.clock}) as db,
        ):
            yield db

    @contextmanager
    def writing(self) -> Iterator[Session]:
        self._make_tables()
        with self.database.writing() as db:
            yield db

    def _make_tables(self) -> None:
        if self._has_tables:
            return
        with self._making, self.database.writing() as db:
            if _is_postgres(db):
                db.execute(text(f"SELECT pg_advisory_xact_lock({TABLES_LOCK})"))
            METADATA.create_all(db.connection())
            self._has_tables = True


def _ids(key: SessionKey) -> dict[str, Any]:
    return {"tenant": key.tenant, "user_name": key.user, "session": key.session}


def _of(table: Table, key: SessionKey) -> ColumnElement[bool]:
    return and_(*(table.c[name] == value for name, value in _ids(key).items()))


def _is_alive(now: float) -> ColumnElement[bool]:
    return or_(KEPT.c.expires_at.is_(None), KEPT.c.expires_at > now)


def _now(db: Session) -> float:
    """By the database's clock: those of its clients differ."""
    clock: DatabaseClock = db.info[CLOCK]
    return clock.now()


def _remove(db: Session, sessions: ColumnElement[bool], messages: ColumnElement[bool]) -> None:
    """Of sessions that this transaction has locked."""
    db.execute(delete(KEPT).where(sessions))
    db.execute(delete(MESSAGES).where(messages))


def _is_postgres(db: Session) -> bool:
    return db.get_bind().dialect.name == "postgresql"


def _insert(db: Session) -> Any:
    return postgresql.insert if _is_postgres(db) else sqlite.insert
