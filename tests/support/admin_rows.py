"""What admin pages show, planted by way of the parts that write it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from agentapp.guardrails.breaker import Breaker
from agentapp.guardrails.cell import Cell, Key
from agentapp.isolation import RequestScope
from agentapp.storage.audit_log import AuditEntry
from agentapp.storage.db import Database
from agentapp.storage.minute_counts import MinuteCountStore
from agentapp.telemetry.minutes import MinuteKey
from agentapp.web.parts import Parts
from tests.support.users import Person

SOMEBODY = RequestScope(request_id="test")


def ids_of(parts: Parts, who: Person) -> tuple[str, str]:
    """The ids of the tenant and of the user."""
    with parts.binder.bound(SOMEBODY), parts.db.reading() as db:
        found = db.connection().exec_driver_sql(f"SELECT tenant_id, id FROM users WHERE name = '{who.name}'")
        row: Any = found.one()
        return str(row[0]), str(row[1])


def trip(parts: Parts, key: Key, times: int = 3, ago: float = 0.0) -> None:
    """So many failures in a row."""

    def failed(breaker: Breaker) -> Breaker:
        for _ in range(times):
            breaker = breaker.failed(breaker.generation, time.time() - ago)
        return breaker

    change_breaker(parts, key, failed)


def change_breaker(parts: Parts, key: Key, change: Callable[[Breaker], Breaker]) -> None:
    def changed(cell: Cell) -> Cell:
        return replace(cell, breaker=change(cell.breaker))

    with parts.binder.bound(SOMEBODY):
        parts.turns.kit.guardrails.registry.update(key, changed)


def count(db: Database, tenant_id: str, amounts: Mapping[tuple[str, str], int], minutes_ago: int = 0) -> None:
    """``amounts`` are by name and label."""
    minute = int(time.time() // 60) - minutes_ago
    keys = {MinuteKey(name, tenant_id, minute, label): n for (name, label), n in amounts.items()}
    MinuteCountStore(db).add(keys)


def violate(parts: Parts, tenant_id: str | None, kind: str, request_id: str) -> None:
    entry = AuditEntry("isolation-violated", kind, tenant_id, request_id=request_id)
    with parts.binder.bound(SOMEBODY):
        parts.admin.audit_log.add(entry)


def audited(parts: Parts, *actions: str) -> list[dict[str, Any]]:
    """The rows of these actions, the oldest first."""
    columns = "tenant_id, user_id, action, subject, detail"
    with parts.binder.bound(SOMEBODY), parts.db.reading() as db:
        found = db.connection().exec_driver_sql(f"SELECT {columns} FROM audit_log ORDER BY id")
        rows = [dict(row) for row in found.mappings()]
    return [row for row in rows if row["action"] in actions]
