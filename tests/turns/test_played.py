"""Who sends, plays: the thread of the request reads the model and goes on whatever its client does."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from agentapp.agents.drivers.shared import Deadlines
from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.provider import ModelCall, Reply
from agentapp.agents.providers.anthropic import AnthropicProvider
from agentapp.errors import LoginRequired
from agentapp.isolation import Scope
from agentapp.server.limits import CLIENT
from agentapp.turns.played import PlayedSubscription
from agentapp.turns.service import TurnService
from agentapp.turns.values import NewMessage
from agentapp.web.parts import Parts
from agentapp.web.sse import STILL_HERE, PlayedEventStream
from tests.support.messages_api import MessagesApi
from tests.support.scripted import SPENT, Scripted, calls
from tests.support.server_users import wait_for
from tests.support.turns import hurry, someone
from tests.support.users import EVENTS, JSON, PAGE, PASSWORD, events_of, person

KEY = "sk-ant-api03-not-a-real-key"
QUICK = Deadlines(tick=0.01)


class Client:
    """A client that takes everything, or so many pieces and then is gone. It notes what it was sent."""

    def __init__(self, takes: int = 10**9) -> None:
        self.pieces: list[bytes] = []
        self.has_ended = False
        self._takes = takes

    def send_now(self, piece: bytes) -> None:
        if len(self.pieces) >= self._takes:
            raise ConnectionResetError
        assert not self.has_ended
        self.pieces.append(piece)

    def end_now(self) -> None:
        self.has_ended = True

    @property
    def text(self) -> str:
        return b"".join(self.pieces).decode()


class InPlace(Scripted):
    """Read on the thread that plays the turn. ``said`` pieces come after one wait each."""

    reads_in_place = True

    def __init__(self, *pieces: str, on_wait: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._pieces, self._on_wait = pieces, on_wait

    def stream(self, call: ModelCall) -> Iterator[str | Reply]:
        self.asked.append(call)
        for piece in self._pieces:
            self._on_wait()
            call.sleep(0.001)
            yield piece
        yield Reply("".join(self._pieces), usage=SPENT)


@pytest.fixture
def uma(parts: Parts) -> Scope:
    return someone(parts, "uma")


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi() as running:
        yield running


@pytest.fixture
def claude(api: MessagesApi) -> Iterator[AnthropicProvider]:
    provider = AnthropicProvider(KEY, api.url)
    yield provider
    provider.close()


def staged(parts: Parts, model: Any, deadlines: Deadlines = QUICK) -> TurnService:
    driver = ThreadedDriver(model, parts.binder, deadlines)
    return replace(parts.turns, kit=replace(parts.turns.kit, driver=driver))


def sent(
    service: TurnService, scope: Scope, text: str = "Hello", login: str | None = None
) -> PlayedSubscription:
    played = service.send(scope, NewMessage(text), login, plays=True)
    assert isinstance(played, PlayedSubscription)
    return played


def stored(parts: Parts, scope: Scope) -> list[tuple[str, str]]:
    """The status of each turn with the text of its answer."""
    with parts.binder.bound(scope):
        whole = parts.chats.transcript(scope)
    said = {message.turn_id: message.content for message in whole.messages if message.role == "assistant"}
    return [(turn.status, said.get(turn.id, "")) for turn in whole.turns]


def played_in_a_thread(stream: PlayedEventStream) -> threading.Thread:
    """As a thread of the server does: pulls to the end, and closes."""

    def play() -> None:
        try:
            assert list(stream) == []
        finally:
            stream.close()

    thread = threading.Thread(target=play, name="agentapp-request", daemon=True)
    thread.start()
    return thread


def test_the_events_are_pulled_in_order_and_are_in_the_feed_too(parts: Parts, uma: Scope) -> None:
    played = sent(staged(parts, InPlace("one ", "two")), uma)
    events = [event for event in played if event is not None]
    assert events == played.feed.since(0)
    assert (events[0].kind, events[-1].kind) == ("turn_started", "turn_completed")
    assert parts.turns.local.all() == []
    played.close()
    assert stored(parts, uma) == [("completed", "one two")]


def test_the_scope_is_bound_while_it_is_pulled_and_never_between(parts: Parts, uma: Scope) -> None:
    bound: list[object] = []
    model = InPlace("one ", "two", on_wait=lambda: bound.append(parts.binder.current()))
    played = sent(staged(parts, model), uma)
    for _ in played:
        assert parts.binder.sweep() is None
    played.close()
    assert bound == [uma.of_turn(played.feed.turn_id)] * 2


def test_neither_turn_nor_model_has_a_thread_of_its_own(parts: Parts, uma: Scope) -> None:
    names: set[str] = set()
    model = InPlace("one", on_wait=lambda: names.update(each.name for each in threading.enumerate()))
    sent(staged(parts, model), uma).close()
    assert not names & {"agentapp-turn", "agentapp-model"}


@pytest.mark.parametrize("pulled", [0, 1, 4])
def test_who_leaves_in_the_middle_plays_on_and_keeps_the_slot_until_the_end(
    parts: Parts, uma: Scope, pulled: int
) -> None:
    taken: list[int] = []
    model = InPlace("The ", "whole ", "answer", on_wait=lambda: taken.append(parts.turns.slots.taken()))
    played = sent(staged(parts, model), uma)
    for _ in range(pulled):
        next(played)
    played.close()
    played.close()
    assert stored(parts, uma) == [("completed", "The whole answer")]
    assert taken == [1, 1, 1]
    assert parts.turns.slots.taken() == 0


@pytest.mark.parametrize("takes", [0, 1, 2])
def test_a_client_that_is_gone_is_written_to_no_more_and_its_answer_is_stored_whole(
    parts: Parts, uma: Scope, takes: int
) -> None:
    client = Client(takes)
    stream = PlayedEventStream(sent(staged(parts, InPlace("The ", "whole ", "answer")), uma), client)
    assert list(stream) == []
    stream.close()
    assert len(client.pieces) == takes
    assert stored(parts, uma) == [("completed", "The whole answer")]


def test_what_comes_without_waiting_is_sent_in_one_piece(parts: Parts, uma: Scope) -> None:
    client = Client()
    stream = PlayedEventStream(sent(staged(parts, InPlace("one ", "two")), uma), client)
    assert list(stream) == []
    stream.close()
    kinds = [[event["event"] for event in events_of(piece.decode())] for piece in client.pieces]
    assert kinds == [
        ["turn_started", "agent_started", "agent_thinking"],
        ["text"],
        ["text", "agent_completed"],
        ["turn_completed"],
    ]


def test_others_follow_what_somebody_plays(parts: Parts, uma: Scope) -> None:
    """Also while the one who plays it is in the middle of a pull."""
    heard: list[str] = []

    def follow() -> None:
        with parts.binder.bound(uma):
            follower = parts.turns.follow(uma, played.feed.turn_id, after=len(heard))
        event = follower.next_within(0)
        assert event is not None
        heard.append(event.kind)
        follower.close()

    played = sent(staged(parts, InPlace("one ", "two", "three", on_wait=follow)), uma)
    played.close()
    assert heard == ["turn_started", "agent_started", "agent_thinking"]


def test_while_the_model_is_silent_the_client_is_told_that_all_is_well(
    parts: Parts, uma: Scope, api: MessagesApi, claude: AnthropicProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentapp.web.sse.KEEPALIVE_SECONDS", 0.05)
    client = Client()
    stream = PlayedEventStream(sent(staged(parts, claude), uma, "[[hang:60]]"), client)
    thread = played_in_a_thread(stream)
    wait_for(lambda: client.pieces[-3:] == [STILL_HERE] * 3, 10)
    (turn,) = parts.turns.local.all()
    parts.turns.local.stop(turn.turn.id)
    thread.join(5)
    assert events_of(client.text)[-1]["status"] == "stopped"


def test_a_tool_that_takes_long_does_not_keep_the_client_from_being_told(
    parts: Parts, uma: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentapp.web.sse.KEEPALIVE_SECONDS", 0.05)
    go_on = threading.Event()
    monkeypatch.setattr(type(parts.turns.kit.notes), "all", lambda *_: go_on.wait(20) and [])
    client = Client()
    model = Scripted(calls(("hand_over", {"to": "memory", "task": "x"})), calls(("list_notes", {})), "done")
    stream = PlayedEventStream(sent(staged(parts, model, Deadlines(tick=0.01, tool=20)), uma), client)
    thread = played_in_a_thread(stream)
    wait_for(lambda: client.pieces[-3:] == [STILL_HERE] * 3, 10)
    assert "tool_executing" in client.text
    go_on.set()
    thread.join(5)
    assert stored(parts, uma) == [("completed", "done")]


@pytest.mark.parametrize("text", ["[[hang:60]]", "[[mute:60]] one two", "[[stall:60]] one two"])
def test_stop_ends_a_silent_model_within_a_second(
    parts: Parts, uma: Scope, api: MessagesApi, claude: AnthropicProvider, text: str
) -> None:
    client = Client()
    played = sent(staged(parts, claude, Deadlines()), uma, text)
    thread = played_in_a_thread(PlayedEventStream(played, client))
    assert api.wait_until(lambda api: bool(api.requests))
    began = time.monotonic()
    with parts.binder.bound(uma):
        stopping = parts.turns.stop(uma, played.feed.turn_id)
    end = stopping.finish(5)
    stopping.close()
    assert time.monotonic() - began < 1
    thread.join(5)
    assert end is not None
    assert end.result.status == events_of(client.text)[-1]["status"] == "stopped"


def test_a_client_whose_login_ends_is_cut_off_while_the_model_is_silent_and_the_turn_goes_on(
    parts: Parts, uma: Scope, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch, parts, seconds=0.01)
    with parts.binder.bound(uma):
        _, token = parts.accounts.sign_in("uma", PASSWORD)
    go_on = threading.Event()

    class Silent(InPlace):
        def stream(self, call: ModelCall) -> Iterator[str | Reply]:
            yield "One half"
            while not go_on.is_set():
                call.sleep(0.01)
            yield ", and the other"
            yield Reply("One half, and the other", usage=SPENT)

    client = Client()
    thread = played_in_a_thread(PlayedEventStream(sent(staged(parts, Silent()), uma, login=token), client))
    wait_for(lambda: "One half" in client.text, 10)
    parts.accounts.sign_out(token)
    wait_for(lambda: client.has_ended, 10)
    assert thread.is_alive()
    assert parts.turns.slots.taken() == 1
    go_on.set()
    thread.join(5)
    assert "the other" not in client.text
    assert stored(parts, uma) == [("completed", "One half, and the other")]
    assert parts.turns.slots.taken() == 0


def test_a_script_whose_login_ended_is_told_to_sign_in_and_its_answer_is_stored(
    parts: Parts, uma: Scope
) -> None:
    played = sent(staged(parts, InPlace("one ", "two", on_wait=lambda: played.cut(signed_out=True))), uma)
    with pytest.raises(LoginRequired):
        played.finish()
    played.close()
    assert stored(parts, uma) == [("completed", "one two")]


def test_a_worker_that_must_end_interrupts_what_its_requests_play(
    parts: Parts, uma: Scope, api: MessagesApi, claude: AnthropicProvider
) -> None:
    client = Client()
    thread = played_in_a_thread(
        PlayedEventStream(sent(staged(parts, claude, Deadlines()), uma, "[[stall:60]] one two"), client)
    )
    wait_for(lambda: "text" in client.text, 10)
    assert not parts.drain(3600)
    assert not parts.drain(0), "interrupted, and about to be stored"
    wait_for(lambda: parts.drain(0), 10)
    thread.join(5)
    assert events_of(client.text)[-1]["status"] == "interrupted"
    assert stored(parts, uma) == [("interrupted", "You ")]


@pytest.mark.parametrize("pulled", [0, 2])
def test_a_turn_whose_player_was_lost_is_played_on_by_a_thread(
    parts: Parts, uma: Scope, pulled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch, parts, seconds=0.01)
    played = sent(staged(parts, InPlace("The ", "whole ", "answer")), uma)
    for _ in range(pulled):
        next(played)
    del played
    gc.collect()
    assert parts.turns.slots.taken() == 0
    assert parts.turns.local.wait(10)
    assert stored(parts, uma) == [("completed", "The whole answer")]


def test_a_model_of_somebodys_own_that_blocks_is_still_stopped_at_once(parts: Parts, uma: Scope) -> None:
    silent, released = threading.Event(), threading.Event()

    def blocks(call: Any) -> Iterator[str | Reply]:
        yield "One half"
        silent.set()
        released.wait(20)
        yield Reply("too late")

    client = Client()
    thread = played_in_a_thread(
        PlayedEventStream(sent(staged(parts, Scripted(blocks), Deadlines()), uma), client)
    )
    assert silent.wait(5)
    wait_for(lambda: "One half" in client.text, 10)
    (local,) = parts.turns.local.all()
    began = time.monotonic()
    parts.turns.local.stop(local.turn.id)
    thread.join(5)
    assert time.monotonic() - began < 1
    released.set()
    assert stored(parts, uma) == [("stopped", "One half")]


def test_the_server_says_who_may_play(app: Flask, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream is played by its request only where its client can be written to from the middle of a read; a
    script's answer always; a form, which is answered after some seconds in any case, never.
    """
    asked: list[bool] = []
    real = TurnService.send

    def send(self: TurnService, *args: Any, plays: bool = False, **kwargs: Any) -> Any:
        asked.append(plays)
        return real(self, *args, plays=plays, **kwargs)

    monkeypatch.setattr(TurnService, "send", send)
    ann, client = person(app, "ann"), Client()
    for headers, environ in ((EVENTS, {CLIENT: client}), (EVENTS, {}), (JSON, {}), (PAGE, {CLIENT: client})):
        answer = ann.browser.post(
            f"/chat/{ann.new_chat()}/messages",
            data={"csrf_token": ann.csrf, "message": "hello"},
            headers=headers,
            environ_overrides=environ,
        )
        assert answer.status_code in (200, 303)
        if environ and headers is EVENTS:
            assert answer.data == b"", "all of it was sent already"
            assert events_of(client.text)[-1]["status"] == "completed"
    assert asked == [True, False, True, False]
