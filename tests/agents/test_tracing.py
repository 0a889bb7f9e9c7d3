"""A turn's loop is watched by what a driver asks of it: the drivers for threads and for asyncio alike."""

from __future__ import annotations

import asyncio
import time

import pytest

from agentapp.agents import AsyncDriver, Opening, ThreadedDriver, TurnLoop
from agentapp.agents.tool import ToolContext
from agentapp.errors import ProviderRejected
from agentapp.events import TurnResult
from agentapp.isolation import ContextBinder, ThreadBinder
from tests.agents.playing import TEAM, A, Played, play_async
from tests.support.scripted import AsyncScripted, Scripted, calls
from tests.support.traces import KeptSpans, error_of, tree


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_both_drivers_are_traced_alike(kind: str) -> None:
    spans = KeptSpans()
    trace = spans.traces().begin(A, "turn", time.monotonic())
    script = calls(("double", {"number": 2})), ProviderRejected("no")
    loop = TurnLoop(A, TEAM.build(A), Opening("hello"), "some-model")
    played = Played(loop)
    watched = trace.watched(loop)

    def play() -> None:
        if kind == "threads":
            driver = ThreadedDriver(Scripted(*script), ThreadBinder())
            played.note_all(driver.run(watched, ToolContext(A)))
        else:
            asyncio.run(play_async(AsyncDriver(AsyncScripted(*script), ContextBinder()), watched, played))

    with pytest.raises(ProviderRejected):
        play()
    trace.end(TurnResult("failed", error_code="provider-failed"))
    chat = "chat some-model"
    below = [("invoke_agent triage", [chat, "execute_tool double", chat])]
    assert tree(spans.all()) == ("invoke_workflow turn", below)
    assert [error_of(span) for span in spans.all() if span.name == chat] == [None, "ProviderRejected"]
    spans.tracer.close()
