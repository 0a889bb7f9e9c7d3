"""One turn, in order: begin it (which may refuse), play it, settle it exactly once."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from agentapp.agents.drivers.deadlines import Deadlines
from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.loop import Limits, Opening, TurnLoop
from agentapp.agents.prices import Prices
from agentapp.agents.provider import Message
from agentapp.agents.team import Team
from agentapp.agents.tool import Notes, PastChats, ToolContext
from agentapp.config import Settings
from agentapp.errors import Blame, ForeignScope, StorageUnavailable, TurnFailed, TurnInterrupted, TurnStopped
from agentapp.guardrails import admission
from agentapp.guardrails.admission import Wish
from agentapp.guardrails.guard import Guardrails, Standing
from agentapp.isolation import Scope
from agentapp.storage.log import Event, packed, text_of
from agentapp.storage.turns import Turns
from agentapp.storage.values import Again, Begun, Sent, Settled, Status
from agentapp.turns.feed import Outcome, TurnEvent
from agentapp.turns.leases import Leases

HISTORY_CHARS = 60_000
SAVING_AGAIN = (0.5, 1.0, 2.0, 4.0)  # seconds; a database that is started anew is back by then

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answering:
    """The parts every turn is made with. They live as long as the process; a `Turn` never does."""

    turns: Turns
    guardrails: Guardrails
    leases: Leases
    team: Team
    driver: ThreadedDriver
    model: str
    limits: Limits
    deadlines: Deadlines
    notes: Notes
    past_chats: PastChats
    report: Callable[[ForeignScope], None]
    prices: Prices

    def begin(
        self, scope: Scope, text: str | None, key: str | None = None, **place: str | None
    ) -> Turn | Again:
        """Let the message in (see `Sent`), or refuse with nothing changed. Pull the turn to its end."""
        sent = Sent(text, key, **place)
        begun = self.turns.begin(scope, sent, self.leases.current(), self.wish())
        return begun if isinstance(begun, Again) else Turn(self, scope, begun)

    def standing(self, scope: Scope) -> Standing:
        return self.guardrails.standing(scope, self.wish())

    def wish(self) -> Wish:
        """The most a turn can cost: it is reserved before the first call of the model."""
        tokens = self.limits.tokens
        return Wish(tokens, self.prices.most(self.team.models(self.model), tokens))


def deadlines_of(settings: Settings) -> Deadlines:
    return Deadlines(
        turn=settings.turn_deadline,
        first_token=settings.first_token_deadline,
        gap=settings.gap_deadline,
        tool=settings.tool_deadline,
    )


def longest(d: Deadlines) -> float:
    """Longer than a turn can possibly take: what was taken for one and not given back by then was lost."""
    return d.turn + max(d.first_token, d.gap) + d.tool + 15


class Turn(Iterator[TurnEvent | None]):
    """The events of one turn as they happen; ``None`` means "nothing new, still at it".

    Pull it to its end: the last event comes after the turn was settled. It is a class and not a
    generator so that it can be halted from another thread.

    A turn that is merely dropped is not settled: the garbage collector may come at any moment, also
    to a thread that holds the writer's lock. Its lease runs out, as after the death of its worker.
    """

    def __init__(self, parts: Answering, scope: Scope, begun: Begun) -> None:
        self.id = begun.turn_id
        self.scope = scope
        self.outcome: Outcome | None = None
        self._parts, self._begun = parts, begun
        self._halted: Future[Any] = Future()
        self._told: list[Event] = []
        self._playing = self._play()

    def __next__(self) -> TurnEvent | None:
        return next(self._playing)

    def halt(self, reason: TurnFailed) -> None:
        """From any thread: end it at once, also while the model is silent. Too late if it has ended."""
        with suppress(InvalidStateError):
            self._halted.set_exception(reason)

    def finish(self) -> Outcome:
        """Play whatever is left and tell how it ended."""
        for _ in self:
            pass
        if self.outcome is None:
            raise RuntimeError("a turn was finished twice at once")
        return self.outcome

    def _play(self) -> Generator[TurnEvent | None]:
        scope, parts = self.scope, self._parts
        loop = TurnLoop(
            scope,
            parts.team.build(scope, parts.report),
            self._opening(),
            parts.model,
            self._limits(),
            parts.prices,
            dict(self._begun.tools),
        )
        message = self._begun.text
        yield self._numbered("turn_started", turn_id=self.id, session_id=scope.session_id, message=message)
        failure = yield from self._answer(loop)
        self.outcome = self._settled(loop, failure)
        yield self._numbered(*self.outcome.as_event(self.id, scope.request_id))

    def _answer(self, loop: TurnLoop) -> Generator[TurnEvent | None, None, TurnFailed | None]:
        context = ToolContext(self.scope, self._parts.notes, self._parts.past_chats)
        try:
            for event in self._parts.driver.run(loop, context, self._halted):
                yield None if event is None else self._numbered(event.kind, **event.cleaned().data)
        except TurnFailed as error:
            return error
        except Exception:
            log.exception("request %s: turn %s failed unexpectedly", self.scope.request_id, self.id)
            return TurnFailed("Something went wrong on our side while answering.")
        return None

    def _settled(self, loop: TurnLoop, failure: TurnFailed | None) -> Outcome:
        status = _status(failure)
        reply, usage = text_of(self._told), loop.usage
        cost = self._parts.prices.cost(loop.spent)
        outcome = Outcome(
            status=status,
            reply=reply,
            agent=loop.answering,
            title=self._begun.title,
            usage=usage,
            cost_usd=None if cost is None else cost / 1_000_000,
            error_code=failure.code if failure and status == "failed" else None,
            error_message=str(failure) if failure and status == "failed" else None,
        )
        settled = Settled(
            status=status,
            reply=reply,
            agent=loop.answering,
            next_agent=loop.stays_with if status == "completed" else "",
            log=tuple(packed(self._told)),
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            model_calls=usage.model_calls,
            cost_microusd=cost,
            ticket=self._begun.ticket,
            outcome=self._judged(loop, failure),
            error_code=outcome.error_code,
            error_message=outcome.error_message,
        )
        return self._saved(outcome, settled)

    def _judged(self, loop: TurnLoop, failure: TurnFailed | None) -> admission.Outcome:
        """What the guardrails are told: the real usage of every call, and whose failure it was if it was."""
        blame: Blame = failure.blame if failure else "turn"
        result: admission.Result = "failed" if blame != "nobody" else "abandoned"
        return admission.Outcome(
            "succeeded" if failure is None else result,
            blame,
            loop.usage.total_tokens,
            self._parts.prices.charge(loop.spent),
            tuple(loop.called.items()),
        )

    def _limits(self) -> Limits:
        """Those of every turn, or less if less could be reserved."""
        limits, ticket = self._parts.limits, self._begun.ticket
        return replace(limits, tokens=min(limits.tokens, ticket.tokens), microusd=ticket.microusd)

    def _saved(self, outcome: Outcome, settled: Settled) -> Outcome:
        """How the turn ended, in truth: what could not be written down was no answer."""
        for pause in SAVING_AGAIN:
            try:
                if self._parts.turns.settle(self.scope, self.id, settled):
                    return outcome
                log.warning("turn %s was no longer running when it ended: %s", self.id, outcome.status)
                return replace(outcome, status="interrupted", error_code=None, error_message=None)
            except StorageUnavailable as error:
                why = str(error.__cause__ or error).partition("\n")[0]
                log.warning("turn %s could not be saved yet: %s", self.id, why)
                time.sleep(pause)
            except Exception:
                log.exception("turn %s could not be saved", self.id)
                break
        # It counts as running until its lease is over; then what the journal has of it is kept.
        unsaved = StorageUnavailable("The answer could not be saved.")
        return replace(outcome, status="failed", error_code=unsaved.code, error_message=str(unsaved))

    def _opening(self) -> Opening:
        return Opening(self._begun.text, history(self._begun.history), self._begun.agent)

    def _numbered(self, kind: str, /, data: dict[str, Any] | None = None, **more: Any) -> TurnEvent:
        event = kind, data or more
        self._told.append(event)
        return TurnEvent(len(self._told), *event)


def _status(failure: TurnFailed | None) -> Status:
    match failure:
        case None:
            return "completed"
        case TurnStopped():
            return "stopped"
        case TurnInterrupted():
            return "interrupted"
    return "failed"


def history(said: tuple[tuple[str, str], ...]) -> tuple[Message, ...]:
    """Earlier messages as a model wants them: the newest that fit, roles alternating, a user's first."""
    room = HISTORY_CHARS
    kept: list[Message] = []
    for role, content in reversed(said):
        room -= len(content)
        if room < 0:
            break
        if kept and kept[-1].role == role:
            kept[-1] = Message(kept[-1].role, (content, *kept[-1].texts))
        else:
            kept.append(Message("user" if role == "user" else "assistant", (content,)))
    while kept and kept[-1].role == "assistant":
        kept.pop()
    return tuple(reversed(kept))
