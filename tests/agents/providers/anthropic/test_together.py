"""What comes of an answer in one read is passed on in one piece; what comes by itself, by itself."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentapp.agents.meter import Meter
from agentapp.agents.provider import Reply
from agentapp.agents.providers.anthropic import AnthropicProvider
from agentapp.agents.providers.anthropic.messages import joined
from agentapp.errors import ProviderBusy, ProviderGarbled
from agentapp.events import Usage
from tests.agents.providers.anthropic.asking import KEY, call

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def event(kind: str, **data: Any) -> bytes:
    """As a chunk of its own, which is how the API sends them."""
    sent = f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(sent), sent)


def text(words: str) -> bytes:
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": words})


BEGINNING = event("message_start", message={"usage": {"input_tokens": 11, "output_tokens": 1}}) + event(
    "content_block_start", index=0, content_block={"type": "text", "text": ""}
)
ENDING = (
    event("content_block_stop", index=0)
    + event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 5})
    + event("message_stop")
    + END
)
PING = event("ping")
OVERLOADED = event("error", error={"type": "overloaded_error", "message": "too much"})


@contextmanager
def answering(say: Callable[[socket.socket], None]) -> Iterator[AnthropicProvider]:
    """A provider whose API says this, once."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                received = b""
                while b'"stream":true' not in received:
                    received += connection.recv(65536)
                say(connection)

        server = threading.Thread(target=serve, name="agentapp-answering", daemon=True)
        server.start()
        provider = AnthropicProvider(KEY, f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield provider
        provider.close()
        server.join(5)


def test_words_that_come_together_are_one_piece() -> None:
    answer = HEAD + BEGINNING + text("one ") + PING + text("two ") + text("thrée") + ENDING
    with answering(lambda connection: connection.sendall(answer)) as provider:
        items = list(provider.stream(call()))
    assert items == [
        Usage(11, 1, 1),
        "one two thrée",
        Usage(11, 5, 1),
        Reply("one two thrée", (), Usage(11, 5, 1), "end_turn"),
    ]


def test_a_word_that_comes_by_itself_is_passed_on_at_once() -> None:
    taken = threading.Semaphore(0)

    def say_when_the_last_was_taken(connection: socket.socket) -> None:
        connection.sendall(HEAD + BEGINNING + text("one "))
        for words in (text("two "), text("three") + ENDING):
            assert taken.acquire(timeout=10)
            connection.sendall(words)

    pieces = []
    with answering(say_when_the_last_was_taken) as provider:
        for item in provider.stream(call()):
            if isinstance(item, str):
                pieces.append(item)
                taken.release()
    assert pieces == ["one ", "two ", "three"]


def test_words_that_come_with_an_error_are_said_before_it() -> None:
    answer = HEAD + BEGINNING + text("one ") + text("two") + OVERLOADED + END
    pieces: list[Any] = []
    says = answering(lambda connection: connection.sendall(answer))
    with says as provider, pytest.raises(ProviderBusy) as caught:
        pieces.extend(provider.stream(call()))
    assert pieces == [Usage(11, 1, 1), "one two"]
    assert caught.value.said_something
    assert caught.value.usage == Usage(11, 2, 1)  # seven bytes were heard


@pytest.mark.parametrize("kept", [1, 2, 3, 4, 40, *range(len(text("two")) - 6, len(text("two")))])
def test_words_that_come_with_half_a_word_are_said(kept: int) -> None:
    answer = HEAD + BEGINNING + text("one ") + text("two")[:kept]
    pieces: list[Any] = []
    says = answering(lambda connection: connection.sendall(answer))
    with says as provider, pytest.raises(ProviderGarbled):
        pieces.extend(provider.stream(call()))
    said = "".join(item for item in pieces if isinstance(item, str))
    whole_event = text("two").rstrip(b"\r\n") + b"\n\n"
    assert said == ("one two" if kept >= len(whole_event) else "one ")


def test_words_are_joined_and_all_else_keeps_its_place() -> None:
    one, two = Usage(1), Usage(2)
    pieces = ["", "a", None, "b", one, None, two, "c", ""]
    assert list(joined(iter(pieces))) == ["ab", one, two, "c"]
    assert list(joined(iter([""]))) == [""]  # it is at work on something, and has shown nothing
    assert list(joined(iter([None]))) == []


def test_what_is_charged_if_it_is_cut_does_not_depend_on_how_it_comes() -> None:
    apart, together = Meter(), Meter()
    words = ["Grüße ", "an ", "\ud83d", "\ude00", "alle"]
    for word in words:
        apart.heard(word)
    together.heard("".join(words))
    assert apart.usage == together.usage
