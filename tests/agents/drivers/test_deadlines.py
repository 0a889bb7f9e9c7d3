"""The deadlines of model calls, tools and turns, and what a reader sees meanwhile."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from agentapp.agents import (
    Agent,
    AsyncDriver,
    Deadlines,
    Opening,
    Team,
    ThreadedDriver,
    TurnLoop,
    tool,
)
from agentapp.agents.provider import Reply
from agentapp.agents.tool import ToolContext
from agentapp.errors import (
    ProviderTimeout,
    TurnTimeout,
)
from agentapp.isolation import ContextBinder, ThreadBinder
from tests.agents.playing import TEAM, A, Play, Played, asked, double, play_async
from tests.support.scripted import AsyncScripted, Scripted, calls


def test_a_hanging_tool_becomes_a_result_and_the_others_are_kept(play: Play) -> None:
    release = threading.Event()

    @tool
    def hangs() -> str:
        """Never ends by itself."""
        release.wait(30)
        return "too late"

    model: list[Any] = []
    team = Team(Agent("solo", "Go.", tools=(hangs, double)))
    started = time.monotonic()
    turn = play(
        calls(("hangs", {}), ("double", {"number": 3})),
        "went on",
        team=team,
        deadlines=Deadlines(tool=0.2),
        model=model,
    )
    release.set()
    assert turn.text == "went on"
    assert time.monotonic() - started < 10
    first, second = asked(model)[1].messages[-1].results
    assert first.is_error
    assert "did not end within 0.2 seconds" in first.content
    assert second.content == "6"


def test_a_silent_model_is_given_up_at_the_first_token_deadline() -> None:
    release = threading.Event()

    def silent(call: object) -> Any:
        release.wait(30)
        yield "late"

    loop = TurnLoop(A, TEAM.build(A), Opening("hi"), "m")
    driver = ThreadedDriver(Scripted(silent), ThreadBinder(), Deadlines(first_token=0.2, tick=0.05))
    played = Played(loop)
    with pytest.raises(ProviderTimeout, match="did not begin to answer"):
        played.note_all(driver.run(loop, ToolContext(A)))
    release.set()
    assert played.ticks >= 2, "the reader was not told that the turn is alive"
    assert played.text == ""


def test_a_model_that_falls_silent_is_given_up_at_the_gap_deadline() -> None:
    release = threading.Event()

    def falls_silent(call: object) -> Any:
        yield "half "
        release.wait(30)
        yield "late"

    loop = TurnLoop(A, TEAM.build(A), Opening("hi"), "m")
    driver = ThreadedDriver(Scripted(falls_silent), ThreadBinder(), Deadlines(gap=0.2))
    played = Played(loop)
    with pytest.raises(ProviderTimeout, match="stopped answering"):
        played.note_all(driver.run(loop, ToolContext(A)))
    release.set()
    assert played.text == "half "


def test_progress_that_shows_nothing_still_tells_the_reader_that_all_is_well(play: Play) -> None:
    """A long tool input is streamed without a word of text."""

    def busy(call: object) -> Any:
        for _ in range(15):
            time.sleep(0.01)
            yield ""
        yield Reply("done")

    turn = play(busy, deadlines=Deadlines(tick=0.02, gap=0.2))
    assert turn.error is None
    assert turn.ticks >= 2


def test_a_slow_tool_tells_the_reader_that_all_is_well(play: Play) -> None:
    @tool
    def slow() -> str:
        """Takes a while."""
        time.sleep(0.1)
        return "done"

    team = Team(Agent("solo", "Go.", (slow,)))
    turn = play(calls(("slow", {})), "ok", team=team, deadlines=Deadlines(tick=0.02))
    assert turn.error is None
    assert turn.ticks >= 2


def test_a_reader_who_is_slow_is_not_the_models_silence() -> None:
    loop = TurnLoop(A, TEAM.build(A), Opening("hi"), "m")
    driver = ThreadedDriver(Scripted("one two three"), ThreadBinder(), Deadlines(gap=0.1, first_token=0.1))
    words = []
    for event in driver.run(loop, ToolContext(A)):
        if event is not None and event.kind == "text":
            time.sleep(0.15)
            words.append(event.data["text"])
    assert "".join(words) == "one two three"


def test_a_turn_as_a_whole_has_a_deadline() -> None:
    stop = threading.Event()

    def never_ends(call: object) -> Any:
        while not stop.wait(0.02):
            yield "more "

    loop = TurnLoop(A, TEAM.build(A), Opening("hi"), "m")
    driver = ThreadedDriver(Scripted(never_ends), ThreadBinder(), Deadlines(turn=0.1))
    with pytest.raises(TurnTimeout):
        list(driver.run(loop, ToolContext(A)))
    stop.set()


def test_async_deadlines_hold_too() -> None:
    class Silent(AsyncScripted):
        closed = False

        async def stream(self, call: Any) -> Any:
            try:
                yield "half "
                await asyncio.Event().wait()
            finally:
                self.closed = True

    model = Silent()
    loop = TurnLoop(A, TEAM.build(A), Opening("hi"), "m")
    played = Played(loop)

    async def main() -> None:
        driver = AsyncDriver(model, ContextBinder(), Deadlines(gap=0.2, tick=0.05))
        await play_async(driver, loop, played)

    with pytest.raises(ProviderTimeout):
        asyncio.run(main())
    assert played.text == "half "
    assert played.ticks >= 1
    assert model.closed
