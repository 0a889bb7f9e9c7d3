"""The local Messages API that the other tests rely on."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import anthropic
import httpx2
import pytest

from agentapp.agents.provider import Message, ToolResult
from agentapp.errors import ProviderBusy, ProviderError
from agentapp.events import Usage
from tests.agents.providers.anthropic.asking import KEY, call, good, reply_of
from tests.support.messages_api import MessagesApi, Script, Tokens


def said(*messages: tuple[str, Any]) -> dict[str, Any]:
    return good(messages=[{"role": role, "content": content} for role, content in messages])


USE = [{"type": "tool_use", "id": "t", "name": "add", "input": {}}]
RESULT = [{"type": "tool_result", "tool_use_id": "t", "content": "2"}]


@pytest.mark.parametrize(
    ("request_json", "status"),
    [
        (good(), 200),
        (said(("user", "hi"), ("assistant", USE), ("user", RESULT)), 200),
        (good(messages=[]), 400),
        ({"model": "m", "messages": [{"role": "user", "content": "hi"}]}, 400),
        (good(model=""), 400),
        (good(tools=[{"name": "not a name", "input_schema": {}}]), 400),
        (said(("user", "")), 400),
        (said(("user", [])), 400),
        (said(("user", [{"type": "text", "text": ""}])), 400),
        (said(("assistant", "hi")), 400),
        (said(("system", "hi")), 400),
        (said(("user", RESULT)), 400),
        (said(("user", "hi"), ("assistant", USE)), 400),
        (said(("user", "hi"), ("assistant", USE), ("user", "and?")), 400),
        (said(("user", "hi"), ("assistant", [USE[0] | {"input": "x"}]), ("user", RESULT)), 400),
        ("no object", 400),
    ],
)
def test_the_local_api_refuses_what_the_real_one_refuses(
    api: MessagesApi, request_json: Any, status: int
) -> None:
    headers = {"x-api-key": KEY, "anthropic-version": "2023-06-01"}
    answer = httpx2.post(f"{api.url}/v1/messages", json=request_json, headers=headers, trust_env=False)
    assert answer.status_code == status
    assert answer.json().get("error", {}).get("type") == (None if status == 200 else "invalid_request_error")


def test_the_local_api_wants_a_key(api: MessagesApi) -> None:
    answer = httpx2.post(f"{api.url}/v1/messages", json=good(), trust_env=False)
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")


def test_the_local_api_answers_without_streaming_too(api: MessagesApi) -> None:
    with anthropic.Anthropic(api_key=KEY, base_url=api.url) as client:
        message = client.messages.create(**good(tools=[{"name": "add", "input_schema": {"type": "object"}}]))
        assert message.content[0].text == "You said: hi"
        assert api.tokens == Tokens(message.usage.input_tokens, message.usage.output_tokens)


def test_a_tool_directive_ends_with_the_tools_result(ask: Any, api: MessagesApi) -> None:
    text = 'Now [[tool:add {"a": [[1]]}]]'
    reply = reply_of(ask(call(text)))
    assert [c.input for c in reply.calls] == [{"a": [[1]]}]
    messages = (
        Message("user", (text,)),
        Message("assistant", (reply.text,), calls=reply.calls),
        Message("user", results=(ToolResult(reply.calls[0].id, "2"),)),
    )
    assert reply_of(ask(call(messages=messages))).text == "The tool said: 2"


def test_the_tokens_the_local_api_handed_out_are_those_the_callers_saw(ask: Any, api: MessagesApi) -> None:
    seen = Usage()
    for text in (
        "hello",
        "[[tool:add {}]]",
        "[[cut:600]] a",
        "[[end-early]] b",
        "[[status:500]]",
        "[[garbage]] c",
    ):
        try:
            seen += reply_of(ask(call(text))).usage
        except ProviderError as error:
            seen += error.usage
    assert api.wait_until(lambda api: api.in_progress == 0)
    assert seen == Usage(api.tokens.input, api.tokens.output, 6)


def test_closing_the_local_api_ends_a_hanging_call(ask: Any) -> None:
    with MessagesApi() as other:
        drive, provider = type(ask), type(ask.provider)
        driver, caught = drive(provider(KEY, other.url)), []

        def hang() -> None:
            with pytest.raises(ProviderError) as error:
                driver(call("[[hang:3600]]", timeout=3600))
            caught.append(error.value)

        thread = threading.Thread(target=hang)
        thread.start()
        assert other.wait_until(lambda api: api.in_progress == 1)
        start = time.monotonic()
        other.close()
        thread.join(5)
        assert time.monotonic() - start < 3
        driver.close()
    assert type(caught[0]) is ProviderBusy


def test_the_local_api_serves_five_hundred_at_once(api: MessagesApi) -> None:
    release = threading.Event()

    def wait(_: Any) -> Script:
        release.wait(60)
        return Script(("done",))

    api.respond_with(wait)
    body = json.dumps(good(stream=True))
    head = "POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\nanthropic-version: x"
    sockets = [
        socket.create_connection(("127.0.0.1", int(api.url.rpartition(":")[2])), 30) for _ in range(500)
    ]
    try:
        for connection in sockets:
            connection.sendall(f"{head}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode())
        assert api.wait_until(lambda api: api.in_progress == 500, timeout=60)
        release.set()
        for connection in sockets:
            with connection.makefile("rb") as answer:
                assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
                assert any(line == b"event: message_stop\n" for line in answer)
    finally:
        release.set()
        for connection in sockets:
            connection.close()
    assert api.most_in_progress == 500
