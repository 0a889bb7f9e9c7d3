"""What only the driver for asyncio does."""

from __future__ import annotations

import asyncio
from typing import Any

from agentapp.agents import (
    AsyncDriver,
    Opening,
    TurnLoop,
)
from agentapp.agents.tool import ToolContext
from agentapp.isolation import ContextBinder
from tests.agents.playing import TEAM, A
from tests.support.scripted import AsyncScripted


def test_an_async_reader_who_leaves_closes_the_models_stream_at_once() -> None:
    class NeverEnds(AsyncScripted):
        closed = False

        async def stream(self, call: Any) -> Any:
            try:
                while True:
                    yield "more "
                    await asyncio.sleep(0)
            finally:
                self.closed = True

    model = NeverEnds()

    async def main() -> bool:
        loop = TurnLoop(A, TEAM.build(A), Opening("hi"), "m")
        events = AsyncDriver(model, ContextBinder()).run(loop, ToolContext(A))
        async for event in events:
            if event is not None and event.kind == "text":
                break
        await events.aclose()
        return model.closed

    assert asyncio.run(main())
