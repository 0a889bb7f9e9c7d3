"""The audit log as tests look at it."""

from __future__ import annotations

from typing import Any

from flask import Flask
from sqlalchemy import select

from agentapp.isolation import RequestScope, UserScope, new_id
from agentapp.storage.db import Database
from agentapp.storage.models import User
from agentapp.storage.operator_models import AuditRow
from agentapp.web.parts import Parts


def rows(db: Database, *actions: str) -> list[AuditRow]:
    """In the order in which they were stored; those of these actions, or all."""
    query = select(AuditRow).order_by(AuditRow.id)
    if actions:
        query = query.where(AuditRow.action.in_(actions))
    with db.writing() as session:
        found = list(session.scalars(query))
        session.expunge_all()
        return found


def audited(app: Flask, *actions: str) -> list[AuditRow]:
    """With those that the heartbeat would store in a moment."""
    parts: Parts = app.extensions["agentapp"]
    with parts.binder.bound(RequestScope(request_id="a-beat")):
        parts.audit_tallies.run(0.0)
    return rows(parts.db, *actions)


def told(row: AuditRow) -> tuple[str, str, str | None, str | None, dict[str, Any]]:
    return row.action, row.subject, row.tenant_id, row.user_id, row.detail


def who(app: Flask, name: str) -> UserScope:
    """The ids of a user."""
    parts: Parts = app.extensions["agentapp"]
    with parts.db.writing() as session:
        user_id, tenant_id = session.execute(select(User.id, User.tenant_id).where(User.name == name)).one()
    return UserScope(request_id=new_id(), tenant_id=tenant_id, user_id=user_id)
