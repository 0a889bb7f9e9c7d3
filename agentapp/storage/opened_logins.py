"""A login's row: it is made when somebody signs in, and deleted when they sign out."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import NamedTuple

from sqlalchemy import delete
from sqlalchemy.orm import Session

from agentapp.storage.audit_log import AuditEntry, add_entry
from agentapp.storage.clock import now_in
from agentapp.storage.logins import digest_of
from agentapp.storage.models import Login
from agentapp.storage.models import User as UserRow
from agentapp.storage.values import User

LOGIN_LIFETIME = timedelta(days=30)


class Origin(NamedTuple):
    """Where a login is from: its address, what the browser says of itself, and the request it came with."""

    address: str
    browser: str
    request_id: str = "-"


NOWHERE = Origin("", "")


def open_login(db: Session, user_id: str, old_token: str | None, origin: Origin) -> str:
    """In place of the one that the browser had before. Gives the token for the cookie."""
    token = secrets.token_urlsafe(32)
    now = now_in(db)
    if old_token is not None:
        end_login(db, old_token, origin.request_id)
    db.execute(delete(Login).where(Login.user_id == user_id, Login.expires_at <= now))
    db.add(
        Login(
            digest=digest_of(token),
            user_id=user_id,
            created_at=now,
            expires_at=now + LOGIN_LIFETIME,
            address=origin.address,
            browser=origin.browser,
            seen_at=now,
        )
    )
    return token


def end_login(db: Session, token: str, request_id: str) -> None:
    """Its user signs out, or somebody signs in with the same browser."""
    ended = delete(Login).where(Login.digest == digest_of(token)).returning(Login.user_id)
    owner = db.get(UserRow, db.scalar(ended) or "")
    if owner is not None:
        add_entry(db, AuditEntry("signed-out", f"user:{owner.id}", owner.tenant_id, owner.id, request_id))


def note_sign_in(db: Session, user: User, origin: Origin) -> None:
    add_entry(db, AuditEntry("signed-in", f"user:{user.id}", user.tenant_id, user.id, origin.request_id))
