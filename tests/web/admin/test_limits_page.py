"""`/admin/limits`: what was refused, and limits that are changed on the page."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from flask import Flask

from agentapp.config import Settings
from agentapp.web.parts import Parts
from tests.support.admin_rows import audited, count, ids_of
from tests.support.app_inspection import Page
from tests.support.databases import only_sqlite
from tests.support.plans import plans_of, scans
from tests.support.users import JSON, Person, sign_in

LIMITS = "/admin/limits"


@pytest.fixture
def app(database_url: str, settings: Settings, make_app: Callable[..., Flask]) -> Flask:
    return make_app(None, replace(settings, database_url=database_url))


def path_of(parts: Parts, scope: str, who: Person) -> str:
    tenant_id, user_id = ids_of(parts, who)
    return f"{LIMITS}/{scope}/{user_id if scope == 'user' else tenant_id}"


def save(who: Person, path: str, **limits: str) -> int:
    return who.post(path, **{"rate": "", "budget": "", "concurrent": "", **limits}).status_code


def test_a_limit_changed_on_the_page_holds_in_every_worker_with_the_next_message(
    parts: Parts, ann: Person, admin: Person, make_app: Callable[..., Flask]
) -> None:
    elsewhere = sign_in(make_app(None, parts.settings), "ann")
    chat, path = ann.new_chat(), path_of(parts, "user", ann)
    assert elsewhere.ask(chat, "one")["status"] == "completed"
    assert save(admin, path, rate="2/day") == 303
    assert elsewhere.ask(chat, "two")["status"] == "completed"
    refused = elsewhere.send(chat, "three").json
    assert (refused["code"], refused["scope"], refused["limit"]) == ("rate-limited", "user", 2)
    assert ann.send(chat, "three").json["code"] == "rate-limited"
    assert save(admin, path, rate="100/day") == 303
    assert elsewhere.ask(chat, "three")["status"] == "completed"
    assert save(admin, path) == 303
    assert "changed" not in admin.get(LIMITS).text
    assert "None. All have those of the server." in admin.get(LIMITS).text


@only_sqlite
def test_every_changed_limit_is_in_the_audit_log(parts: Parts, ann: Person, admin: Person) -> None:
    save(admin, path_of(parts, "user", ann), rate="5/minute", concurrent="1")
    save(admin, path_of(parts, "user", ann), rate="5/minute", budget="off")
    (tenant_id, user_id), (_, by) = ids_of(parts, ann), ids_of(parts, admin)
    rows = audited(parts, "limit-changed")
    assert {(row["tenant_id"], row["user_id"], row["subject"]) for row in rows} == {
        (tenant_id, by, f"user:{user_id}")
    }
    details = [row["detail"] for row in rows]
    told = [json.loads(each) if isinstance(each, str) else each for each in details]
    assert [(each["limit"], each["from"], each["to"]) for each in told] == [
        ("rate", "server", "5/minute"),
        ("concurrent", "server", "1"),
        ("budget", "server", "off"),
        ("concurrent", "1", "server"),
    ]


@only_sqlite
def test_what_is_not_sent_stays_as_it_is(parts: Parts, ann: Person, admin: Person) -> None:
    path = path_of(parts, "user", ann)
    save(admin, path, rate="5/minute")
    admin.post(path, JSON, budget="2.50")
    fields = Page(admin.get(path).text).form(path).fields
    assert (fields["rate"], fields["budget"], fields["concurrent"]) == ("5/minute", "2.50", "")


@only_sqlite
def test_what_is_wrong_is_told_beside_the_field_and_what_was_typed_is_kept(
    parts: Parts, ann: Person, admin: Person
) -> None:
    path = path_of(parts, "user", ann)
    typed = {"rate": "often", "budget": "7", "concurrent": "-2"}
    answer = admin.post(path, **typed)
    assert answer.status_code == 400
    page = Page(answer.text)
    kept = page.form(path).fields
    assert {name: kept[name] for name in typed} == typed
    fields = {each.attributes.get("name"): each.attributes for each in page.all("input")}
    told = {each.attributes["id"]: each.text for each in page.all("p") if "id" in each.attributes}
    for name in ("rate", "concurrent"):
        assert fields[name]["aria-invalid"] == "true"
        assert fields[name]["aria-describedby"].split() == [f"problem-{name}", f"about-{name}"]
        assert typed[name] in told[f"problem-{name}"]
    assert "aria-invalid" not in fields["budget"]
    assert audited(parts, "limit-changed") == []
    assert "changed" not in admin.get(LIMITS).text


@only_sqlite
def test_an_admin_cannot_give_more_than_the_tenant_was_given(
    parts: Parts, ann: Person, admin: Person, operator: Person
) -> None:
    """A tenant may spend $500 a month, so its admin may divide them. Nothing limits its turns at once."""
    user, tenant = path_of(parts, "user", ann), path_of(parts, "tenant", ann)
    assert save(admin, user, budget="off", rate="off") == 303
    assert save(admin, user, concurrent="5") == 400
    assert save(admin, user, concurrent="off") == 400
    assert save(admin, user, concurrent="3") == 303
    assert save(operator, tenant, concurrent="50", budget="off") == 303
    assert save(admin, user, concurrent="40") == 303
    assert save(admin, user, concurrent="40", budget="6") == 400
    assert save(operator, user, concurrent="40", budget="off") == 303
    assert save(admin, user, concurrent="40", budget="off") == 303, "what an operator has raised may stay"


@only_sqlite
def test_only_operators_change_the_limits_of_a_tenant(parts: Parts, admin: Person, operator: Person) -> None:
    path = path_of(parts, "tenant", admin)
    assert path not in [form.action for form in Page(admin.get(path).text).forms]
    answer = admin.post(path, JSON, rate="1000/minute")
    assert (answer.status_code, answer.json["code"]) == (403, "forbidden")
    assert save(operator, path, rate="1000/minute") == 303
    assert "1000/minute" in admin.get(f"{LIMITS}?list=tenants").text


def test_a_user_is_found_by_name_and_nobody_else_is(
    parts: Parts, ann: Person, bob: Person, admin: Person, operator: Person
) -> None:
    assert admin.get(f"{LIMITS}?user=ANN").location == path_of(parts, "user", ann)
    assert operator.get(f"{LIMITS}?user=bob").location == path_of(parts, "user", bob)
    theirs, absent = admin.get(f"{LIMITS}?user=bob"), admin.get(f"{LIMITS}?user=nobody")
    assert (theirs.status_code, absent.status_code) == (404, 404)
    assert "There is no user of that name." in theirs.text
    assert Page(theirs.text).form(LIMITS).fields["user"] == "bob"
    for scope in ("user", "tenant"):
        path = path_of(parts, scope, bob)
        assert admin.get(path).status_code == 404
        assert save(admin, path, rate="1/day") == 404
    assert admin.get(f"{LIMITS}/session/x").status_code == 404


@only_sqlite
def test_refusals_are_plotted_with_whose_limit_it_was(parts: Parts, ann: Person, operator: Person) -> None:
    tenant_id, _ = ids_of(parts, ann)
    labels = ["rate-limited/user", "busy/server", "busy/tenant", "a/b", "c/d", "e/f", "g/h"]
    for n, label in enumerate(labels):
        count(parts.db, tenant_id, {("refusals", label): 100 - n}, minutes_ago=90)
    assert "busy" not in operator.get(LIMITS).text
    page = operator.get(f"{LIMITS}?window=24h").text
    assert '<th scope="row">rate-limited (user)</th><td class="right">100</td>' in page
    assert '<li data-series="5">others</li>' in page
    assert page.count('<td class="right">189</td>') == 1, "of the last two together"


@only_sqlite
def test_no_query_reads_a_table_as_a_whole(
    parts: Parts, ann: Person, admin: Person, operator: Person
) -> None:
    save(admin, path_of(parts, "user", ann), rate="5/minute")
    for who in (admin, operator):
        for query in ("?window=7d", "?list=tenants", "?user=ann", "?user=nobody"):
            plans = plans_of(parts.settings.database_url, partial(who.get, LIMITS + query))
            assert scans(plans) == []
            found = [plan for text, plan in plans.items() if "FROM users JOIN guardrail_cells" in text]
            assert ["ix_guardrail_cells_marked" in plan for plan in found] == [True] * len(found)
