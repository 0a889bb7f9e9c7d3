"""Halting a turn from another thread: at once wherever it waits, and paid for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from agentapp.agents import (
    Agent,
    Deadlines,
    Event,
    Team,
    tool,
)
from agentapp.agents.actions import AskModel
from agentapp.agents.provider import Reply
from agentapp.errors import (
    ProviderTimeout,
    TurnFailed,
    TurnInterrupted,
    TurnStopped,
    TurnTimeout,
)
from agentapp.events import Usage
from tests.agents.drivers.halts import (
    FallsSilent,
    FirstText,
    Halt,
    play,
    play_halted,
    reading_threads_end,
    turn,
)
from tests.support.scripted import SPENT, Scripted, calls


@pytest.mark.parametrize("error", [TurnStopped(), TurnInterrupted()], ids=lambda error: error.code)
def test_a_halt_is_raised_as_it_is_and_is_nobodys_fault(error: TurnFailed) -> None:
    assert (error.blame, error.usage) == ("nobody", None)
    assert str(error)
    model = FallsSilent("half ")
    play_halted(model, turn(), Halt(model.silent.wait, error))
    model.released.set()


def test_a_loop_that_is_stopped_while_it_asks_a_specialist_goes_no_further() -> None:
    actions = turn(agent="other").run()
    assert next(action for action in actions if isinstance(action, AskModel))
    with pytest.raises(TurnStopped):
        actions.throw(TurnStopped())


def test_a_halted_specialist_does_not_hand_back_to_the_front() -> None:
    def silent(call: object) -> Iterator[str]:
        begun.set()
        released.wait(30)
        yield "late"

    begun, released = threading.Event(), threading.Event()
    model = Scripted(silent, "I can try")
    loop = turn(agent="other")
    play_halted(model, loop, Halt(begun.wait))
    released.set()
    assert len(model.asked) == 1
    assert (loop.answering, loop.stays_with) == ("other", "")


def test_nothing_is_asked_once_the_turn_is_halted() -> None:
    halt: Future[Any] = Future()
    halt.set_exception(TurnInterrupted())
    model, loop = Scripted("never said"), turn()
    with pytest.raises(TurnInterrupted):
        play(model, loop, halt)
    assert (model.asked, loop.spent) == ([], ())


@pytest.mark.parametrize("kind", ["agent_started", "tool_executing", "tool_completed"])
def test_a_halt_between_two_actions_takes_effect_before_the_next(kind: str) -> None:
    ran: list[bool] = []
    seen: list[str] = []

    @tool
    def note() -> str:
        """Notes that it ran."""
        ran.append(True)
        return "done"

    def halt_at(event: Event | None) -> None:
        if event:
            seen.append(event.kind)
            if event.kind == kind:
                halt.set_exception(TurnStopped())

    halt: Future[Any] = Future()
    model = Scripted(calls(("note", {})), "the end")
    loop = turn(team=Team(Agent("solo", "Go.", (note,))))
    with pytest.raises(TurnStopped):
        play(model, loop, halt, seen=halt_at)
    assert seen[-1] == kind, "nothing more is told"
    assert len(ran) == (kind == "tool_completed")
    assert len(model.asked) == (kind != "agent_started")
    assert loop.usage == (SPENT if model.asked else Usage())


def test_a_turn_is_halted_while_its_tools_run() -> None:
    begun, released = threading.Barrier(3), threading.Event()

    @tool
    def hangs() -> str:
        """Takes its time."""
        begun.wait(5)
        released.wait(30)
        return "late"

    model = Scripted(calls(("hangs", {}), ("hangs", {})), "the end")
    loop = turn(team=Team(Agent("solo", "Go.", (hangs,))))
    play_halted(model, loop, Halt(lambda: begun.wait(5)), deadlines=Deadlines(tool=30, tick=30))
    released.set()
    assert len(model.asked) == 1
    assert loop.usage == SPENT


def test_a_tool_that_ends_does_not_end_the_wait_for_the_others() -> None:
    released = threading.Event()

    @tool
    def quick() -> str:
        """Ends at once."""
        return "quick"

    @tool
    def slow() -> str:
        """Ends when the driver has seen that the other one ended."""
        return f"slow {released.wait(20)}"

    def release(event: Event | None) -> None:
        if event is None:  # the first sign of life: by the clock it would come too late
            released.set()

    model = Scripted(calls(("quick", {}), ("slow", {})), "the end")
    loop = turn(team=Team(Agent("solo", "Go.", (quick, slow))))
    play(model, loop, Future(), Deadlines(tool=10, tick=60), release)
    assert [result.content for result in model.asked[1].messages[-1].results] == ["quick", "slow True"]


def test_an_answer_that_is_whole_but_not_shown_yet_when_it_is_stopped_is_no_answer() -> None:
    def stop(event: Event | None) -> None:
        if event and event.kind == "text":
            model.released.set()
            assert reading_threads_end()  # so that the whole answer waits to be told
            halt.set_exception(TurnStopped())

    whole = Usage(100, 40, 1)
    halt: Future[Any] = Future()
    model = FallsSilent("half ", rest=("of it", Reply("half of it", usage=whole)))
    loop = turn()
    said: list[Event | None] = []
    with pytest.raises(TurnStopped):
        play(model, loop, halt, seen=lambda event: (said.append(event), stop(event)))
    assert [event.data["text"] for event in said if event and event.kind == "text"] == ["half "]
    assert loop.stays_with == ""
    assert loop.usage == whole, "what it cost is known, and is not guessed"


@pytest.mark.parametrize(
    ("told", "said", "paid"),
    [
        (Usage(100, 1, 1), "x" * 40, Usage(100, 10, 1)),
        (Usage(100, 1, 1), "x" * 41, Usage(100, 11, 1)),
        (Usage(100, 1, 1), "", Usage(100, 1, 1)),
        (Usage(100, 50, 1), "x" * 40, Usage(100, 50, 1)),
        (Usage(), "x", Usage(0, 1, 0)),
    ],
)
@pytest.mark.parametrize("error", [TurnStopped, TurnInterrupted])
def test_what_was_shown_of_a_halted_answer_is_paid_for(
    told: Usage, said: str, paid: Usage, error: type[TurnFailed]
) -> None:
    model, loop, first_text = FallsSilent(told, said), turn(), FirstText()
    play_halted(model, loop, Halt(first_text.wait if said else model.silent.wait, error()), seen=first_text)
    model.released.set()
    assert [each[1:] for each in loop.spent] == [("some-model", paid)]


def test_an_answer_that_runs_into_a_deadline_costs_what_was_heard_of_it() -> None:
    for deadlines, error in ((Deadlines(gap=0.1), ProviderTimeout), (Deadlines(turn=0.1), TurnTimeout)):
        model, loop = FallsSilent(Usage(100, 1, 1), "x" * 400), turn()
        with pytest.raises(error):
            play(model, loop, deadlines=deadlines)
        model.released.set()
        assert loop.usage == Usage(100, 100, 1)
