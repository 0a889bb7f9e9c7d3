"""Tenants, users, passwords, logins and the set-up link."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Collection, Sequence

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import Select, bindparam, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from agentapp.errors import BadRequest, NotFound, WrongPassword
from agentapp.isolation import RequestScope, UserScope
from agentapp.storage import user_changes
from agentapp.storage.audit_log import AuditEntry, add_entry
from agentapp.storage.db import Database
from agentapp.storage.logins import digest_of
from agentapp.storage.models import Login, SetupLink, Tenant
from agentapp.storage.models import User as UserRow
from agentapp.storage.names import check_name, normalise_name
from agentapp.storage.opened_logins import NOWHERE, Origin, end_login, note_sign_in, open_login
from agentapp.storage.passwords import MAX_PASSWORD_BYTES, bytes_of, check_password
from agentapp.storage.statements import Statement
from agentapp.storage.user_changes import user_of_row
from agentapp.storage.values import Role, User

WRONG_CREDENTIALS = "The name or the password is not right."
NOT_THE_OLD_ONE = "That is not your password."
CHOOSE_ANOTHER = "Choose another password than the one you were given."
NOT_SIGNED_IN = RequestScope(request_id="-")
USER_OF_LOGIN = Statement(
    select(UserRow.id, UserRow.tenant_id, Tenant.name, UserRow.name, UserRow.role, UserRow.password_given_at)
    .join(Tenant, Tenant.id == UserRow.tenant_id)
    .join(Login, Login.user_id == UserRow.id)
    .where(
        Login.digest == bindparam("digest"),
        Login.expires_at > bindparam("now"),
        UserRow.disabled_at.is_(None),
    )
)
SETUP_LINK_USED = "There is an account already, or this set-up link is an old one."
MOST_SETUP_LINKS = 8


class Accounts:
    def __init__(self, db: Database) -> None:
        self._db = db
        db.compile([USER_OF_LOGIN])
        # What OWASP advises. The library's own default takes all cores for half a second on a small busy
        # machine, and then one person's sign-in slows down everybody's answers.
        self._hasher = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
        # Only a few hashes are computed at once, however many people sign in at once.
        self._hashing = threading.BoundedSemaphore(os.cpu_count() or 1)
        # A password for an unknown name is checked against this, so that it takes as long as for a known one.
        self._decoy_hash = "$argon2id$v=19$m=19456,t=2,p=1$" + "A" * 22 + "$" + "A" * 43

    def add(
        self,
        name: str,
        password: str,
        *,
        tenant: str = "default",
        role: Role = "member",
        by: RequestScope = NOT_SIGNED_IN,
    ) -> User:
        clean, tenant_name = check_name(name, "user"), check_name(tenant, "tenant")
        check_password(password, clean)
        hashed = self.hash(password)
        try:
            with self._db.writing() as db:
                return user_changes.add_user(db, by, clean, hashed, tenant_name, role)
        except IntegrityError as exc:
            raise BadRequest(f"There is already a user {clean!r}.") from exc

    def all(self) -> Sequence[User]:
        with self._db.reading() as db:
            found = db.execute(_select_users().order_by(Tenant.name, UserRow.name))
            return [user_of_row(row, tenant) for row, tenant in found]

    def set_password(self, name: str, password: str, by: RequestScope = NOT_SIGNED_IN) -> None:
        """Also ends every login of the user, so that somebody who knew the old password is signed out."""
        check_password(password, name)
        hashed = self.hash(password)
        with self._db.writing() as db:
            user_changes.set_password(db, by, _user_row(db, name), hashed)

    def change_password(self, scope: UserScope, old: str, new: str, origin: Origin = NOWHERE) -> str:
        """By the user, who knows the old one. Every login ends; the token is that of a new one."""
        with self._db.reading() as db:
            found = db.execute(
                select(UserRow.name, UserRow.password_hash, UserRow.password_given_at).where(
                    UserRow.id == scope.user_id, UserRow.disabled_at.is_(None)
                )
            ).one_or_none()
        self._db.release()
        if found is None or not self._matches(found.password_hash, old):
            raise WrongPassword(NOT_THE_OLD_ONE)
        if found.password_given_at is not None and old == new:
            raise BadRequest(CHOOSE_ANOTHER)
        check_password(new, found.name)
        hashed = self.hash(new)
        with self._db.writing() as db:
            unchanged = UserRow.id == scope.user_id, UserRow.password_hash == found.password_hash
            row = db.scalar(select(UserRow).where(*unchanged).with_for_update())
            if row is None:
                raise WrongPassword(NOT_THE_OLD_ONE)
            row.password_hash, row.password_given_at = hashed, None
            db.execute(delete(Login).where(Login.user_id == row.id))
            add_entry(db, AuditEntry.of(scope, "password-changed", f"user:{row.id}"))
            return open_login(db, row.id, None, origin)

    def disable(self, name: str, by: RequestScope = NOT_SIGNED_IN) -> None:
        with self._db.writing() as db:
            user_changes.lock_accounts(db)
            user_changes.disable(db, by, _user_row(db, name))

    def enable(self, name: str, by: RequestScope = NOT_SIGNED_IN) -> None:
        with self._db.writing() as db:
            user_changes.enable(db, by, _user_row(db, name))

    def sign_in(
        self, name: str, password: str, old_token: str | None = None, origin: Origin = NOWHERE
    ) -> tuple[User, str]:
        """Check name and password and open a login. The token is for the cookie; we store only its digest.

        The new login takes the place of the one that the browser had before, which ends.
        """
        # A second try, if the stored hash was replaced during the first one: by the same person signing in
        # twice at once, or by a new password, which then has to be the one that was given.
        tried = (name, password, old_token, origin)
        opened = self._try_to_sign_in(*tried) or self._try_to_sign_in(*tried)
        if not opened:
            raise WrongPassword(WRONG_CREDENTIALS)
        return opened

    def _try_to_sign_in(
        self, name: str, password: str, old_token: str | None, origin: Origin
    ) -> tuple[User, str] | None:
        """None if the account changed while the password was checked. Raises `WrongPassword`."""
        with self._db.reading() as db:
            found = db.execute(_select_users().where(UserRow.name == normalise_name(name))).one_or_none()
            user = user_of_row(*found) if found else None
            stored_hash = self._decoy_hash
            if found and found[0].disabled_at is None:
                stored_hash = found[0].password_hash
        self._db.release()
        if not self._matches(stored_hash, password) or user is None:
            raise WrongPassword(WRONG_CREDENTIALS)
        # A hash that was made with other parameters is replaced, because checking it would take another time
        # than checking the decoy of an unknown name.
        new_hash = self.hash(password) if self._hasher.check_needs_rehash(stored_hash) else None
        with self._db.writing() as db:
            # The check took a while. If the password was changed or the account disabled meanwhile, no login
            # is opened.
            unchanged = select(UserRow.id).where(
                UserRow.id == user.id, UserRow.password_hash == stored_hash, UserRow.disabled_at.is_(None)
            )
            if db.scalar(unchanged.with_for_update()) is None:
                return None
            if new_hash is not None:
                db.execute(update(UserRow).where(UserRow.id == user.id).values(password_hash=new_hash))
            token = open_login(db, user.id, old_token, origin)
            note_sign_in(db, user, origin)
            return user, token

    def id_and_hash(self, name: str) -> tuple[str, str]:
        """The user's id and the hash of the password. For a name that cannot sign in: no id, the decoy."""
        with self._db.reading() as db:
            enabled = UserRow.name == normalise_name(name), UserRow.disabled_at.is_(None)
            found = db.execute(select(UserRow.id, UserRow.password_hash).where(*enabled)).one_or_none()
            return (found[0], found[1]) if found else ("", self._decoy_hash)

    def user_of(self, token: str) -> User | None:
        """The user of this login. None if the login has ended or expired, or its user is disabled."""
        found = self._db.look(USER_OF_LOGIN, {"digest": digest_of(token), "now": self._db.clock.utc_now()})
        if not found:
            return None
        user_id, tenant_id, tenant, name, role, given_at = found[0]
        return User(user_id, tenant_id, tenant, name, role, disabled=False, must_change=given_at is not None)

    def signed_in(self, tokens: Collection[str]) -> set[str]:
        """Those of these tokens whose login is still valid, found in one query."""
        by_digest = {digest_of(token): token for token in tokens}
        live = (
            select(Login.digest)
            .join(UserRow, Login.user_id == UserRow.id)
            .where(
                Login.digest.in_(by_digest),
                Login.expires_at > self._db.clock.utc_now(),
                UserRow.disabled_at.is_(None),
            )
        )
        with self._db.reading() as db:
            return {by_digest[digest] for digest in db.scalars(live)}

    def sign_out(self, token: str, request_id: str = "-") -> None:
        with self._db.writing() as db:
            end_login(db, token, request_id)

    def new_setup_token(self) -> str | None:
        """A new token for the first account; older ones go on working, because another host that starts at
        the same time prints its own. None if there is an account.
        """
        with self._db.writing() as db:
            if not _has_no_users(db):
                return None
            token = secrets.token_urlsafe(32)
            db.add(SetupLink(digest=digest_of(token), created_at=self._db.clock.utc_now()))
            db.flush()
            newest = select(SetupLink.digest).order_by(SetupLink.created_at.desc()).limit(MOST_SETUP_LINKS)
            db.execute(delete(SetupLink).where(SetupLink.digest.not_in(newest)))
            return token

    def knows_setup_token(self, token: str) -> bool:
        """Whether it can be used: it is one of the newest, and there is no account yet."""
        with self._db.reading() as db:
            return db.get(SetupLink, digest_of(token)) is not None and _has_no_users(db)

    def set_up(
        self,
        token: str,
        name: str,
        password: str,
        old_token: str | None = None,
        origin: Origin = NOWHERE,
    ) -> tuple[User, str]:
        """Make the operator and use up all links, in one transaction. If two people try, with the same link
        or another one, only one succeeds.
        """
        if not self.knows_setup_token(token):
            raise NotFound(SETUP_LINK_USED)  # Before the costly hash, which anybody could ask for otherwise.
        clean = check_name(name, "user")
        check_password(password, clean)
        hashed = self.hash(password)
        with self._db.writing() as db:
            user_changes.lock_accounts(db)
            links = set(db.scalars(delete(SetupLink).returning(SetupLink.digest)))
            if digest_of(token) not in links or not _has_no_users(db):
                raise NotFound(SETUP_LINK_USED)
            by = RequestScope(request_id=origin.request_id)
            user = user_changes.add_user(db, by, clean, hashed, "default", "operator")
            token = open_login(db, user.id, old_token, origin)
            note_sign_in(db, user, origin)
            return user, token

    def hash(self, password: str) -> str:
        with self._hashing:
            return self._hasher.hash(password)

    def _matches(self, stored_hash: str, password: str) -> bool:
        if bytes_of(password) > MAX_PASSWORD_BYTES:
            return False
        try:
            with self._hashing:
                return self._hasher.verify(stored_hash, password)
        except (VerificationError, InvalidHashError):
            return False


def _has_no_users(db: Session) -> bool:
    return db.scalar(select(UserRow.id).limit(1)) is None


def _select_users() -> Select[UserRow, str]:
    return select(UserRow, Tenant.name).join(Tenant, Tenant.id == UserRow.tenant_id)


def _user_row(db: Session, name: str) -> UserRow:
    row = db.scalar(select(UserRow).where(UserRow.name == normalise_name(name)))
    if row is None:
        raise NotFound(f"There is no user {name!r}.")
    return row
