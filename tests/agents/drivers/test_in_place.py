"""A model that is read on the thread that plays the turn, and how that thread waits for it."""

from __future__ import annotations

import gc
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import anthropic
import pytest

from agentapp.agents import Deadlines, Event, ThreadedDriver
from agentapp.agents.drivers.in_place import WaitInPlace
from agentapp.agents.provider import Cancellation, ModelCall, Reply
from agentapp.agents.providers.anthropic import AnthropicProvider
from agentapp.agents.providers.demo import DemoProvider
from agentapp.agents.providers.retrying import Retrying
from agentapp.agents.tool import ToolContext
from agentapp.errors import ProviderTimeout, TurnFailed, TurnStopped, TurnTimeout
from agentapp.events import Usage
from agentapp.isolation import ThreadBinder
from tests.agents.drivers.halts import SILENT, A, Halt, all_connections_close, play_halted, turn
from tests.agents.providers.anthropic.asking import KEY
from tests.support.messages_api import MessagesApi, Script

PING = b'event: ping\ndata: {"type": "ping"}\n\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def run(provider: Any, text: str, deadlines: Deadlines | None = None, **how: Any) -> list[Event | None]:
    return list(ThreadedDriver(provider, ThreadBinder(), deadlines).run(turn(text), ToolContext(A), **how))


@contextmanager
def listening(serve: Callable[[socket.socket, threading.Event], None]) -> Iterator[int]:
    """A server that does this with its one connection until the event is set."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                serve(connection, over)

        thread = threading.Thread(target=accept, name="agentapp-listening", daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        over.set()
        thread.join(5)


def pings(connection: socket.socket, over: threading.Event) -> None:
    connection.recv(65536)
    connection.sendall(HEAD)
    while not over.wait(0.02):
        try:
            connection.sendall(b"%X\r\n%s\r\n" % (len(PING), PING))
        except OSError:
            return


def says_nothing(connection: socket.socket, over: threading.Event) -> None:
    over.wait(20)


def threads_named(*names: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in names]


def test_which_providers_are_read_in_place(claude: AnthropicProvider) -> None:
    with anthropic.Anthropic(api_key=KEY) as client:
        callers = AnthropicProvider(client=client)
        found = [each.reads_in_place for each in (claude, Retrying(claude), DemoProvider(), callers)]
    assert found == [True, True, True, False]
    assert not Retrying(callers).reads_in_place
    assert not DemoProvider(sleep=time.sleep).reads_in_place
    assert not AnthropicProvider("").reads_in_place, "it cannot be asked at all"


def test_no_thread_is_started_for_a_model_that_is_read_in_place(
    api: MessagesApi, claude: AnthropicProvider
) -> None:
    run(claude, "first")  # makes the connection
    before, seen = threading.active_count(), list[int]()

    def responds(_: object) -> Script:
        seen.append(threading.active_count())
        return Script(("one", "two"))

    api.respond_with(responds)
    run(claude, "second")
    assert seen == [before]


@pytest.mark.parametrize("text", SILENT.values(), ids=SILENT)
def test_while_the_model_is_silent_the_thread_looks_after_everything_else(
    api: MessagesApi, claude: AnthropicProvider, text: str
) -> None:
    halt, looked = Future[Any](), list[float]()

    def look() -> None:
        looked.append(time.monotonic())
        if len(api.requests) and len(looked) > 20:
            halt.set_exception(TurnStopped())

    with pytest.raises(TurnStopped):
        run(claude, text, Deadlines(tick=0.02), halt=halt, before_wait=look)
    assert all_connections_close(api)


def test_all_events_that_came_without_waiting_are_there_before_the_next_wait(
    api: MessagesApi, claude: AnthropicProvider
) -> None:
    """So that they can be sent together."""
    run(claude, "makes the connection")
    api.respond_with(Script(("one ", "two"), fault="stall:60"))
    events: list[Event] = []
    halt, waited_with = Future[Any](), list[int]()

    def look() -> None:
        waited_with.append(len(events))
        if len(events) > 2:
            halt.set_exception(TurnStopped())

    def read() -> None:
        driver = ThreadedDriver(claude, ThreadBinder())
        events.extend(filter(None, driver.run(turn(), ToolContext(A), halt, look)))

    with pytest.raises(TurnStopped):
        read()
    assert waited_with[0] == 2, "it has begun and asks the model"
    assert [event.data["text"] for event in events if event.kind == "text"] == ["one "]


@pytest.mark.parametrize("name", ["first_token", "gap", "turn"])
def test_deadlines_hold_against_a_server_that_only_pings(name: str) -> None:
    wanted = Deadlines(**{"first_token": 20.0, "gap": 20.0, "turn": 20.0, name: 0.3})
    error = TurnTimeout if name == "turn" else ProviderTimeout
    with listening(pings) as port:
        provider = AnthropicProvider(KEY, f"http://127.0.0.1:{port}")
        if name == "gap":
            provider = Begun(provider)  # type: ignore[assignment]
        began = time.monotonic()
        with pytest.raises(error):
            run(provider, "hello", wanted)
        assert 0.3 <= time.monotonic() - began < 2
        getattr(provider, "provider", provider).close()


class Begun:
    """Says a word before the model that it wraps does."""

    reads_in_place = True

    def __init__(self, provider: AnthropicProvider) -> None:
        self.provider = provider

    def stream(self, call: ModelCall) -> Iterator[str | Usage | Reply]:
        yield "well, "
        yield from self.provider.stream(call)


@pytest.mark.parametrize("way", ["the name is looked up", "the server shakes no hands"])
def test_a_call_that_is_still_connecting_is_stopped_within_a_second(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, begun = threading.Event(), threading.Event()
    real = socket.create_connection

    def slow(*args: Any, **kwargs: Any) -> socket.socket:
        begun.set()
        if way == "the name is looked up":
            go_on.wait(20)
        return real(*args, **kwargs)

    monkeypatch.setattr(socket, "create_connection", slow)
    with listening(says_nothing) as port:
        provider = AnthropicProvider(KEY, f"https://127.0.0.1:{port}")
        halt = Halt(begun.wait)
        play_halted(provider, turn(), halt)
        assert time.monotonic() - halt.at < 1
        go_on.set()
        provider.close()


@pytest.mark.parametrize("provider", [DemoProvider(delay=60), DemoProvider(delay=0)], ids=["slow", "waits"])
def test_the_demo_model_is_stopped_at_once_too(provider: DemoProvider) -> None:
    begun = threading.Event()
    halt = Halt(begun.wait)
    play_halted(
        provider, turn("/slow 30" if not provider._delay else "hello"), halt, seen=lambda _: begun.set()
    )
    assert time.monotonic() - halt.at < 1


def test_the_demo_model_keeps_the_deadlines_of_a_real_one() -> None:
    with pytest.raises(ProviderTimeout, match="stopped answering"):
        run(DemoProvider(delay=60), "hello", Deadlines(gap=0.2))


def test_the_pause_before_another_try_is_cut_short_and_looked_after_too(
    api: MessagesApi, claude: AnthropicProvider
) -> None:
    looked: list[bool] = []
    with pytest.raises(TurnTimeout):
        run(
            Retrying(claude),
            "[[status:529]] [[retry-after:20]]",
            Deadlines(turn=1.5, tick=0.02),
            before_wait=lambda: looked.append(True),
        )
    assert len(looked) > 8
    assert len(api.requests) == 1


def test_a_reader_who_is_slow_is_not_the_models_silence(claude: AnthropicProvider) -> None:
    said = []
    for event in ThreadedDriver(claude, ThreadBinder(), Deadlines(gap=0.3, first_token=5)).run(
        turn("[[slow:0.02]] one two three"), ToolContext(A)
    ):
        if event is not None and event.kind == "text":
            time.sleep(0.4)
            said.append(event.data["text"])
    assert "".join(said) == "You said: one two three"


def wait_in_place(deadlines: Deadlines, turn_seconds: float = 60.0) -> tuple[WaitInPlace, Cancellation]:
    cancellation = Cancellation()
    ends = time.monotonic() + turn_seconds
    return WaitInPlace(deadlines, ends, cancellation, lambda: None), cancellation


def test_what_is_there_to_be_read_is_read_even_if_the_time_is_up() -> None:
    """A thread that got no processor for long is not the model's silence."""
    waiting, cancellation = wait_in_place(Deadlines(first_token=0.05))

    def starved(seconds: float) -> str:
        time.sleep(0.1)
        return "a ping"

    for _ in range(3):
        assert waiting.wait_for(starved) == "a ping"
    assert (waiting.failure, cancellation.is_cancelled) == (None, False)


def test_time_that_is_up_ends_the_call_and_says_why() -> None:
    def nothing(seconds: float) -> None:
        time.sleep(seconds)
        raise TimeoutError

    for deadlines, turn_seconds, error in (
        (Deadlines(first_token=0.05), 60.0, ProviderTimeout),
        (Deadlines(), 0.05, TurnTimeout),
    ):
        waiting, cancellation = wait_in_place(deadlines, turn_seconds)
        with pytest.raises(TimeoutError):
            waiting.wait_for(nothing)
        assert isinstance(waiting.failure, error)
        assert isinstance(waiting.failure, TurnFailed)
        assert cancellation.is_cancelled


@pytest.mark.parametrize("has_proxies", [False, True])
def test_a_connection_in_the_pool_keeps_nothing_of_the_turn_that_used_it(
    api: MessagesApi, monkeypatch: pytest.MonkeyPatch, has_proxies: bool
) -> None:
    """With proxies the connections are those of the SDK's own pool."""
    proxies = {"ftp": "http://proxy.invalid"} if has_proxies else {}
    monkeypatch.setattr("agentapp.agents.providers.anthropic.provider.getproxies", lambda: proxies)
    claude = AnthropicProvider(KEY, api.url)

    class Looking:
        def __call__(self) -> None:
            pass

    looking = Looking()
    kept = weakref.ref(looking)
    run(claude, "hello", before_wait=looking)
    del looking
    gc.collect()
    assert kept() is None
    claude.close()
