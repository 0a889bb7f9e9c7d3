"""What cannot be stored is refused in every field of the forms that change breakers and limits."""

from __future__ import annotations

from typing import Any

import pytest
from flask import Flask

from agentapp.web.parts import Parts
from tests.support.admin_rows import audited, ids_of
from tests.support.users import JSON, Person, person

GOOD = {
    "breakers": {"action": "open", "reason": "a test"},
    "limits": {"rate": "5/minute", "budget": "1", "concurrent": "1"},
}
BAD = ("a\0b", "\ud800", "x" * 40_000, 5, None, [], {"a": "b"})


@pytest.mark.parametrize("page", GOOD)
def test_no_field_takes_what_cannot_be_stored(app: Flask, parts: Parts, ann: Person, page: str) -> None:
    operator = person(app, "otto", role="operator")
    path = f"/admin/{page}/user/{ids_of(parts, ann)[1]}"
    for name in GOOD[page]:
        for value in BAD:
            body: dict[str, Any] = {**GOOD[page], name: value, "csrf_token": operator.csrf}
            answer = operator.browser.post(path, json=body, headers=JSON)
            assert (answer.status_code, answer.json["code"]) == (400, "bad-request"), (name, value)
    if page == "breakers":
        assert audited(parts, "breaker-forced") == []


def test_addresses_that_nothing_has_are_not_found(app: Flask) -> None:
    operator = person(app, "otto", role="operator")
    for page in GOOD:
        for owner in ("user/x", "user/" + "x" * 65, "chat/x", "session/%00", "user/%ed%a0%80"):
            assert operator.get(f"/admin/{page}/{owner}").status_code in (400, 404)
    for query in ("after=x", "scope=user&name=%00", "show=%00", "user=a%00b", "window=", "list=x"):
        for page in GOOD:
            assert operator.get(f"/admin/{page}?{query}").status_code in (200, 400)
