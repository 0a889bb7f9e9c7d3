"""`/admin/breakers`: who is stopped and why; what an admin sets there holds everywhere and is audited."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from flask import Flask

from agentapp.config import Settings
from agentapp.guardrails.cell import Key
from agentapp.web.parts import Parts
from tests.support.admin_rows import audited, change_breaker, ids_of, trip
from tests.support.app_inspection import Page
from tests.support.databases import only_sqlite
from tests.support.plans import plans_of, scans, sorts
from tests.support.users import JSON, Person, sign_in

BREAKERS = "/admin/breakers"


@pytest.fixture
def app(database_url: str, settings: Settings, make_app: Callable[..., Flask]) -> Flask:
    return make_app(None, replace(settings, database_url=database_url))


def words(page: str) -> str:
    """What is in the main part, as one line."""
    (main,) = Page(page).all("main")
    return " ".join(main.text.split())


@only_sqlite
def test_a_paused_chat_is_told_by_its_id_and_owner_and_never_by_its_title(
    ann: Person, admin: Person, operator: Person
) -> None:
    chat = ann.new_chat()
    ann.post(f"/chat/{chat}/rename", title="my divorce")
    for _ in range(3):
        assert ann.send(chat, "/fail").status_code == 502
    for who in (admin, operator):
        for path in (BREAKERS, f"{BREAKERS}/session/{chat}"):
            page = who.get(path).text
            assert f"Chat {chat}" in words(page)
            assert "3 failures in a row" in words(page)
            assert "0:" in words(page)
            assert "from now" in words(page)
            assert "ann" in words(page)
            assert "divorce" not in page


@only_sqlite
def test_each_breaker_says_why_and_until_when(parts: Parts, ann: Person, operator: Person) -> None:
    tenant_id, user_id = ids_of(parts, ann)
    tripped, share = ann.new_chat(), ann.new_chat()
    trip(parts, Key("session", tripped), ago=3600)
    change_breaker(parts, Key("session", share), lambda b: b.tripped(time.time()))
    trip(parts, Key("user", user_id), times=15)
    change_breaker(parts, Key("tenant", tenant_id), lambda b: b.tripped(time.time()))
    change_breaker(parts, Key("provider", "demo"), lambda b: b.tripped(time.time()))
    rows = operator.get(BREAKERS).text.split("<tr>")[2:]
    told = [words(f"<main>{row.partition('</tr>')[0]}</main>") for row in rows]
    assert [line.split()[0] for line in told] == ["Model", "Tenant", "User", "Chat", "Chat"]
    assert "The model did not answer" in told[0]
    assert "The model did not answer" in told[1]
    assert "User ann 15 failures in a row" in told[2]
    by_chat = {chat: line for chat in (tripped, share) for line in told if chat in line}
    assert "3 failures in a row" in by_chat[tripped]
    assert "The next message tries" in by_chat[tripped]
    assert "Too many failures lately" in by_chat[share]


def test_lists_are_those_that_are_tripped_forced_closed_or_failing(
    parts: Parts, ann: Person, operator: Person
) -> None:
    chats = {name: ann.new_chat() for name in ("open", "forced", "failing")}
    trip(parts, Key("session", chats["open"]))
    change_breaker(parts, Key("session", chats["forced"]), lambda b: b.force("closed"))
    trip(parts, Key("session", chats["failing"]), times=1)
    for name in chats:
        page = operator.get(f"{BREAKERS}?show={name}").text
        assert [chat for chat in chats.values() if chat in page] == [chats[name]]
    assert operator.get(f"{BREAKERS}?show=all").status_code == 400


def test_a_long_list_is_read_a_page_at_a_time(
    parts: Parts, ann: Person, operator: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentapp.web.admin.breakers.PAGE_ROWS", 2)
    monkeypatch.setattr("agentapp.web.admin.paging.page_of.__defaults__", (2,))
    _, user_id = ids_of(parts, ann)
    keys = [Key("user", user_id), *sorted(Key("session", ann.new_chat()) for _ in range(4))]
    for key in keys:
        trip(parts, key, times=15)
    seen, path = [], BREAKERS
    while path:
        page = operator.get(path).text
        found = [link for link in page.split('href="') if link.startswith((f"{BREAKERS}/u", f"{BREAKERS}/s"))]
        assert len(found) <= 2
        seen += [Key(*link.partition('"')[0].split("/")[3:5]) for link in found]
        path = page.partition('rel="next" href="')[2].partition('"')[0].replace("&amp;", "&")
    assert seen == keys


def test_a_reset_holds_at_once_in_every_worker_and_is_audited_with_its_reason(
    app: Flask, parts: Parts, ann: Person, admin: Person, make_app: Callable[..., Flask]
) -> None:
    elsewhere = sign_in(make_app(None, parts.settings), "ann")
    chat = ann.new_chat()
    for _ in range(3):
        ann.send(chat, "/fail")
    assert elsewhere.send(chat, "hello").json["code"] == "breaker-open"
    answer = admin.post(f"{BREAKERS}/session/{chat}", action="reset", reason=" the key was wrong ")
    assert (answer.status_code, answer.location) == (303, f"{BREAKERS}/session/{chat}?done=reset")
    assert "from the next message on" in admin.get(answer.location).text
    assert elsewhere.ask(chat, "hello")["status"] == "completed"
    (row,) = audited(parts, "breaker-reset")
    tenant_id, user_id = ids_of(parts, admin)
    assert (row["tenant_id"], row["user_id"], row["subject"]) == (tenant_id, user_id, f"session:{chat}")
    assert _detail(row) == {"from": "open", "to": "closed", "reason": "the key was wrong"}


def test_who_is_forced_open_is_paused_in_every_worker_until_reset(
    parts: Parts, ann: Person, admin: Person, make_app: Callable[..., Flask]
) -> None:
    elsewhere = sign_in(make_app(None, parts.settings), "ann")
    chat, (tenant_id, user_id) = ann.new_chat(), ids_of(parts, ann)
    path = f"{BREAKERS}/user/{user_id}"
    admin.post(path, action="open", reason="floods the search")
    assert elsewhere.send(chat, "hello").json["detail"] == "Your chats are paused by an operator or admin."
    assert "ada: floods the search" in words(admin.get(BREAKERS).text)
    assert "ada: floods the search" in words(admin.get(path).text)
    admin.post(path, action="reset", reason="has stopped")
    assert elsewhere.ask(chat, "hello")["status"] == "completed"
    rows = audited(parts, "breaker-reset", "breaker-forced")
    assert [(row["action"], row["tenant_id"], row["subject"]) for row in rows] == [
        ("breaker-forced", tenant_id, f"user:{user_id}"),
        ("breaker-reset", tenant_id, f"user:{user_id}"),
    ]


@only_sqlite
@pytest.mark.parametrize("reason", ["", "   ", "x" * 201, "two\nlines", "a\tb"])
def test_without_a_reason_that_can_be_kept_nothing_is_changed(
    parts: Parts, ann: Person, admin: Person, reason: str
) -> None:
    chat = ann.new_chat()
    answer = admin.post(f"{BREAKERS}/session/{chat}", action="open", reason=reason)
    assert answer.status_code == 400
    form = Page(answer.text).form(f"{BREAKERS}/session/{chat}")
    assert form.fields["reason"].split() == reason.split()
    (field,) = [each for each in Page(answer.text).all("input") if each.attributes.get("name") == "reason"]
    assert field.attributes["aria-invalid"] == "true"
    assert 'id="problem"' in answer.text
    assert ann.ask(chat, "hello")["status"] == "completed"
    assert audited(parts, "breaker-forced") == []


@only_sqlite
def test_a_change_that_cannot_be_audited_is_not_made(
    parts: Parts, ann: Person, admin: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = ann.new_chat()

    def fail(*args: object) -> None:
        raise OSError("no room for the audit row")

    with monkeypatch.context() as broken:
        broken.setattr("agentapp.storage.breakers.SqlBreakerRows.record", fail)
        answer = admin.post(f"{BREAKERS}/session/{chat}", action="open", reason="a test")
    assert answer.status_code == 500
    assert ann.ask(chat, "hello")["status"] == "completed"


def test_an_admin_cannot_see_or_set_what_is_not_of_the_own_tenant(
    app: Flask, parts: Parts, admin: Person, bob: Person
) -> None:
    tenant_id, user_id = ids_of(parts, bob)
    chat = bob.new_chat()
    keys = [Key("session", chat), Key("user", user_id), Key("tenant", tenant_id), Key("provider", "demo")]
    for key in keys:
        trip(parts, key, times=15)
    assert [key.id for key in keys if key.id in words(admin.get(BREAKERS).text)] == []
    for key in (*keys, Key("user", "bob"), Key("tenant", "elsewhere"), Key("session", "x" * 22)):
        path = f"{BREAKERS}/{key.scope}/{key.id}"
        found = admin.get(path)
        assert found.status_code == 404
        assert admin.post(path, action="reset", reason="mine now").status_code == 404
        assert admin.get(f"{BREAKERS}?scope={key.scope}&name={key.id}").status_code == 404
    assert bob.send(chat, "hello").json["code"] == "breaker-open"
    assert audited(parts, "breaker-reset") == []


@only_sqlite
def test_an_admin_resets_the_own_tenant_but_only_an_operator_pauses_it(
    app: Flask, parts: Parts, admin: Person, ann: Person, operator: Person
) -> None:
    tenant_id, _ = ids_of(parts, admin)
    path = f"{BREAKERS}/tenant/{tenant_id}"
    change_breaker(parts, Key("tenant", tenant_id), lambda b: b.tripped(time.time()))
    assert admin.post(path, action="reset", reason="it answers again").status_code == 303
    assert ann.ask(ann.new_chat(), "hello")["status"] == "completed"
    for action in ("open", "closed"):
        assert admin.post(path, action=action, reason="I may").status_code == 403
    assert operator.post(path, action="open", reason="not paid").status_code == 303
    assert admin.post(path, action="reset", reason="I may").status_code == 403
    page = words(admin.get(path).text)
    assert "only an operator can change it" in page
    assert "not paid" in page
    assert "otto" not in page, "somebody of another tenant"
    assert ann.send(ann.new_chat(), "hello").json["code"] == "breaker-open"


@only_sqlite
def test_an_operator_resets_the_model_and_each_tenant_that_has_lost_it_is_audited(
    parts: Parts, ann: Person, operator: Person
) -> None:
    tenant_id, _ = ids_of(parts, ann)
    for key in (Key("provider", "demo"), Key("tenant", tenant_id)):
        change_breaker(parts, key, lambda b: b.tripped(time.time()))
    assert operator.get(f"{BREAKERS}?scope=provider&name=demo").location == f"{BREAKERS}/provider/demo"
    operator.post(f"{BREAKERS}/provider/demo", action="reset", reason="it answers")
    assert ann.ask(ann.new_chat(), "hello")["status"] == "completed"
    rows = audited(parts, "breaker-reset")
    assert [(row["tenant_id"], row["subject"]) for row in rows] == [
        (None, "provider:demo"),
        (tenant_id, f"tenant:{tenant_id}"),
    ]


@only_sqlite
def test_a_breaker_is_found_by_the_name_of_a_user_or_the_id_of_a_chat(
    parts: Parts, ann: Person, admin: Person
) -> None:
    chat, (_, user_id) = ann.new_chat(), ids_of(parts, ann)
    assert admin.get(f"{BREAKERS}?scope=user&name=ANN").location == f"{BREAKERS}/user/{user_id}"
    assert admin.get(f"{BREAKERS}?scope=session&name={chat}").location == f"{BREAKERS}/session/{chat}"
    missed = admin.get(f"{BREAKERS}?scope=user&name=nobody")
    assert missed.status_code == 404
    assert "There is no user of that name or id." in words(missed.text)
    assert Page(missed.text).form(BREAKERS).fields["name"] == "nobody"


@only_sqlite
def test_scripts_get_the_problem_and_unknown_actions_are_refused(ann: Person, admin: Person) -> None:
    path = f"{BREAKERS}/session/{ann.new_chat()}"
    for data in ({"action": "open"}, {"action": "burn", "reason": "why not"}, {"reason": "why not"}):
        answer = admin.post(path, JSON, **data)
        assert (answer.status_code, answer.json["code"]) == (400, "bad-request")


@only_sqlite
def test_no_list_reads_or_sorts_more_than_it_shows(
    parts: Parts, ann: Person, admin: Person, operator: Person
) -> None:
    trip(parts, Key("session", ann.new_chat()))
    for who in (admin, operator):
        for query in ("", "?show=failing", "?scope=user&name=ann"):
            plans = plans_of(parts.settings.database_url, partial(who.get, BREAKERS + query))
            assert scans(plans) == []
            lists = [plan for text, plan in plans.items() if "guardrail_cells.mark = ?" in text]
            assert ["ix_guardrail_cells_marked" in plan for plan in lists] == [True] * len(lists)
            assert lists or "name" in query
            assert [text for text in sorts(plans) if "guardrail_cells" in text] == []


def _detail(row: dict[str, object]) -> object:
    return json.loads(row["detail"]) if isinstance(row["detail"], str) else row["detail"]
