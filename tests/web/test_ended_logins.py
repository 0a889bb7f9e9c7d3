"""Logins that have ended are remembered for a while, and not without limit."""

from __future__ import annotations

import pytest

from agentapp.web import ended_logins
from agentapp.web.ended_logins import EndedLogins


def test_a_login_that_ended_is_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for ever: the login of an account that was disabled counts again when it is enabled."""
    now = 1000.0
    monkeypatch.setattr(ended_logins.time, "monotonic", lambda: now)
    ended = EndedLogins()
    assert "token" not in ended
    assert None not in ended
    ended.add("token")
    assert "token" in ended
    now += ended_logins.REMEMBERED_SECONDS
    assert "token" not in ended


def test_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_logins, "MOST_REMEMBERED", 3)
    ended = EndedLogins()
    for token in ("a", "b", "a", "c", "d"):
        ended.add(token)
    assert [token for token in "abcd" if token in ended] == ["a", "c", "d"]
