"""One agent: what it refuses, and that it can be brought back to the beginning."""

from __future__ import annotations

import pytest

from agentapp.agents.provider import Message
from agentapp.errors import (
    ForeignScope,
)
from tests.agents.playing import TEAM, A
from tests.support.scripted import scope


def test_an_agent_refuses_any_scope_but_its_own_and_reports_it() -> None:
    reports: list[ForeignScope] = []
    agent = TEAM.build(A, reports.append).front
    for attempt in (
        lambda: agent.make_call(scope("b"), "m", 10),
        lambda: agent.add_messages(scope("b"), Message("user", ("hi",))),
    ):
        with pytest.raises(ForeignScope, match="triage"):
            attempt()
    assert [r.asked for r in reports] == [scope("b")] * 2
    assert agent.is_fresh


def test_reset_brings_an_agent_back_to_just_made() -> None:
    agent, fresh = TEAM.build(A).front, TEAM.build(A).front
    agent.add_messages(A, Message("user", ("a secret",)))
    assert not agent.is_fresh
    agent.reset()
    assert agent.is_fresh
    assert agent.make_call(A, "m", 10) == fresh.make_call(A, "m", 10)
