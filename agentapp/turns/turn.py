"""One turn, from top to bottom: begin it (which may refuse), play it, settle it exactly once.

A turn makes two write transactions, whatever its length: one begins it, one settles it. Nothing of the
database is held while the model talks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import replace
from typing import Any

from agentapp.agents.actions import Loop
from agentapp.agents.drivers.shared import nothing
from agentapp.agents.loop import Limits, Opening, TurnLoop
from agentapp.agents.provider import Message
from agentapp.agents.tool import ToolContext
from agentapp.errors import (
    ForeignHistory,
    IdempotencyMismatch,
    IsolationViolated,
    NotFound,
    StorageUnavailable,
    TurnFailed,
    TurnInProgress,
    TurnInterrupted,
    TurnStopped,
)
from agentapp.events import Rendered, Status, Text, TurnCompleted, TurnResult, TurnStarted, text_of
from agentapp.isolation import Scope
from agentapp.logs import described
from agentapp.turns.abandoned import find_running
from agentapp.turns.ends import EndedTurn, Settlement
from agentapp.turns.feed import Feed, NumberedEvent
from agentapp.turns.history import history
from agentapp.turns.kit import TurnKit
from agentapp.turns.live_agents import without_frames
from agentapp.turns.stores import ChatTransaction
from agentapp.turns.turn_reports import report_beginning, report_end
from agentapp.turns.values import (
    UNTITLED,
    NewEvents,
    NewMessage,
    RepeatedMessage,
    Spent,
    StartedTurn,
    title_of,
)

CHECKS_A_TURN = 2  # of isolation: its history and its agents. Those of the loop come on top
SAVE_RETRY_SECONDS = (0.5, 1.0, 2.0, 4.0)  # a database that is being restarted is back by then
SAVE_SECONDS = 8.0  # not tried again after that, if the tries themselves take long
NOT_SAVED = "The answer could not be saved."
SAVED_LATER = (
    "The answer could not be saved yet. It will be in this chat as soon as the database can take it."
)

log = logging.getLogger(__name__)


class Turn(Iterator[NumberedEvent | None]):
    """The events of one turn as they happen, each already in its ``feed``; ``None`` means "nothing new yet".

    Pull it to its end: the last event comes after the turn was settled. It is a class and not a
    generator so that it can be halted from another thread.

    ``before_wait`` is called by the thread that pulls it, whenever it is about to wait: for the model, a tool
    or the database. That is the time to pass on the events so far.

    A turn that is merely dropped is not settled: the garbage collector may come at any moment, also
    to a thread that holds the writer's lock. Its lease runs out, as after the death of its worker.
    """

    def __init__(self, kit: TurnKit, scope: Scope, started: StartedTurn, began: float | None = None) -> None:
        self.id = started.turn_id
        self.scope = scope.of_turn(started.turn_id)
        self.feed = Feed(self.scope, started.turn_id)
        self.result: TurnResult | None = None
        self.before_wait: Callable[[], object] = nothing
        self._loop: TurnLoop | None = None
        self._kit, self._started = kit, started
        self._began = time.monotonic() if began is None else began
        self._has_violated = False
        self._halted: Future[Any] = Future()
        self._playing = self._play()

    @classmethod
    def begin(cls, kit: TurnKit, scope: Scope, message: NewMessage) -> Turn | RepeatedMessage:
        """Take the message in and mark the chat as answering, or refuse and change nothing."""
        began = time.monotonic()
        kit.guardrails.refuse_early(scope, message.key, kit.max_cost())
        started: StartedTurn | RepeatedMessage | None = None
        try:
            with kit.store.chat(scope, message.key) as chat:
                started = _take_in(kit, scope, chat, message)
        except StorageUnavailable:
            # The commit may have worked. Then the chat must not wait for an answer that nobody gives.
            if isinstance(started, StartedTurn):
                kit.unstored.add(kit.settlement(_never_played(scope, started)))
            raise
        if isinstance(started, RepeatedMessage):
            return started
        kit.telemetry.observe("admission_seconds", time.monotonic() - began)
        return cls(kit, scope, started, began)

    def __next__(self) -> NumberedEvent | None:
        return next(self._playing)

    def unwritten(self, written: int = 0, stored: Spent | None = None) -> NewEvents | None:
        """The events after the first ``written`` ones, and what was spent, to be stored. None if there are no
        such events and it has spent no more than what is ``stored``.
        """
        # The loop counts a call before the event of it: what is stored with the event has the call in it.
        new = tuple(each.event for each in self.feed.since(written))
        spent = self._spent_so_far()
        if not new and (not written or spent == stored):
            return None
        return NewEvents(self.scope, self.id, written + 1, new, spent)

    @property
    def calls_begun(self) -> int:
        return getattr(self._loop, "calls", 0)

    def _spent_so_far(self) -> Spent:
        """From any thread: what is charged if the worker dies now."""
        loop = self._loop
        if loop is None and self.result is not None:
            return Spent.of(self.result)
        calls = loop.spent_if_cut if loop else ()
        return self._kit.spent_on(calls) if calls else Spent.on_first_call(self._started.reservation)

    def halt(self, reason: TurnFailed) -> None:
        """From any thread: end it at once, also while the model is silent. Does nothing if it has ended."""
        with suppress(InvalidStateError):
            self._halted.set_exception(reason)

    def finish(self) -> TurnResult:
        """Play what is left of it."""
        for _ in self:
            pass
        if self.result is None:
            raise RuntimeError("a turn was finished by two threads at once")
        return self.result

    def _play(self) -> Generator[NumberedEvent | None]:
        kit, started, scope = self._kit, self._started, self.scope
        report_beginning(started.agent)
        crew = kit.build_agents(scope)
        self._loop = loop = TurnLoop(
            scope,
            crew,
            Opening(started.text, started.history, started.agent),
            kit.model,
            self._limits(),
            kit.prices,
            dict(started.tool_calls),
        )
        trace = kit.traces.begin(scope, self.id, self._began)
        yield self.feed.add(TurnStarted(self.id, scope.session_id, started.text))
        failure = yield from self._answer(trace.watched(loop))
        self.before_wait()
        self.result = self._settle(self._result(loop, failure))
        trace.end(self.result)
        self._loop = None  # the agents end with the turn, however long the turn is kept
        kit.reset_agents(crew)
        self._measure(self.result, CHECKS_A_TURN + loop.checks)
        report_end(kit.telemetry, self.result, failure, loop.setup_faults, self._began)
        del loop, crew
        yield self.feed.add(TurnCompleted(self.id, scope.request_id, self.result))

    def _answer(self, loop: Loop) -> Generator[NumberedEvent | None, None, TurnFailed | None]:
        """Every event between the first and the last; and how it failed, if it did."""
        context, said = ToolContext(self.scope, self._kit.notes, self._kit.past_chats), False
        try:
            for event in self._kit.driver.run(loop, context, self._halted, self.before_wait):
                if not said and isinstance(event, Text):
                    said = True
                    self._kit.telemetry.observe("first_token_seconds", time.monotonic() - self._began)
                yield None if event is None else self.feed.add(event.cleaned())
        except TurnFailed as error:
            return without_frames(error)
        except Exception as error:
            self._has_violated = isinstance(error, IsolationViolated)
            log.error("turn failed unexpectedly: %s", described(error))
            return TurnFailed("Something went wrong on our side while answering.")
        return None

    def _limits(self) -> Limits:
        """Those of every turn, or less if less could be reserved."""
        limits, reserved = self._kit.limits, self._started.reservation
        return replace(limits, tokens=min(limits.tokens, reserved.tokens), microusd=reserved.microusd)

    def _result(self, loop: TurnLoop, failure: TurnFailed | None) -> TurnResult:
        """How it ended: the real usage of every model call, and whose failure it was, if it was one."""
        status = _status(failure)
        failed = failure if status == "failed" else None
        reply = text_of(self.feed.events)
        result = TurnResult(
            status=status,
            reply=reply,
            rendered=self._rendered(reply),
            agent=loop.answering,
            next_agent=loop.stays_with if status == "completed" else "",
            title=self._started.title,
            tool_calls=tuple(loop.called.items()),
            error_code=failed.code if failed else None,
            error_message=str(failed) if failed else None,
            can_retry=failed is None or failed.can_retry,
            blame=failure.blame if failure else "nobody",
        )
        return self._kit.spent_on(loop.spent).added_to(result)

    def _measure(self, result: TurnResult, checks: int) -> None:
        telemetry, usage = self._kit.telemetry, result.usage
        telemetry.check(checks, tenant_id=self.scope.tenant_id)
        telemetry.observe("turn_seconds", time.monotonic() - self._began)
        telemetry.count("cost_usd_total", result.charged_microusd / 1_000_000)
        cached = {"cache_read": usage.cache_read_tokens, "cache_write": usage.cache_write_tokens}
        for kind, tokens in {"input": usage.input_tokens, "output": usage.output_tokens, **cached}.items():
            if tokens:
                telemetry.count("tokens_total", tokens, kind=kind)

    def _rendered(self, reply: str) -> Rendered | None:
        """Made before the transaction that stores it begins, which others may wait for. A reply that cannot
        be rendered is stored all the same.
        """
        try:
            return self._kit.render(reply) if reply else None
        except Exception as error:
            log.error("the reply could not be rendered: %s", described(error))
            return None

    def _settle(self, result: TurnResult) -> TurnResult:
        """How the turn ended in truth: an answer that could not be stored is none, as yet."""
        began, kit, settlement = time.monotonic(), self._kit, self._settlement(result)
        for pause in (*SAVE_RETRY_SECONDS, None):
            try:
                if settlement.store():
                    kit.telemetry.observe("settle_seconds", time.monotonic() - began)
                    return result
                log.warning("turn was no longer running when it ended")
                return replace(result, status="interrupted", error_code=None, error_message=None)
            except StorageUnavailable as error:
                why = str(error.__cause__ or error).partition("\n")[0]
                log.warning("turn could not be saved yet: %s", why)
                if pause is None or time.monotonic() - began > SAVE_SECONDS:
                    break
                time.sleep(pause)
            except Exception as error:
                log.error("turn could not be saved: %s", described(error))
                kit.unstored.give_up(settlement.turn)
                return _unsaved(result, NOT_SAVED)
        waits = kit.unstored.add(settlement)
        return _unsaved(result, SAVED_LATER if waits else NOT_SAVED, can_retry=not waits)

    def _settlement(self, result: TurnResult) -> Settlement:
        reservation, events = self._started.reservation, self.feed.events
        ended = EndedTurn(self.scope, self.id, reservation, result, events, self._has_violated)
        return self._kit.settlement(ended)


def _take_in(
    kit: TurnKit, scope: Scope, chat: ChatTransaction, message: NewMessage
) -> StartedTurn | RepeatedMessage:
    if chat.title is None:
        raise NotFound("There is no such chat.")
    # A turn whose worker died must not keep the chat from going on.
    running = find_running(chat, kit.ends, scope, kit.leases)
    text = _text_of(chat, message)
    # A repeated message comes before "still answering": it may be the answer under way that it means.
    if (repeated := _find_repeated(chat, text)) is not None:
        return repeated
    if running is not None:
        raise TurnInProgress(running)
    chat.require_room()
    place = chat.place_of(message)
    before = _history(kit, chat, place.follows) if place.follows else ()
    # As late as can be: on PostgreSQL others wait for these rows until the transaction ends.
    admitted = kit.guardrails.admit(chat.cells, scope, kit.max_cost())
    reservation = kit.with_first_call(admitted.reservation, scope, place.agent, before, text)
    turn_id = chat.add_turn(place, message.key, reservation, kit.leases.current())
    chat.add_message(turn_id, "user", text)
    title = title_of(text) if chat.title == UNTITLED else chat.title
    chat.touch(title)
    return StartedTurn(turn_id, text, place.agent, before, title, reservation, admitted.tool_calls)


def _never_played(scope: Scope, started: StartedTurn) -> EndedTurn:
    return EndedTurn.never_played(scope, started.turn_id, started.reservation, started.text)


def _unsaved(result: TurnResult, words: str, *, can_retry: bool = True) -> TurnResult:
    """``can_retry`` is False if the answer will come: to ask again would be another one, and cost again."""
    code = StorageUnavailable.code
    return replace(result, status="failed", error_code=code, error_message=words, can_retry=can_retry)


def _history(kit: TurnKit, chat: ChatTransaction, last: int) -> tuple[Message, ...]:
    try:
        return history(chat.history(last))
    except ForeignHistory as violated:
        kit.report(violated)
        raise


def _text_of(chat: ChatTransaction, message: NewMessage) -> str:
    if message.text is not None:
        return message.text
    text = chat.message_of(message.replaces) if message.replaces is not None else None
    if text is None:
        raise NotFound("There is no such turn.")
    return text


def _find_repeated(chat: ChatTransaction, text: str) -> RepeatedMessage | None:
    turn_id = chat.turn_with_key()
    if turn_id is None:
        return None
    if chat.message_of(turn_id) != text:
        raise IdempotencyMismatch("This idempotency key was already used for another message in this chat.")
    return RepeatedMessage(turn_id)


def _status(failure: TurnFailed | None) -> Status:
    match failure:
        case None:
            return "completed"
        case TurnStopped():
            return "stopped"
        case TurnInterrupted():
            return "interrupted"
    return "failed"
