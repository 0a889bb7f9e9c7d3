"""/admin/audit-log: whose rows it shows, its filters, its pages, and the CSV file."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from io import StringIO
from typing import Any
from urllib.parse import quote

import pytest
from flask import Flask

from agentapp.isolation import UserScope
from agentapp.storage import audit_rows
from agentapp.storage.audit_log import AuditEntry
from agentapp.web.admin.audit_csv import HEAD, inert
from agentapp.web.admin.audit_words import words
from agentapp.web.parts import Parts
from tests.support.app_inspection import Page, faults, likeness
from tests.support.audit_log import audited, who
from tests.support.statements import statements_noted
from tests.support.times import utc_now
from tests.support.users import Person, person

PATH = "/admin/audit-log"
NEXT = re.compile(r'rel="next" href="([^"]+)"')


@pytest.fixture
def admin(app: Flask) -> Person:
    return person(app, "ada", role="admin")


@pytest.fixture
def operator(app: Flask) -> Person:
    return person(app, "otto", tenant="staff", role="operator")


def add(parts: Parts, *entries: AuditEntry) -> None:
    with parts.binder.bound(UserScope(request_id="r", tenant_id="t", user_id="u")):
        parts.admin.audit_log.add(*entries)


def shown(visitor: Person, **query: str) -> list[list[str]]:
    """The cells of each row, without the time."""
    answer = visitor.browser.get(PATH, query_string=query)
    assert answer.status_code == 200, answer.text
    cells = [" ".join(each.text.split()) for each in Page(answer.text).elements if each.tag in ("td", "th")]
    heads = len([each for each in Page(answer.text).all("th") if each.attributes.get("scope") == "col"])
    rows = [cells[at : at + heads] for at in range(0, len(cells), heads)] if heads else []
    return [row[1:] for row in rows[1:]]


def actions(visitor: Person, **query: str) -> list[str]:
    return [row[0] for row in shown(visitor, **query)]


def downloaded(visitor: Person, **query: str) -> list[list[str]]:
    answer = visitor.browser.get(f"{PATH}.csv", query_string=query)
    assert answer.status_code == 200, answer.text
    head, *found = csv.reader(StringIO(answer.text))
    assert tuple(head) == HEAD
    return found


def test_an_admin_sees_the_own_tenants_rows_and_an_operator_all(
    app: Flask, parts: Parts, ann: Person, bob: Person, admin: Person, operator: Person
) -> None:
    add(
        parts,
        AuditEntry("sign-in-failed", detail={"count": 4}),
        AuditEntry("breaker-opened", "provider:demo"),
    )
    everything = shown(operator)
    assert [row[1] for row in everything] == ["–", "–", "otto", "–", "ada", "–", "bob", "–", "ann", "–"]
    assert {row[-1] for row in everything} == {"default", "elsewhere", "staff", "–"}
    own = shown(admin)
    assert [(row[0], row[1]) for row in own] == [
        ("signed-in", "ada"),
        ("user-added", "–"),
        ("signed-in", "ann"),
        ("user-added", "–"),
    ]
    assert {row[-1] for row in downloaded(admin)} == {"default"}
    assert len(downloaded(operator)) == len(audited(app))


@pytest.mark.parametrize("name", ["user", "subject", "tenant", "request"])
def test_a_foreign_name_or_id_finds_what_an_absent_one_finds(
    app: Flask, bob: Person, admin: Person, name: str
) -> None:
    bobs = who(app, "bob")
    (row,) = audited(app, "signed-in")[:1]
    foreign = {
        "user": ("bob", bobs.user_id),
        "subject": ("bob", f"user:{bobs.user_id}"),
        "tenant": ("elsewhere", bobs.tenant_id),
        "request": (row.request_id,),
    }[name]
    for ending in ("", ".csv"):
        for each in foreign:
            absent = re.sub(r"[^:]", "x", each)
            theirs, nobodys = (
                admin.browser.get(PATH + ending, query_string={name: text}) for text in (each, absent)
            )
            if name == "tenant":
                assert actions(admin, tenant=each) == actions(admin)
            else:
                assert likeness(theirs, each, quote(each)) == likeness(nobodys, absent, quote(absent))
                assert actions(admin, **{name: each}) == []


def test_an_admin_is_not_told_the_name_of_an_operator_from_elsewhere(
    app: Flask, parts: Parts, ann: Person, admin: Person, operator: Person
) -> None:
    ottos, anns = who(app, "otto"), who(app, "ann")
    entry = AuditEntry.of(ottos, "role-changed", f"user:{anns.user_id}", **{"from": "member", "to": "admin"})
    add(parts, replace(entry, tenant_id=anns.tenant_id))
    page = admin.get(f"{PATH}?action=role-changed").text
    assert "an operator" in page
    assert "otto" not in page
    assert ottos.user_id not in page + admin.get(f"{PATH}.csv").text
    assert actions(admin, user="otto") == [], "nor whether it was somebody of that name"
    assert shown(operator, action="role-changed")[0][1] == "otto"


def test_filters_and_their_combinations(
    app: Flask, parts: Parts, ann: Person, admin: Person, operator: Person
) -> None:
    anns, adas = who(app, "ann"), who(app, "ada")
    long_ago = datetime(2026, 3, 1, 23, 59, 59, tzinfo=UTC)
    of_ann = AuditEntry.of(anns, "chat-deleted", "session:s1")
    add(parts, replace(of_ann, request_id="one", at=long_ago))
    add(parts, replace(of_ann, subject="session:s2", request_id="two", at=long_ago + timedelta(seconds=1)))
    add(parts, replace(AuditEntry.of(adas, "limit-changed", f"user:{anns.user_id}"), at=long_ago))
    for visitor in (admin, operator):
        assert actions(visitor, user="ann", action="chat-deleted") == ["chat-deleted"] * 2
        assert actions(visitor, user=anns.user_id, subject="session:s1") == ["chat-deleted"]
        assert actions(visitor, subject=" ANN ", action="limit-changed") == ["limit-changed"]
        assert actions(visitor, subject=anns.user_id, action="limit-changed") == ["limit-changed"]
        assert actions(visitor, request="two", user="ann") == ["chat-deleted"]
        assert actions(visitor, request="two", user="ada") == []
        assert actions(visitor, **{"from": "2026-03-01", "to": "2026-03-01"}) == [
            "limit-changed",
            "chat-deleted",
        ]
        assert actions(visitor, **{"from": "2026-03-02", "user": "ann", "action": "chat-deleted"}) == [
            "chat-deleted"
        ]
    assert actions(operator, tenant="default", user="otto") == []
    assert actions(operator, tenant="STAFF", user="otto") == ["signed-in"]
    assert actions(operator, tenant="nowhere") == []


def test_times_are_in_utc_with_the_script_too(parts: Parts, operator: Person) -> None:
    """The script writes what is in a <time> in the reader's own zone."""
    add(parts, AuditEntry("cleaned-up", at=datetime(2026, 3, 1, 23, 59, 59, tzinfo=UTC)))
    page = operator.get(f"{PATH}?action=cleaned-up").text
    assert "01 Mar 2026, 23:59:59" in page
    assert "<time" not in page
    assert downloaded(operator, action="cleaned-up")[0][0] == "2026-03-01T23:59:59Z"


def test_an_erased_user_is_found_by_the_id(parts: Parts, operator: Person) -> None:
    add(parts, AuditEntry("signed-in", "user:erased-id", "t", "erased-id", "r"))
    for query in ({"user": "erased-id"}, {"subject": "erased-id"}, {"subject": "user:erased-id"}):
        ((action, user, subject, *_),) = shown(operator, **query)
        assert (action, subject) == ("signed-in", "user:erased-id")
        assert user == "erased-idno such account now"


def test_what_cannot_be_a_filter_is_refused_and_is_no_error(admin: Person) -> None:
    refused = (
        {"from": "yesterday"},
        {"to": "2026-13-01"},
        {"action": "no-such-action"},
        {"user": "x" * 161},
        {"after": "!"},
        {"after": "WyJub3cgYW5kIHRoZW4iLCAxXQ=="},
    )
    for query in refused:
        assert admin.browser.get(PATH, query_string=query).status_code == 400, query
        if "after" not in query:  # the file has all pages
            assert admin.browser.get(f"{PATH}.csv", query_string=query).status_code == 400, query
    assert shown(admin, **{"from": "0001-01-01", "to": "9999-12-31", "action": ""}) == shown(admin)


def test_all_rows_are_on_exactly_one_page_also_with_a_filter(app: Flask, parts: Parts, admin: Person) -> None:
    tenant = who(app, "ada").tenant_id
    add(
        parts,
        *(
            AuditEntry("chat-deleted" if n % 2 else "chat-exported", f"session:{n}", tenant)
            for n in range(230)
        ),
    )
    path, found = f"{PATH}?action=chat-deleted", []
    while path:
        page = admin.get(path).text
        found += re.findall(r">session:(\d+)<", page)
        path = unescape(more[1]) if (more := NEXT.search(page)) else ""
    assert found == [str(n) for n in range(229, 0, -2)]


def test_details_are_words_and_never_markup(parts: Parts, operator: Person) -> None:
    add(parts, AuditEntry("limit-changed", "user:u", detail={"limit": "<b>x</b>", "filtered_by": ["a", 1]}))
    page = operator.get(f"{PATH}?action=limit-changed").text
    assert "<b>x" not in page
    assert shown(operator, action="limit-changed")[0][3] == 'limit: <b>x</b>filtered by: ["a", 1]'
    assert words({"count": 1, "format": None}) == [("format", "none")]
    assert words({"count": 2}) == [("count", "2")]


def test_the_page_is_as_every_page_is(admin: Person, operator: Person) -> None:
    for visitor in (admin, operator):
        assert list(faults(visitor.get(PATH).text)) == []
        assert list(faults(visitor.get(f"{PATH}?user=nobody").text)) == []
    assert 'name="tenant"' not in admin.get(PATH).text


def test_no_cell_of_the_file_is_a_formula(parts: Parts, operator: Person) -> None:
    for sign in "=+-@\t\r\n":
        bad = f"{sign}HYPERLINK(1)"
        add(parts, AuditEntry("alert-acknowledged", bad, bad, bad, bad, {bad: bad, "count": 2}))
        row = downloaded(operator, action="alert-acknowledged")[0]
        assert sum("HYPERLINK" in cell for cell in row) == 5
        assert not any(cell.startswith(sign) for cell in row)
    assert inert("a=b") == "a=b"


def test_the_file_has_the_filtered_rows_and_its_making_is_in_the_log(
    app: Flask, admin: Person, ann: Person
) -> None:
    rows = downloaded(admin, user="ann", action="signed-in", **{"from": "2026-01-01"})
    assert [(row[1], row[2], row[5], row[-1]) for row in rows] == [("signed-in", "ann", "ann", "default")]
    assert datetime.fromisoformat(rows[0][0]) <= utc_now()
    (entry,) = audited(app, "audit-exported")
    adas = who(app, "ada")
    assert (entry.user_id, entry.tenant_id, entry.subject) == (adas.user_id, adas.tenant_id, "audit-log")
    assert entry.detail == {"action": "signed-in", "from": "2026-01-01", "filtered_by": "user"}
    assert actions(admin, action="audit-exported") == ["audit-exported"]
    answer = admin.get(f"{PATH}.csv")
    assert answer.mimetype == "text/csv"
    assert re.search(
        r'attachment; filename="audit-log-\d{4}-\d\d-\d\d\.csv"', answer.headers["Content-Disposition"]
    )


def test_no_file_comes_without_its_row(admin: Person, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*anything: object) -> None:
        raise RuntimeError("no row")

    monkeypatch.setattr("agentapp.storage.audit_log.AuditLog.add", fail)
    assert admin.get(f"{PATH}.csv").status_code == 500


def test_the_file_comes_in_pieces_and_no_connection_is_held_between_them(
    app: Flask, parts: Parts, admin: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_rows, "PIECE_ROWS", 10)
    tenant = who(app, "ada").tenant_id
    add(parts, *(AuditEntry("chat-deleted", f"session:{n}", tenant) for n in range(35)))
    answer = admin.browser.get(f"{PATH}.csv?action=chat-deleted", buffered=False)
    sizes = []
    for piece in answer.response:
        assert parts.db.connections_in_use() == 0
        assert parts.binder.bound_now() is None
        sizes.append(piece.count(b"\r\n" if isinstance(piece, bytes) else "\r\n"))  # type: ignore[arg-type]
    answer.close()
    assert sizes == [1, 10, 10, 10, 5]


def test_the_names_of_a_page_are_found_in_two_statements(parts: Parts, operator: Person, ann: Person) -> None:
    add(parts, *(AuditEntry("signed-in", f"user:u{n}", f"t{n}", f"u{n}") for n in range(50)))
    statements: list[str] = []

    def note(statement: str, values: Any) -> None:
        if re.search(r"FROM (users|tenants|audit_log)", statement):
            statements.append(statement)

    with statements_noted(note, parts.db):
        operator.get(PATH)
    assert len(statements) == 4, "who looks, the rows, the users, the tenants"
