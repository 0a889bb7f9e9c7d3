"""How drivers run tools: at the same time, sync or async, with their scope."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

from agentapp.agents import (
    Agent,
    AsyncDriver,
    Opening,
    Team,
    ThreadedDriver,
    TurnLoop,
    tool,
)
from agentapp.agents.tool import ToolContext
from agentapp.isolation import ContextBinder, RequestScope, ThreadBinder
from agentapp.processors import Processors, new_thread
from tests.agents.playing import A, Play, Played, asked
from tests.support.scripted import AsyncScripted, Scripted, calls, scope


def test_tools_of_one_reply_run_in_parallel(play: Play) -> None:
    meeting = threading.Barrier(3)

    @tool
    def meet() -> str:
        """Returns only if two others are running at the same time."""
        meeting.wait(4)
        return "met"

    model: list[Any] = []
    play(
        calls(("meet", {}), ("meet", {}), ("meet", {})),
        "ok",
        team=Team(Agent("solo", "Go.", (meet,))),
        model=model,
    )
    assert [r.content for r in asked(model)[1].messages[-1].results] == ["met"] * 3


def test_an_async_tool_works_with_both_drivers(play: Play) -> None:
    @tool
    async def later(word: str) -> str:
        """The word, a little later."""
        await asyncio.sleep(0)
        return word

    model: list[Any] = []
    play(calls(("later", {"word": "yes"})), "ok", team=Team(Agent("solo", "Go.", (later,))), model=model)
    assert asked(model)[1].messages[-1].results[0].content == "yes"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_a_tool_of_a_turn_that_stays_on_one_processor_may_use_all(play: Play) -> None:
    everywhere = frozenset(os.sched_getaffinity(0))

    @tool
    def look() -> int:
        """On how many processors it may run."""
        return len(os.sched_getaffinity(0))

    model: list[Any] = []

    def turn() -> None:
        play(calls(("look", {})), "ok", team=Team(Agent("solo", "Go.", (look,))), model=model)

    thread = new_thread(turn, "turn", Processors(min(everywhere), everywhere))
    thread.start()
    thread.join(20)
    assert asked(model)[1].messages[-1].results[0].content == str(len(everywhere))


def test_each_tool_has_its_scope_carried_in() -> None:
    binder, seen = ThreadBinder(), []

    @tool
    def who(context: ToolContext) -> str:
        """Who is asking."""
        seen.append((binder.current(), context.scope, threading.current_thread().name))
        return "you"

    loop = TurnLoop(A, Team(Agent("solo", "Go.", (who,))).build(A), Opening("hi"), "m")
    list(ThreadedDriver(Scripted(calls(("who", {}), ("who", {})), "ok"), binder).run(loop, ToolContext(A)))
    assert [s[:2] for s in seen] == [(A, A), (A, A)]
    assert threading.current_thread().name not in {s[2] for s in seen}


def test_a_hundred_concurrent_tasks_keep_their_scopes_apart() -> None:
    binder = ContextBinder()
    seen: dict[str, set[RequestScope]] = {}

    @tool
    async def whose(context: ToolContext) -> str:
        """Whose turn is it?"""
        for _ in range(3):
            seen.setdefault(context.scope.user_id, set()).add(binder.current())
            await asyncio.sleep(0)
        return context.scope.user_id

    team = Team(Agent("solo", "Go.", (whose,)))

    async def one(name: str) -> str:
        mine = scope(name)
        model = AsyncScripted(calls(("whose", {})), lambda call: call.messages[-1].results[0].content)
        loop = TurnLoop(mine, team.build(mine), Opening(f"I am {name}"), "m")
        played = Played(loop)
        async for event in AsyncDriver(model, binder).run(loop, ToolContext(mine)):
            played.note(event)
        return played.text

    async def main() -> list[str]:
        return await asyncio.gather(*(one(str(n)) for n in range(100)))

    assert asyncio.run(main()) == [f"u-{n}" for n in range(100)]
    assert seen == {f"u-{n}": {scope(str(n))} for n in range(100)}
