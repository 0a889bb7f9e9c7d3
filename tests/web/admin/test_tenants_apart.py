"""An admin sees the rows of the own tenant in every page, plot, table and count; an operator sees all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from flask import Flask

from agentapp.config import Settings
from agentapp.guardrails.cell import Key
from agentapp.web.parts import Parts
from tests.support.admin_rows import change_breaker, count, ids_of, trip, violate
from tests.support.databases import only_sqlite
from tests.support.users import Person, person

PAGES = (
    *(f"/admin/isolation?window={window}" for window in ("1h", "24h", "7d")),
    *(f"/admin/breakers?show={mark}" for mark in ("open", "forced", "failing")),
    *(
        f"/admin/limits?list={each}&window={window}"
        for each in ("users", "tenants")
        for window in ("1h", "7d")
    ),
)


@dataclass(frozen=True)
class Marked:
    """A tenant whose rows can be told in any page: by names, ids, request ids and an odd number."""

    admin: Person
    name: str
    number: int
    marks: tuple[str, ...]


@pytest.fixture
def app(database_url: str, settings: Settings, make_app: Callable[..., Flask]) -> Flask:
    return make_app(None, replace(settings, database_url=database_url))


@pytest.fixture
def tenants(app: Flask, parts: Parts, operator: Person) -> list[Marked]:
    return [
        marked(app, parts, operator, name, number) for name, number in (("acme", 70_001), ("zeta", 8_000_003))
    ]


def marked(app: Flask, parts: Parts, operator: Person, name: str, number: int) -> Marked:
    admin = person(app, f"admin-of-{name}", tenant=name, role="admin")
    member = person(app, f"member-of-{name}", tenant=name)
    tenant_id, user_id = ids_of(parts, member)
    chats = [member.new_chat() for _ in range(3)]
    trip(parts, Key("session", chats[0]))
    trip(parts, Key("session", chats[1]), times=1)
    operator.post(f"/admin/breakers/session/{chats[2]}", action="closed", reason=f"reason-at-{name}")
    operator.post(f"/admin/limits/user/{user_id}", rate=f"{number}/day")
    operator.post(f"/admin/limits/tenant/{tenant_id}", rate=f"{number}/hour")
    violate(parts, tenant_id, "foreign-event", f"request-of-{name}")
    checks = (
        "isolation_checks",
        "isolation_requests",
        "isolation_violating",
        "failures",
        "failures_contained",
    )
    count(parts.db, tenant_id, {(each, ""): number for each in checks})
    count(parts.db, tenant_id, {("isolation_violations", "agent-left"): number})
    count(parts.db, tenant_id, {("refusals", f"busy/{name}-label"): number})
    return Marked(
        admin,
        name,
        number,
        (
            tenant_id,
            user_id,
            *chats,
            f"-of-{name}",
            f"reason-at-{name}",
            f"{name}-label",
            f"{number:,}",
            str(number),
        ),
    )


def pages(who: Person) -> Iterator[str]:
    for path in PAGES:
        answer = who.get(path)
        assert answer.status_code == 200, path
        yield answer.text


def test_an_admin_sees_the_own_tenant_and_nothing_of_another(tenants: list[Marked], operator: Person) -> None:
    both = sum(tenant.number for tenant in tenants)
    everything = "".join(pages(operator))
    for tenant in tenants:
        (other,) = [each for each in tenants if each is not tenant]
        seen = "".join(pages(tenant.admin))
        assert [mark for mark in tenant.marks if mark not in seen] == []
        assert [mark for mark in other.marks if mark in seen] == []
        assert f"{both:,}" not in seen
        assert [mark for mark in tenant.marks[:-2] if mark not in everything] == []
    assert f"{both:,}" in everything


@only_sqlite
def test_what_belongs_to_no_tenant_is_seen_by_operators_alone(
    parts: Parts, tenants: list[Marked], operator: Person
) -> None:
    violate(parts, None, "left-bound", "request-of-nobody")
    count(parts.db, "", {("isolation_checks", ""): 555_555, ("agent_creation", "0.0002"): 1})
    change_breaker(parts, Key("provider", "demo"), lambda breaker: breaker.tripped(time.time()))
    everything = "".join(pages(operator))
    for mark in ("request-of-nobody", "up to 0.2\N{NO-BREAK SPACE}ms", "Database connections", "Model demo"):
        assert mark in everything, mark
        for tenant in tenants:
            assert mark not in "".join(pages(tenant.admin))
