"""The owner's part of a WHERE clause: every query on a user's data is built from it."""

from __future__ import annotations

from typing import NamedTuple, cast

from sqlalchemy import BindParameter, ColumnElement, and_, bindparam

from agentapp.isolation import Scope, UserScope
from agentapp.storage.models import ChatSession, InSession, OfTurn, Owned, SearchEntry

OwnedTable = type[Owned] | type[OfTurn] | type[SearchEntry]
SessionTable = type[InSession] | type[OfTurn] | type[SearchEntry]


class _OwnerPlaceholder(NamedTuple):
    tenant_id: BindParameter[str] = bindparam("own_tenant")
    user_id: BindParameter[str] = bindparam("own_user")
    session_id: BindParameter[str] = bindparam("own_session")


# Stands for a scope in statements that are built once, at import. The ids of the real owner are given each
# time such a statement is run: see `owner_parameters`.
OWNER = cast(Scope, _OwnerPlaceholder())


def owner_parameters(scope: Scope) -> dict[str, str]:
    """The parameters of a statement that was built with `OWNER`."""
    return {"own_tenant": scope.tenant_id, "own_user": scope.user_id, "own_session": scope.session_id}


def owned_by(scope: UserScope, table: OwnedTable) -> ColumnElement[bool]:
    """Rows of this user, in this tenant."""
    return and_(table.tenant_id == scope.tenant_id, table.user_id == scope.user_id)


def this_session(scope: Scope) -> ColumnElement[bool]:
    """The scope's own chat session, if it belongs to the user."""
    return and_(ChatSession.id == scope.session_id, owned_by(scope, ChatSession))


def in_session(scope: Scope, table: SessionTable) -> ColumnElement[bool]:
    """Rows of the scope's own chat session, if they belong to the user."""
    return and_(table.session_id == scope.session_id, owned_by(scope, table))
