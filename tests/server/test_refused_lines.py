"""Requests that are refused without a thread are in the log too, and a flood of them is counted."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from agentapp.server.refused_lines import LINES_AT_ONCE, RefusedLines


def connection(method: str | None = "POST", user: str | None = "u") -> Any:
    request = None if method is None else SimpleNamespace(method=method)
    return SimpleNamespace(incoming=SimpleNamespace(request=request), since=10.0, user=user)


def test_each_has_a_line_with_what_is_known_of_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lines = RefusedLines()
    lines.refused(connection(), now=10.25)
    lines.refused(connection("CANARY", user=None), now=10.25)
    lines.refused(connection(None), now=10.25)
    told = [vars(record) for record in caplog.records]
    assert [line["method"] for line in told] == ["POST", "-", "-"]
    assert {line["message"] for line in told} == {"request"}
    assert (told[0]["status"], told[0]["code"], told[0]["ms"], told[0]["user_id"]) == (
        503,
        "busy",
        250.0,
        "u",
    )


def test_a_flood_has_a_few_lines_and_their_number(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lines = RefusedLines()
    for _ in range(2):
        for _ in range(LINES_AT_ONCE + 1000):
            lines.refused(connection(), now=11.0)
        lines.sweep()
        lines.sweep()
    counts = [vars(record).get("count") for record in caplog.records]
    assert counts == ([None] * LINES_AT_ONCE + [1000]) * 2
