"""The owner's part of a WHERE clause: every query on a user's data is built from it."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import BindParameter, ColumnElement, and_, bindparam

from agentapp.isolation import Scope, UserScope
from agentapp.storage.models import ChatSession, InSession, OfTurn, Owned


class _Whoever(NamedTuple):
    tenant_id: BindParameter[str] = bindparam("own_tenant")
    user_id: BindParameter[str] = bindparam("own_user")
    session_id: BindParameter[str] = bindparam("own_session")


# Stands for a scope in statements that are built once, at import. Whose rows they are about is said each time
# they are run: see `named`.
OWNER: Any = _Whoever()


def named(scope: Scope) -> dict[str, str]:
    """The parameters of a statement about `OWNER`."""
    return {"own_tenant": scope.tenant_id, "own_user": scope.user_id, "own_session": scope.session_id}


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
