"""The first step of every transaction that changes what a user keeps: lock the chat, and then its user.

Triggers add up in the user's row how much is kept, so whoever writes locks that row sooner or later. Two
transactions that lock rows in a different order could wait for each other for ever. So it is done here, at
the very beginning and always in the same order.
"""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import and_, select

from agentapp.isolation import Scope, UserScope
from agentapp.storage.models import ChatSession, User
from agentapp.storage.owned import OWNER, owner_parameters, this_session
from agentapp.storage.statements import DriverConnection, Statement

# `key_share` leaves out those who only refer to the row, such as a new login of the same user.
LOCK_CHAT = Statement(
    select(ChatSession.title, User.stored_bytes)
    .join(User, User.id == ChatSession.user_id)
    .where(this_session(OWNER))
    .with_for_update(key_share=True)
)
LOCK_USER = Statement(
    select(User.stored_bytes)
    .where(and_(User.id == OWNER.user_id, User.tenant_id == OWNER.tenant_id))
    .with_for_update(key_share=True)
)


class LockedChat(NamedTuple):
    title: str
    stored_bytes: int  # of its user, in all chats


def lock_chat(db: DriverConnection, scope: Scope) -> LockedChat | None:
    """None if there is no such chat, or none of this user."""
    found = db.run(LOCK_CHAT, owner_parameters(scope)).first()
    return None if found is None else LockedChat(*found)


def lock_user(db: DriverConnection, scope: UserScope) -> int:
    """How much the user keeps, in bytes."""
    owner = {"own_tenant": scope.tenant_id, "own_user": scope.user_id}
    stored: int | None = db.run(LOCK_USER, owner).scalar()
    return stored or 0
