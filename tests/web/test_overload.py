"""What is told to a request that finds no place in any queue: the same for everybody, and complete."""

from __future__ import annotations

import json
from http.client import HTTPResponse
from io import BytesIO
from typing import Any, cast

import pytest
from flask import Flask

from agentapp.web.headers import CONTENT_POLICY


class Bytes:
    """What `HTTPResponse` reads from in place of a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> BytesIO:
        return BytesIO(self._data)


def answer(app: Flask, wants_page: bool, retry_after: int = 1) -> tuple[HTTPResponse, str]:
    found = HTTPResponse(
        cast(Any, Bytes(app.extensions["agentapp.busy_answer"](wants_page, 256, retry_after)))
    )
    found.begin()
    return found, found.read().decode()


@pytest.mark.parametrize("wants_page", [False, True])
def test_it_has_the_headers_of_every_answer_and_nothing_that_is_for_one_person(
    app: Flask, wants_page: bool
) -> None:
    found, body = answer(app, wants_page)
    assert (found.status, found.getheader("Retry-After"), found.getheader("Connection")) == (
        503,
        "1",
        "close",
    )
    assert found.getheader("Content-Security-Policy") == CONTENT_POLICY
    assert found.getheader("Cache-Control") == "no-store"
    assert int(found.getheader("Content-Length") or 0) == len(body.encode())
    assert found.getheader("Set-Cookie") is None
    assert found.getheader("X-Request-ID") is None
    assert "csrf" not in body


def test_a_script_and_a_person_are_told_the_same(app: Flask) -> None:
    found, body = answer(app, False)
    problem = json.loads(body)
    assert found.getheader("Content-Type") == "application/problem+json"
    assert (problem["code"], problem["scope"], problem["retry_after"]) == ("busy", "server", 1)
    found, page = answer(app, True)
    assert found.getheader("Content-Type") == "text/html; charset=utf-8"
    assert problem["detail"] in page


@pytest.mark.parametrize("wants_page", [False, True])
def test_it_says_when_to_come_back(app: Flask, wants_page: bool) -> None:
    for seconds in (2, 17):
        found, body = answer(app, wants_page, seconds)
        assert found.getheader("Retry-After") == f"{seconds}"
        assert wants_page or json.loads(body)["retry_after"] == seconds
