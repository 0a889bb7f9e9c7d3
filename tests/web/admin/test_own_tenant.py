"""An admin sees the own tenant and nothing else, on whatever page; nobody sees what is said in chats."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import pytest
from flask import Flask

from agentapp.config import Settings
from agentapp.storage.db import Database
from tests.support.statements import statements_noted
from tests.support.users import JSON, Person
from tests.web.admin.planted import SAID, Planted, pages_seen_by, plant

BIG_TABLES = (
    *("users", "logins", "sessions", "turns", "turn_events", "messages", "notes", "search_entries"),
    *("guardrail_cells", "usage_days", "audit_log", "minute_counts", "charged_turns"),
)
MINE = ("/admin/usage", "/admin/usage/users", "/admin/turns", "/admin/users", "/admin/workers")
OPERATORS = ("/admin/usage/tenants", "/admin/workers")


@pytest.fixture
def acme(app: Flask) -> Planted:
    return plant(app, "acme", 3)


@pytest.fixture
def globex(app: Flask) -> Planted:
    return plant(app, "globex", 8)


def test_no_page_plot_or_count_has_another_tenants_row(acme: Planted, globex: Planted) -> None:
    for own, other in ((acme, globex), (globex, acme)):
        asked_for_the_other = (
            f"/admin/usage?tenant={other.mark}-tenant",
            f"/admin/usage/users?tenant={other.mark}-tenant",
            f"/admin/users?tenant={other.mark}-tenant",
            f"/admin/users?q={other.mark}",
        )
        seen = pages_seen_by(own.admin, *asked_for_the_other)
        for path, page in seen.items():
            shown = page.replace(path, "").replace(f"“{other.mark}”", "").replace(f'value="{other.mark}"', "")
            for theirs in (other.mark, other.user_id, other.tenant_id, other.turn_id, other.cost):
                assert theirs not in shown, (path, theirs)
        assert own.cost in seen["/admin/usage"]
        assert f"{own.mark}-agent" in seen["/admin/turns"]
        assert f"{own.mark}-user" in seen["/admin/users"]


def test_nobody_sees_titles_or_messages(acme: Planted, globex: Planted, operator: Person) -> None:
    for who in (acme.admin, operator):
        for path, page in pages_seen_by(who).items():
            assert SAID not in page, path


def test_an_operator_sees_all_tenants_and_may_choose_one(
    acme: Planted, globex: Planted, operator: Person
) -> None:
    everything = "".join(pages_seen_by(operator).values())
    for mark in ("acme", "globex"):
        for what in ("tenant", "user", "agent", "model", "request"):
            assert f"{mark}-{what}" in everything
    assert "$11.00" in operator.get("/admin/usage").text
    chosen = operator.get("/admin/usage?tenant=acme-tenant").text
    assert "$3.00" in chosen
    assert "globex" not in chosen
    assert operator.get("/admin/usage?tenant=nobody").status_code == 404
    assert "globex-user" not in operator.get("/admin/users?tenant=acme-tenant").text


@pytest.mark.parametrize(
    "action",
    [
        "users/{0.user_id}",
        "users/{0.user_id}/disable",
        "users/{0.user_id}/password",
        "turns/{0.turn_id}/stop",
    ],
)
def test_what_is_of_another_tenant_is_not_found(acme: Planted, globex: Planted, action: str) -> None:
    path = f"/admin/{action.format(globex)}"
    method = "GET" if action.endswith("id}") else "POST"
    data = {"csrf_token": acme.admin.csrf}
    answer = acme.admin.browser.open(path, method=method, data=data, headers=JSON)
    assert (answer.status_code, answer.json["code"]) == (404, "not-found")


def test_pages_for_operators_are_refused_to_admins(acme: Planted) -> None:
    assert [acme.admin.get(path).status_code for path in OPERATORS] == [403, 403]


@pytest.mark.parametrize("role", ["admin", "operator"])
def test_no_query_of_a_page_scans_a_big_table(
    app: Flask, settings: Settings, acme: Planted, operator: Person, role: str
) -> None:
    who, sent = operator if role == "operator" else acme.admin, list[tuple[str, Any]]()
    paths = [*MINE, f"/admin/users/{acme.user_id}", "/admin/users?q=a"]
    if role == "operator":
        paths += [*OPERATORS, "/admin/usage?tenant=acme-tenant", "/admin/users?tenant=acme-tenant"]
    db: Database = app.extensions["agentapp"].db
    with statements_noted(lambda text, values: sent.append((text, values)), db):
        for path in paths:
            assert who.get(path).status_code == (403 if (role, path) == ("admin", "/admin/workers") else 200)
    selects = [(text, values) for text, values in sent if text.lstrip().startswith(("SELECT", "WITH"))]
    assert len(selects) > 20
    with closing(sqlite3.connect(settings.database_url.removeprefix("sqlite:///"))) as connection:
        for text, values in selects:
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", values)]
            scanned = [step for step in plan if step.startswith(tuple(f"SCAN {name}" for name in BIG_TABLES))]
            assert not scanned, (text, plan)
