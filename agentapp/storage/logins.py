"""A user's own logins: where they are from, when they were used last, and how they are ended."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import bindparam, delete, func, select, update

from agentapp.errors import NotFound
from agentapp.isolation import UserScope
from agentapp.storage.audit_log import AuditEntry, add_entry
from agentapp.storage.db import Database
from agentapp.storage.models import Login
from agentapp.storage.statements import Statement

LOGINS_SHOWN = 50
SEEN_EVERY = timedelta(minutes=5)  # how exact it is when a login was used last
MOST_REMEMBERED = 10_000
NOTE_SEEN = Statement(update(Login).where(Login.digest == bindparam("login")), ("seen_at",))
_LAST_USED = func.coalesce(Login.seen_at, Login.created_at)


@dataclass(frozen=True, slots=True)
class OwnLogin:
    """``id`` names it on the page. The cookie cannot be made from it."""

    id: str
    address: str
    browser: str  # as the browser calls itself
    signed_in_at: datetime
    seen_at: datetime
    is_this: bool


class Logins:
    def __init__(self, db: Database) -> None:
        self._db = db

    def of(self, scope: UserScope, token: str) -> tuple[Sequence[OwnLogin], int]:
        """Those that were used last, the newest first, and how many there are."""
        mine = Login.user_id == scope.user_id, Login.expires_at > self._db.clock.utc_now()
        this = digest_of(token)
        order = ((Login.digest != this), _LAST_USED.desc(), Login.digest)
        with self._db.reading() as db:
            total = db.scalar(select(func.count()).select_from(Login).where(*mine)) or 0
            rows = db.scalars(select(Login).where(*mine).order_by(*order).limit(LOGINS_SHOWN))
            return [_own_login(row, this) for row in rows], total

    def end(self, scope: UserScope, login_id: str) -> None:
        with self._db.writing() as db:
            of_user = select(Login.digest).where(Login.user_id == scope.user_id)
            found = next((each for each in db.scalars(of_user) if _id_of(each) == login_id), None)
            if found is None:
                raise NotFound("That login has ended already.")
            db.execute(delete(Login).where(Login.digest == found, Login.user_id == scope.user_id))
            add_entry(db, AuditEntry.of(scope, "login-ended", f"user:{scope.user_id}"))

    def end_others(self, scope: UserScope, token: str) -> int:
        """All but the one with this token. How many there were."""
        others = Login.user_id == scope.user_id, Login.digest != digest_of(token)
        with self._db.writing() as db:
            ended = len(db.scalars(delete(Login).where(*others).returning(Login.digest)).all())
            if ended:
                add_entry(db, AuditEntry.of(scope, "logins-ended", f"user:{scope.user_id}", count=ended))
        return ended


class SeenLogins:
    """Which logins were used. A request only notes it in memory; a job of the heartbeat, this, stores it."""

    name = "store seen logins"

    def __init__(self, db: Database) -> None:
        self._db = db
        self._lock = threading.Lock()
        self._noted: OrderedDict[str, datetime] = OrderedDict()  # by token, those of the last minutes
        self._unstored: dict[str, datetime] = {}

    def note(self, token: str) -> None:
        now = self._db.clock.utc_now()
        with self._lock:
            before = self._noted.pop(token, None)
            if before is not None and now - before < SEEN_EVERY:
                self._noted[token] = before
                return
            self._noted[token] = self._unstored[token] = now
            if len(self._noted) > MOST_REMEMBERED:
                self._noted.popitem(last=False)

    def run(self, now: float) -> bool:
        """Those that cannot be stored are lost: they are noted again after some minutes."""
        if seen := self._take():
            # In the same order in every worker, so that two of them never wait for each other's rows.
            rows = sorted((digest_of(token), at) for token, at in seen.items())
            with self._db.transaction() as db:
                db.run_many(NOTE_SEEN, [{"login": digest, "seen_at": at} for digest, at in rows])
        return False

    def _take(self) -> dict[str, datetime]:
        with self._lock:
            taken, self._unstored = self._unstored, {}
        return taken


def digest_of(token: str) -> str:
    """What is stored of a cookie's token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _own_login(row: Login, this: str) -> OwnLogin:
    return OwnLogin(
        id=_id_of(row.digest),
        address=row.address or "",
        browser=row.browser or "",
        signed_in_at=row.created_at,
        seen_at=row.seen_at or row.created_at,
        is_this=row.digest == this,
    )


def _id_of(digest: str) -> str:
    return hashlib.sha256(digest.encode()).hexdigest()[:24]
