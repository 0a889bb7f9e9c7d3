"""Two tenants with something in every table that the admin pages read, and marks that tell whose it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from html import unescape

from flask import Flask

from agentapp.isolation import new_id
from agentapp.storage.models import ChatSession, LiveTurn, Message, Turn
from agentapp.storage.operator_models import AlertRow, AuditRow, MinuteCount, UsageDay
from agentapp.web.parts import Parts
from tests.support.times import utc_now
from tests.support.users import PASSWORD, Person, person

SAID = "xylophone"  # in every title and message
LINK = re.compile(r'href="(/admin[^"#]*)"')
MOST_PAGES = 60


@dataclass(frozen=True)
class Planted:
    """``mark`` is part of every name, agent and model of the tenant; ``cost`` is what it has spent today."""

    mark: str
    tenant_id: str
    user_id: str
    turn_id: str
    cost: str
    admin: Person


def plant(app: Flask, mark: str, dollars: int) -> Planted:
    parts: Parts = app.extensions["agentapp"]
    tenant, now = f"{mark}-tenant", utc_now()
    user = parts.accounts.add(f"{mark}-user", PASSWORD, tenant=tenant)
    own = {"tenant_id": user.tenant_id, "user_id": user.id}
    chat, turn = new_id(), new_id()
    in_chat = {**own, "session_id": chat}
    with parts.db.writing() as db:
        db.add(ChatSession(**own, id=chat, title=f"{SAID} {mark}", created_at=now, updated_at=now))
        db.flush()
        db.add(
            Turn(
                **in_chat,
                id=turn,
                request_id=f"{mark}-request",
                number=1,
                follows=0,
                status="running",
                agent=f"{mark}-agent",
                next_agent="",
                log=[],
                input_tokens=0,
                output_tokens=0,
                model_calls=0,
                started_at=now - timedelta(seconds=42),
            )
        )
        db.flush()
        lease = now + timedelta(seconds=60)
        db.add(LiveTurn(**in_chat, turn_id=turn, worker="w", lease_until=lease, stop_asked=False))
        message = f"{SAID} {mark}"
        db.add(
            Message(**in_chat, id=new_id(), turn_id=turn, seq=1, role="user", content=message, created_at=now)
        )
        for who in (user.id, ""):  # the second one was erased
            db.add(usage(user.tenant_id, who, now.date().isoformat(), mark, dollars * 500_000))
        db.add(
            AuditRow(
                at=now,
                tenant_id=user.tenant_id,
                user_id=user.id,
                action="chat-deleted",
                subject=f"session:{chat}",
                request_id=f"{mark}-audited",
                detail={"count": 1},
            )
        )
        minute, label = int(now.timestamp() // 60), "rate-limited/user"
        db.add(MinuteCount(name="refusals", tenant_id=user.tenant_id, minute=minute, label=label, amount=7))
        db.add(
            AlertRow(
                id=new_id(),
                kind="budget-90",
                severity="warning",
                tenant_id=user.tenant_id,
                subject=f"tenant:{user.tenant_id}",
                detail=f"{mark}-alert",
                request_id="",
                count=1,
                first_at=now,
                last_at=now,
                delivery_attempts=0,
                delivery_problem="",
            )
        )
    admin = person(app, f"{mark}-admin", tenant=tenant, role="admin")
    return Planted(mark, user.tenant_id, user.id, turn, f"${dollars:,}.00", admin)


def usage(tenant_id: str, user_id: str, day: str, mark: str, microusd: int) -> UsageDay:
    return UsageDay(
        tenant_id=tenant_id,
        user_id=user_id,
        day=day,
        agent=f"{mark}-agent",
        model=f"{mark}-model",
        turns=1,
        model_calls=1,
        input_tokens=900,
        output_tokens=80,
        cost_microusd=microusd,
    )


def pages_seen_by(who: Person, *first: str) -> dict[str, str]:
    """Each page of the admin pages that links lead to, by its address."""
    seen: dict[str, str] = {}
    waiting = ["/admin", *first]
    while waiting and len(seen) < MOST_PAGES:
        path = waiting.pop(0)
        if path in seen:
            continue
        answer = who.get(path)
        if answer.status_code == 303:
            waiting.insert(0, answer.location)
        else:
            assert answer.status_code == 200, (path, answer.status_code)
        seen[path] = answer.text
        waiting += [unescape(link) for link in LINK.findall(answer.text)]
    return seen
