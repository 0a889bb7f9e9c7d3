"""What is marked for the provider's prompt cache, and what a cache such as the real one makes of it."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentapp.agents.provider import Message, ModelCall, ToolCall, ToolResult
from agentapp.agents.providers.anthropic.messages import request_for
from agentapp.events import Usage
from tests.agents.providers.anthropic.asking import ADD, KEY, KINDS, call, good, reply_of
from tests.support.messages_api import MessagesApi, PromptCache
from tests.support.messages_api.validation import validate

LONG = "Be brief. " * 500  # 1,250 tokens
HEADERS = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> PromptCache:
    return PromptCache(clock)


def user(*texts: str) -> Message:
    return Message("user", texts)


def answered(text: str) -> Message:
    return Message("assistant", (text,))


def with_tools(count: int, step: int = 0) -> tuple[Message, Message]:
    """An assistant's message that calls so many tools at once, and their results."""
    ids = [f"call-{step}-{number}" for number in range(count)]
    calls = tuple(ToolCall(each, "add", {"a": 1}) for each in ids)
    return (
        Message("assistant", ("Let me see.",), calls=calls),
        Message("user", results=tuple(ToolResult(each, "2") for each in ids)),
    )


def taken(cache: PromptCache, *messages: Message, **changes: Any) -> tuple[int, int, int]:
    """How many tokens of a call are neither read nor written, read, and written."""
    request = request_for(call(messages=messages, **{"system": LONG, "tools": (ADD,)} | changes))
    del request["timeout"]
    validate("/v1/messages", HEADERS, request)
    found = cache.take("a workspace", request)
    return found.plain, found.read, found.written


def test_a_call_that_goes_on_where_another_ended_reads_all_of_that(cache: PromptCache) -> None:
    first = taken(cache, user("hello"))
    assert first[:2] == (0, 0)
    plain, read, written = taken(cache, user("hello"), *with_tools(2))
    assert (plain, read) == (0, first[2])
    assert 0 < written < 30


@pytest.mark.parametrize("count", [1, 9, 10, 20, 40])
def test_so_it_is_however_many_tools_were_called_at_once(cache: PromptCache, count: int) -> None:
    """By itself the API looks back over twenty blocks."""
    said: tuple[Message, ...] = (user("hello"),)
    for step in range(4):
        _, before_read, before_written = taken(cache, *said)
        said += with_tools(count, step)
        assert taken(cache, *said)[1] == before_read + before_written


def test_the_next_turn_reads_up_to_what_the_person_said_last(cache: PromptCache) -> None:
    """What tools said in between is not sent again."""
    first = taken(cache, user("hello " * 100))
    taken(cache, user("hello " * 100), *with_tools(15))
    assert taken(cache, user("hello " * 100), answered("good day"), user("and now?"))[1] == first[2]


def test_so_does_a_specialist_who_was_handed_a_note_with_it(cache: PromptCache) -> None:
    taken(cache, user("hello " * 100, "[Handed over by triage] Task: greet"))
    plain, read, written = taken(cache, user("hello " * 100), answered("good day"), user("and now?"))
    assert read > 1_250 + 149
    assert (plain, written < 10) == (0, True)


def test_another_chat_of_the_user_reads_the_instructions_and_the_tools(cache: PromptCache) -> None:
    taken(cache, user("hello " * 100))
    assert taken(cache, user("something else"))[1] > 1_250


def test_an_entry_is_forgotten_five_minutes_after_it_was_read_last(cache: PromptCache, clock: Clock) -> None:
    _, _, written = taken(cache, user("hello"))
    for _ in range(3):
        clock.now += 299
        assert taken(cache, user("hello")) == (0, written, 0)
    clock.now += 301
    assert taken(cache, user("hello")) == (0, 0, written)


def test_what_is_too_short_is_not_kept(cache: PromptCache) -> None:
    for _ in range(2):
        plain, read, written = taken(cache, user("hello"), system="Be brief.")
        assert (read, written) == (0, 0)
        assert plain > 0


@pytest.mark.parametrize("changes", [{"model": "another"}, {"system": f"x{LONG}"}, {"tools": ()}])
def test_a_cache_is_of_one_model_and_knows_no_other_beginning(
    cache: PromptCache, changes: dict[str, Any]
) -> None:
    taken(cache, user("hello"))
    assert taken(cache, user("hello"), **changes)[1] == 0


def test_no_entry_is_read_by_another_workspace(cache: PromptCache) -> None:
    request = request_for(call(system=LONG))
    assert [cache.take(name, request).read for name in ("one", "one", "two")] == [0, 1_252, 0]


def test_an_entry_is_found_at_most_twenty_blocks_back(cache: PromptCache) -> None:
    """Of the real API too. Or the claims about many tools would be about nothing."""

    def blocks(count: int, marked: int) -> Any:
        texts = [{"type": "text", "text": f"{n} " + "x" * 8_000} for n in range(count)]
        texts[marked]["cache_control"] = {"type": "ephemeral"}  # type: ignore[assignment]
        return good(messages=[{"role": "user", "content": texts}])

    cache.take("w", blocks(1, 0))
    assert cache.take("w", blocks(20, 19)).read > 0
    cache.take("v", blocks(1, 0))
    assert cache.take("v", blocks(21, 20)).read == 0


text = st.sampled_from(["", " ", "hello", "and so on"])
result = st.builds(ToolResult, st.just("t"), text)
message = st.one_of(
    st.builds(
        Message, st.just("user"), st.lists(text, max_size=4).map(tuple), results=st.lists(result).map(tuple)
    ),
    st.builds(Message, st.just("assistant"), st.lists(text, max_size=3).map(tuple)),
)


@given(st.lists(message, max_size=12), st.sampled_from(["", "Be brief."]))
def test_no_call_has_more_marks_than_the_api_takes(messages: list[Message], system: str) -> None:
    request = request_for(ModelCall("m", system, tuple(messages), (ADD,)))
    blocks = [block for each in request["messages"] for block in each["content"]]
    marked = [block for block in (*request.get("system", ()), *blocks) if "cache_control" in block]
    assert len(marked) <= 4
    assert "cache_control" not in request["tools"][-1], "tools alone are the same for all users"


def test_the_local_api_refuses_a_fifth_mark(api: MessagesApi) -> None:
    for count, status in ((4, 200), (5, 400)):
        block = {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}
        body = good(messages=[{"role": "user", "content": [block] * count}])
        answer = httpx2.post(f"{api.url}/v1/messages", json=body, headers=HEADERS, trust_env=False)
        assert answer.status_code == status


def test_a_call_is_told_what_was_read_and_written(ask: Any, api: MessagesApi) -> None:
    usages = [reply_of(ask(call(system=LONG))).usage for _ in range(2)]
    assert usages == [Usage(1_252, 4, 1, 0, 1_252), Usage(1_252, 4, 1, 1_252, 0)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_gateway_that_knows_no_cache_is_not_sent_any_mark(api: MessagesApi, kind: str) -> None:
    drive, provider = KINDS[kind]
    ask = drive(provider(KEY, api.url, prompt_cache=False))
    messages = (user("hello"), *with_tools(1))
    assert reply_of(ask(call(system=LONG, messages=messages, tools=(ADD,)))).usage.cache_write_tokens == 0
    ask.close()
    assert "cache_control" not in str(api.requests[0].json)
    assert api.requests[0].json["system"] == LONG
