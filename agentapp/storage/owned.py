"""The owner's part of a WHERE clause: every query on a user's data is built from it."""

from __future__ import annotations

from sqlalchemy import ColumnElement, and_

from agentapp.isolation import Scope, UserScope
from agentapp.storage.models import ChatSession, InSession, OfTurn, Owned


def owned_by(scope: UserScope, table: type[Owned] | type[OfTurn]) -> ColumnElement[bool]:
    """Rows of this user, in this tenant."""
    return and_(table.tenant_id == scope.tenant_id, table.user_id == scope.user_id)


def this_session(scope: Scope) -> ColumnElement[bool]:
    """The scope's own chat session, if it is the user's."""
    return and_(ChatSession.id == scope.session_id, owned_by(scope, ChatSession))


def in_session(scope: Scope, table: type[InSession] | type[OfTurn]) -> ColumnElement[bool]:
    """Rows of the scope's own chat session, if they are the user's."""
    return and_(table.session_id == scope.session_id, owned_by(scope, table))


def like(words: str) -> str:
    """A pattern that finds the words as they are written, with LIKE's own signs escaped by a backslash."""
    escaped = words.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
