"""Turns played with both drivers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentapp.agents import (
    AsyncDriver,
    Deadlines,
    Limits,
    Opening,
    Team,
    ThreadedDriver,
    TurnLoop,
)
from agentapp.agents.prices import Prices
from agentapp.agents.tool import ToolContext
from agentapp.isolation import ContextBinder, ThreadBinder
from tests.agents.playing import TEAM, A, Play, Played, play_async
from tests.support.scripted import AsyncScripted, Scripted


@pytest.fixture(params=["threads", "asyncio"])
def play(request: pytest.FixtureRequest) -> Play:
    """Plays one turn of answers and returns the model and what happened."""

    def start(
        *answers: Any,
        text: str = "hello",
        agent: str = "",
        team: Team = TEAM,
        limits: Limits | None = None,
        deadlines: Deadlines | None = None,
        model: list[Any] | None = None,
        prices: Prices | None = None,
        called_before: dict[str, int] | None = None,
    ) -> Played:
        loop = TurnLoop(
            A,
            team.build(A),
            Opening(text, (), agent),
            "some-model",
            limits or Limits(),
            prices or Prices(),
            called_before or {},
        )
        played = Played(loop)
        threaded = request.param == "threads"
        provider = Scripted(*answers) if threaded else AsyncScripted(*answers)
        if model is not None:
            model.append(provider)
        try:
            if threaded:
                binder = ThreadBinder()
                played.note_all(ThreadedDriver(provider, binder, deadlines).run(loop, ToolContext(A)))
            else:
                asyncio.run(play_async(AsyncDriver(provider, ContextBinder(), deadlines), loop, played))  # type: ignore[arg-type]
        except Exception as error:
            played.error = error
        return played

    return start
