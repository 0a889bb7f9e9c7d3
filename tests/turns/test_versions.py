"""Versions of turns: what follows what, what is shown, what the model sees; and the log of an ended turn."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.errors import NotFound, TurnInProgress
from agentapp.events import (
    AgentStarted,
    Event,
    Text,
    ToolCompleted,
    ToolExecuting,
    TurnStarted,
    text_of,
    unpacked,
)
from agentapp.isolation import Scope
from agentapp.web.parts import Parts
from agentapp.web.steps import steps_of
from tests.support.scripted import Scripted, hands_over
from tests.support.turns import begin, someone
from tests.support.users import PAGE, Person


@pytest.fixture
def scope(parts: Parts) -> Scope:
    return someone(parts, "uma")


def heard(parts: Parts, scope: Scope, text: str | None, reply: str = "ok", **place: str) -> tuple[str, Any]:
    """The id of the turn, and what its model was shown."""
    model = Scripted(reply)
    service = replace(parts.turns.kit, driver=ThreadedDriver(model, parts.binder))
    begun: Any = begin(service, scope, text, **place)
    begun.finish()
    return begun.id, [" ".join(message.texts) for message in model.asked[0].messages]


def test_a_model_sees_its_own_branch_and_no_other_version(parts: Parts, scope: Scope) -> None:
    first, _ = heard(parts, scope, "one", "1")
    second, _ = heard(parts, scope, "two", "2")
    third, seen = heard(parts, scope, "three", "3")
    assert seen == ["one", "1", "two", "2", "three"]
    retried, seen = heard(parts, scope, None, "2b", replaces=second)
    assert seen == ["one", "1", "two"], "neither the old version nor what came after it"
    _, seen = heard(parts, scope, "three again", "3b")
    assert seen == ["one", "1", "two", "2b", "three again"], "after the newest"
    _, seen = heard(parts, scope, "four", "4", after=third)
    assert seen == ["one", "1", "two", "2", "three", "3", "four"], "or after the one that was shown"
    _, seen = heard(parts, scope, "another beginning", "0", replaces=first)
    assert seen == ["another beginning"]
    with parts.binder.bound(scope):
        whole = parts.chats.transcript(scope)
    assert [(turn.number, turn.follows) for turn in whole.turns] == [
        (1, 0),
        (2, 1),
        (3, 2),
        (4, 1),
        (5, 4),
        (6, 3),
        (7, 0),
    ]
    assert [message.seq for message in whole.messages] == list(range(1, 15)), "and nothing was overwritten"
    assert retried == whole.turns[3].id


def test_a_version_goes_on_with_the_agent_of_its_own_branch(parts: Parts, scope: Scope) -> None:
    heard(parts, scope, "hello", "hi")
    driver = ThreadedDriver(Scripted(hands_over("maths"), "42"), parts.binder)
    at_maths: Any = begin(replace(parts.turns.kit, driver=driver), scope, "sum")
    assert at_maths.finish().agent == "maths"

    def agent_after(**place: str) -> str:
        service = replace(parts.turns.kit, driver=ThreadedDriver(Scripted("ok"), parts.binder))
        begun: Any = begin(service, scope, "and now", **place)
        return str(begun.finish().agent)

    assert agent_after() == "maths"
    assert agent_after(replaces=at_maths.id) == "triage", "as it was before the one it replaces"
    assert agent_after(after=at_maths.id) == "maths"


@pytest.mark.parametrize("place", ["after", "replaces"])
def test_a_turn_of_another_chat_is_no_place(parts: Parts, scope: Scope, place: str) -> None:
    other = scope.within(parts.chats.create(scope).id)
    elsewhere, _ = heard(parts, other, "in the other chat")
    for wanted in (elsewhere, "nothing-like-it"):
        for text in ("hello", *([None] if place == "replaces" else [])):
            with pytest.raises(NotFound):
                begin(parts.turns.kit, scope, text, **{place: wanted})
    with parts.binder.bound(scope):
        assert parts.chats.transcript(scope).turns == ()


def test_a_running_turn_is_not_replaced(parts: Parts, scope: Scope) -> None:
    running: Any = begin(parts.turns.kit, scope, "hello")
    with pytest.raises(TurnInProgress):
        begin(parts.turns.kit, scope, None, replaces=running.id)
    running.finish()


def test_pages_show_one_version_and_link_to_the_others(ann: Person) -> None:
    chat = ann.new_chat()
    first = ann.ask(chat, "first question")["turn_id"]
    second = ann.ask(chat, "second question")["turn_id"]
    edited = ann.send(chat, "second question, better put", replaces=second).json["turn_id"]
    again = ann.post(f"/chat/{chat}/turns/{edited}/retry", PAGE)
    assert (again.status_code, again.location) == (303, f"/chat/{chat}#latest")
    page = ann.get(f"/chat/{chat}").text
    assert "second question, better put" in page
    assert "3 of 3" in page
    old = ann.get(f"/chat/{chat}?version={second}").text
    assert "better put" not in old.split("<main", 1)[1].split("composer", 1)[0]
    assert "1 of 3" in old
    assert f"?version={edited}" in old, "the next one is a link away"
    assert f'value="{second}"' in old, "what is sent from here follows what is shown"
    editing = ann.get(f"/chat/{chat}?edit={first}").text
    assert ">first question</textarea>" in editing
    assert f'name="replaces" value="{first}"' in editing
    told = ann.get(f"/chat/{chat}/export.md").text
    assert told.count("second question, better put") == 2, "the question, and the answer that repeats it"
    whole = ann.get(f"/chat/{chat}/export.json").json
    assert [turn["follows"] for turn in whole["turns"]] == [None, first, first, first]
    for bad in ("nothing-like-it", "a" * 22):
        assert ann.get(f"/chat/{chat}?version={bad}").status_code == 404
        assert ann.get(f"/chat/{chat}?edit={bad}").status_code == 404


TEXTS = st.builds(Text, st.text(min_size=1))
OTHERS = st.sampled_from(
    [
        AgentStarted("triage"),
        ToolExecuting("1", "calculate", {"expression": "1+1"}),
        ToolCompleted("1", "calculate", "2", failed=False, limited=False),
    ]
)


@given(st.lists(TEXTS | OTHERS), st.text())
def test_an_ended_turn_is_told_as_it_was_with_each_word_kept_once(events: list[Event], message: str) -> None:
    told = [TurnStarted("t", "s", message), *events]
    log, reply = [event.packed() for event in told], text_of(told)
    assert unpacked(json.loads(json.dumps(log)), message, reply) == told
    assert not any(isinstance(entry, list) and entry[0] == "text" for entry in log)
    assert all(step["name"] == "calculate" for step in steps_of(told))
