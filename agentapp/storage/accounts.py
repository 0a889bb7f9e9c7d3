"""Tenants, users, passwords, logins and the set-up link."""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
from collections.abc import Collection, Sequence
from datetime import timedelta

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import CursorResult, Select, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from agentapp.errors import BadRequest, NotFound, WrongPassword
from agentapp.isolation import new_id
from agentapp.storage.db import Database
from agentapp.storage.models import Login, SetupLink, Tenant
from agentapp.storage.models import User as UserRow
from agentapp.storage.values import Role, User, utc_now

LOGIN_LIFETIME = timedelta(days=30)
MIN_PASSWORD, MAX_PASSWORD = 8, 1024
MAX_NAME = 64
NOT_RIGHT = "The name or the password is not right."
USED_UP = "This set-up link was used already or is not the newest one."


class Accounts:
    def __init__(self, db: Database) -> None:
        self._db = db
        # What OWASP advises. The library's own default takes all cores for half a second on a busy
        # small machine, and then one person's sign-in is felt in everybody's answers.
        self._hasher = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
        # However many people sign in at once, only a few hashes are computed at once.
        self._hashing = threading.BoundedSemaphore(os.cpu_count() or 1)
        # What an unknown name is checked against, so that it takes as long as a known one.
        self._nobody = "$argon2id$v=19$m=19456,t=2,p=1$" + "A" * 22 + "$" + "A" * 43

    def add(self, name: str, password: str, *, tenant: str = "default", role: Role = "member") -> User:
        clean, tenant_name = check_name(name, "user"), check_name(tenant, "tenant")
        hashed = self._hash(password)
        try:
            with self._db.writing() as db:
                return _insert_user(db, clean, hashed, tenant_name, role)
        except IntegrityError as exc:
            raise BadRequest(f"There is already a user {clean!r}.") from exc

    def all(self) -> Sequence[User]:
        with self._db.reading() as db:
            found = db.execute(_users().order_by(Tenant.name, UserRow.name))
            return [_user(row, tenant) for row, tenant in found]

    def set_password(self, name: str, password: str) -> None:
        """Also ends every login of the user: whoever knew the old password is out."""
        hashed = self._hash(password)
        with self._db.writing() as db:
            row = _row_named(db, name)
            row.password_hash = hashed
            db.execute(delete(Login).where(Login.user_id == row.id))

    def disable(self, name: str) -> None:
        with self._db.writing() as db:
            row = _row_named(db, name)
            row.disabled_at = utc_now()
            db.execute(delete(Login).where(Login.user_id == row.id))

    def enable(self, name: str) -> None:
        with self._db.writing() as db:
            _row_named(db, name).disabled_at = None

    def sign_in(self, name: str, password: str) -> tuple[User, str]:
        """Check the pair and open a login. The token is for the cookie; it is nowhere else in clear."""
        # Once more if the hash was replaced meanwhile: by the same person signing in twice at once, or
        # by a new password, which then has to be the one that was given.
        found = self._signed_in(name, password) or self._signed_in(name, password)
        if not found:
            raise WrongPassword(NOT_RIGHT)
        return found

    def _signed_in(self, name: str, password: str) -> tuple[User, str] | None:
        """None if what was checked is no longer so. Raises `WrongPassword` if the pair is not right."""
        with self._db.reading() as db:
            found = db.execute(_users().where(UserRow.name == folded(name))).one_or_none()
            user = _user(*found) if found else None
            kept = found[0].password_hash if found and found[0].disabled_at is None else self._nobody
        self._db.release()
        if self._matches(kept, password) and user is not None:
            # Made with other parameters, it would take another time than that of an unknown name.
            fresh = self._hash(password) if self._hasher.check_needs_rehash(kept) else None
            with self._db.writing() as db:
                # Checking took a while: a password changed or an account locked meanwhile opens nothing.
                still = select(UserRow.id).where(
                    UserRow.id == user.id, UserRow.password_hash == kept, UserRow.disabled_at.is_(None)
                )
                if db.scalar(still.with_for_update()) is not None:
                    if fresh is not None:
                        db.execute(update(UserRow).where(UserRow.id == user.id).values(password_hash=fresh))
                    return user, _open_login(db, user.id)
            return None
        raise WrongPassword(NOT_RIGHT)

    def user_of(self, token: str) -> User | None:
        """Whose live login this is. A login that ended, expired or belongs to a disabled user is nobody's."""
        live = (
            _users()
            .join(Login, Login.user_id == UserRow.id)
            .where(
                Login.digest == _digest(token), Login.expires_at > utc_now(), UserRow.disabled_at.is_(None)
            )
        )
        with self._db.reading() as db:
            found = db.execute(live).one_or_none()
            return _user(*found) if found else None

    def signed_in(self, tokens: Collection[str]) -> set[str]:
        """Those of these tokens whose login is still live, found in one query."""
        by_digest = {_digest(token): token for token in tokens}
        live = (
            select(Login.digest)
            .join(UserRow, Login.user_id == UserRow.id)
            .where(Login.digest.in_(by_digest), Login.expires_at > utc_now(), UserRow.disabled_at.is_(None))
        )
        with self._db.reading() as db:
            return {by_digest[digest] for digest in db.scalars(live)}

    def sign_out(self, token: str) -> None:
        with self._db.writing() as db:
            db.execute(delete(Login).where(Login.digest == _digest(token)))

    def new_setup_token(self) -> str | None:
        """A fresh token for the first account, replacing any before it; None once somebody has an account."""
        with self._db.writing() as db:
            if not _is_empty(db):
                return None
            token = secrets.token_urlsafe(32)
            db.execute(delete(SetupLink))
            db.add(SetupLink(digest=_digest(token), created_at=utc_now()))
            return token

    def knows_setup_token(self, token: str) -> bool:
        """Whether it may be used: the newest one, while nobody has an account yet."""
        with self._db.reading() as db:
            return db.get(SetupLink, _digest(token)) is not None and _is_empty(db)

    def set_up(self, token: str, name: str, password: str) -> tuple[User, str]:
        """Use the link up and make the operator, in one transaction: of two who try, one succeeds."""
        if not self.knows_setup_token(token):
            raise NotFound(USED_UP)  # before the costly hash, which anybody could ask for otherwise
        clean, hashed = check_name(name, "user"), self._hash(password)
        with self._db.writing() as db:
            used = db.execute(delete(SetupLink).where(SetupLink.digest == _digest(token)))
            if not isinstance(used, CursorResult) or used.rowcount != 1 or not _is_empty(db):
                raise NotFound(USED_UP)
            user = _insert_user(db, clean, hashed, "default", "operator")
            return user, _open_login(db, user.id)

    def _hash(self, password: str) -> str:
        check_password(password)
        with self._hashing:
            return self._hasher.hash(password)

    def _matches(self, kept: str, password: str) -> bool:
        if len(password.encode("utf-8", "replace")) > MAX_PASSWORD:
            return False
        try:
            with self._hashing:
                return self._hasher.verify(kept, password)
        except (VerificationError, InvalidHashError):
            return False


def check_name(name: str, kind: str) -> str:
    """The name as it is kept: lower case, so that Ann and ann are one person."""
    clean = folded(name)
    if not 1 <= len(clean) <= MAX_NAME or not all(c.isalnum() or c in "._-@+" for c in clean):
        raise BadRequest(f"A {kind} name has 1 to {MAX_NAME} letters or digits; . - _ + and @ are fine too.")
    return clean


def check_password(password: str) -> None:
    if len(password) < MIN_PASSWORD or len(password.encode("utf-8", "replace")) > MAX_PASSWORD:
        raise BadRequest(
            f"A password has at least {MIN_PASSWORD} characters and at most {MAX_PASSWORD} bytes."
        )


def folded(name: str) -> str:
    """The name as it is looked up."""
    return name.strip().casefold()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _is_empty(db: Session) -> bool:
    return db.scalar(select(UserRow.id).limit(1)) is None


def _users() -> Select[UserRow, str]:
    return select(UserRow, Tenant.name).join(Tenant, Tenant.id == UserRow.tenant_id)


def _user(row: UserRow, tenant: str) -> User:
    return User(row.id, row.tenant_id, tenant, row.name, row.role, row.disabled_at is not None)  # type: ignore[arg-type]


def _row_named(db: Session, name: str) -> UserRow:
    row = db.scalar(select(UserRow).where(UserRow.name == folded(name)))
    if row is None:
        raise NotFound(f"There is no user {name!r}.")
    return row


def _insert_user(db: Session, name: str, hashed: str, tenant: str, role: Role) -> User:
    home = db.scalar(select(Tenant).where(Tenant.name == tenant))
    if home is None:
        home = Tenant(id=new_id(), name=tenant, created_at=utc_now())
        db.add(home)
        db.flush()
    row = UserRow(
        id=new_id(), tenant_id=home.id, name=name, password_hash=hashed, role=role, created_at=utc_now()
    )
    db.add(row)
    db.flush()
    return _user(row, tenant)


def _open_login(db: Session, user_id: str) -> str:
    token = secrets.token_urlsafe(32)
    now = utc_now()
    db.execute(delete(Login).where(Login.user_id == user_id, Login.expires_at <= now))
    db.add(Login(digest=_digest(token), user_id=user_id, created_at=now, expires_at=now + LOGIN_LIFETIME))
    return token
