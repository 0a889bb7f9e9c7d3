"""An answer cut after any of its bytes: never taken for a whole one, and no word in it that was not said."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from agentapp.agents import Agent, Opening, Team, ThreadedDriver, TurnLoop
from agentapp.agents.meter import estimated_tokens
from agentapp.agents.provider import Reply
from agentapp.agents.providers.anthropic import AnthropicProvider
from agentapp.agents.tool import ToolContext
from agentapp.errors import ProviderError
from agentapp.events import Usage
from agentapp.isolation import ThreadBinder
from tests.agents.providers.anthropic.asking import KEY, call
from tests.support.messages_api import MessagesApi, Script, events_of
from tests.support.rounds import ROUNDS
from tests.support.scripted import scope

A = scope("a")
TEAM = Team(Agent("front", "Go."))
PIECES = (
    "Grüße! ",
    "A cut ",
    "may fall ",
    "into the middle ",
    "of a character 🌍 ",
    "or a line:\n\n",
    "fine.",
)
ANSWER = "".join(PIECES)
WHOLE = Script(PIECES, input_tokens=17, output_tokens=40)
BODY = b"".join(event.data for event in events_of(WHOLE, {"model": "claude-test", "messages": []}, 1))
STEP = 4 if ROUNDS == 1 else 1  # bytes between two cuts


def as_asked(request: Any) -> Script:
    """The answer with the fault that the message names."""
    fault = request["messages"][-1]["content"][0]["text"]
    return Script(PIECES, input_tokens=17, output_tokens=40, fault=fault)


@pytest.fixture(scope="module")
def claude() -> Iterator[AnthropicProvider]:
    with MessagesApi(responder=as_asked) as api:
        provider = AnthropicProvider(KEY, api.url)
        yield provider
        provider.close()


def stream(claude: AnthropicProvider, fault: str) -> tuple[str, Reply | None, Exception | None]:
    """The text so far, the reply if there was one, and the error if there was one."""
    text, reply = "", None
    try:
        for item in claude.stream(call(fault)):
            if isinstance(item, str):
                text += item
            elif isinstance(item, Reply):
                reply = item
    except Exception as error:
        return text, reply, error
    return text, reply, None


def checked(claude: AnthropicProvider, fault: str) -> str:
    text, reply, error = stream(claude, fault)
    assert reply is None, fault
    assert isinstance(error, ProviderError), fault
    assert ANSWER.startswith(text), fault
    assert error.said_something == bool(text), fault
    heard = max(1, estimated_tokens((text,)))
    assert error.usage in (Usage(0, 0, 1), Usage(17, heard, 1), Usage(17, 40, 1)), fault
    return text


def test_a_cut_after_any_byte_leaves_the_beginning_of_the_answer_and_no_reply(
    claude: AnthropicProvider,
) -> None:
    assert len(BODY) > 1500
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda n: checked(claude, f"cut:{n}"), range(0, len(BODY), STEP)))
    assert texts == sorted(texts, key=len), "a later cut never shows less"
    assert (texts[0], texts[-1]) == ("", ANSWER)
    assert {"".join(PIECES[:n]) for n in range(len(PIECES) + 1)} == set(texts)


def test_only_the_last_byte_makes_it_an_answer(claude: AnthropicProvider) -> None:
    for fault in (f"cut:{len(BODY)}", "none"):
        text, reply, error = stream(claude, fault)
        assert (text, error) == (ANSWER, None)
        assert reply == Reply(ANSWER, (), Usage(17, 40, 1), "end_turn")


def test_a_connection_reset_after_any_byte_is_no_answer_either(claude: AnthropicProvider) -> None:
    """What had come before the reset may be lost with it."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: checked(claude, f"reset:{n}"), range(0, len(BODY), 23)))


def played(claude: AnthropicProvider, cut: int) -> None:
    loop, said = TurnLoop(A, TEAM.build(A), Opening(f"cut:{cut}"), "claude-test"), []
    events = ThreadedDriver(claude, ThreadBinder()).run(loop, ToolContext(A))
    with pytest.raises(ProviderError):
        said.extend(event.data["text"] for event in events if event and event.kind == "text")
    assert ANSWER.startswith("".join(said)), cut
    assert loop.stays_with == ""


def test_a_turn_whose_answer_is_cut_fails_after_the_beginning_of_it(claude: AnthropicProvider) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: played(claude, n), range(0, len(BODY), 10)))
