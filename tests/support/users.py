"""Users of the app through Flask's test client: signed in, with a chat, able to send."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from agentapp.config import Settings

PASSWORD = "a long enough password"
EVENTS = {"Accept": "text/event-stream"}
JSON = {"Accept": "application/json"}
PAGE = {"Accept": "text/html"}


def without_limits(settings: Settings) -> Settings:
    """For floods: everything is still counted, nobody is refused."""
    return replace(
        settings,
        breaker_failures=10**9,
        breaker_user_failures=10**9,
        provider_breaker_users=10**9,
        rate_session=None,
        rate_user=None,
        rate_tenant=None,
        rate_chats=None,
        rate_login=None,
        session_tokens=None,
        user_day_microusd=None,
        tenant_month_microusd=None,
        concurrent_user=None,
        streams_user=None,
        pages_user=None,
    )


def csrf_of(page: str) -> str:
    found = re.search(r'<meta name="csrf-token" content="([^"]+)"', page)
    assert found, "the page has no csrf-token"
    return found[1]


def events_of(body: str) -> list[dict[str, Any]]:
    """The events of a stream, each as its data with ``id`` and ``event`` added."""
    events = []
    for block in body.split("\n\n"):
        lines = [line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":")]
        if lines:
            fields = dict(lines)
            events.append({**json.loads(fields["data"]), "id": int(fields["id"]), "event": fields["event"]})
    return events


@dataclass
class Person:
    """Somebody signed in with a browser of their own."""

    name: str
    browser: FlaskClient
    csrf: str

    def new_chat(self) -> str:
        answer = self.post("/chat")
        assert answer.status_code == 303, answer.text
        return answer.location.rsplit("/", 1)[1]

    def post(self, path: str, headers: dict[str, str] | None = None, **data: str) -> TestResponse:
        return self.browser.post(path, data={"csrf_token": self.csrf, **data}, headers=headers or PAGE)

    def get(self, path: str) -> TestResponse:
        return self.browser.get(path, headers=PAGE)

    def send(
        self, chat: str, message: str, headers: dict[str, str] | None = None, **data: str
    ) -> TestResponse:
        return self.post(f"/chat/{chat}/messages", headers or JSON, message=message, **data)

    def ask(self, chat: str, message: str) -> dict[str, Any]:
        """Send and expect an answer."""
        answer = self.send(chat, message)
        assert answer.status_code == 200, answer.text
        body: dict[str, Any] = answer.json
        return body

    def stream(self, chat: str, message: str) -> list[dict[str, Any]]:
        """Send and read the whole event stream."""
        return events_of(self.send(chat, message, EVENTS).text)


def person(app: Flask, name: str, *, tenant: str = "default", role: str = "member") -> Person:
    app.extensions["agentapp"].accounts.add(name, PASSWORD, tenant=tenant, role=role)
    return sign_in(app, name)


def sign_in(app: Flask, name: str) -> Person:
    browser = app.test_client()
    csrf = csrf_of(browser.get("/login", headers=PAGE).text)
    answer = browser.post(
        "/login", data={"csrf_token": csrf, "username": name, "password": PASSWORD}, headers=PAGE
    )
    assert answer.status_code == 303, answer.text
    return Person(name, browser, csrf_of(browser.get("/chat", headers=PAGE).text))
