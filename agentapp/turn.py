"""One turn, in order: begin it (which may refuse), play it, settle it exactly once."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from agentapp.agents.driving import Deadlines
from agentapp.agents.loop import Event, Limits, Opening, TurnLoop
from agentapp.agents.prices import Prices
from agentapp.agents.provider import Message, Usage
from agentapp.agents.team import Team
from agentapp.agents.threaded import ThreadedDriver
from agentapp.agents.tools import Notes, PastChats, ToolContext
from agentapp.config import Settings
from agentapp.errors import AgentappError, Blame, ForeignScope, TurnFailed
from agentapp.guardrails import admission
from agentapp.guardrails.admission import Pass, Wish
from agentapp.guardrails.guard import Guardrails, Standing
from agentapp.guardrails.seats import Seats
from agentapp.isolation import Scope
from agentapp.storage.turns import Turns
from agentapp.storage.values import Begun, Settled, Status

HISTORY_CHARS = 60_000
ACTIVITY_CHARS = 4_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended, as its reader is told."""

    status: Status
    reply: str
    agent: str
    title: str
    usage: Usage
    cost_usd: float | None
    error_code: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class TurnEvent:
    """An event with its number: gap-free, from 1, within its turn."""

    number: int
    kind: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answering:
    """The parts every turn is made with. They live as long as the process; a `Turn` never does."""

    turns: Turns
    guardrails: Guardrails
    seats: Seats
    team: Team
    driver: ThreadedDriver
    model: str
    limits: Limits
    deadlines: Deadlines
    notes: Notes
    past_chats: PastChats
    report: Callable[[ForeignScope], None]
    prices: Prices

    def begin(self, scope: Scope, text: str, key: str | None = None) -> Turn:
        """Let the message in, or refuse with nothing changed. What comes back must be iterated or closed."""
        self.seats.take()
        try:
            begun = self.turns.begin(scope, text, key, timedelta(seconds=lease(self.deadlines)), self.wish())
            return Turn(self, scope, text, begun)
        except BaseException:
            self.seats.leave()
            raise

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


def lease(d: Deadlines) -> float:
    """Longer than a turn can possibly take, so that only a dead worker's lease runs out."""
    return d.turn + max(d.first_token, d.gap) + d.tool + 15


class Turn(Iterator[TurnEvent | None]):
    """The events of one turn as they happen; ``None`` means "nothing new, still at it".

    Whoever reads may go away: ``close()`` plays the turn to its end, so that the answer is there
    when they come back. It is a class and not a generator because closing a generator that was
    never started runs nothing at all, and the turn would stay "running".

    A turn that is merely dropped is not settled: the garbage collector may come at any moment, also
    to a thread that holds the writer's lock. Its lease runs out, as after the death of its worker.
    """

    def __init__(self, parts: Answering, scope: Scope, text: str, begun: Begun) -> None:
        self.id = begun.turn_id
        self.scope = scope
        self.outcome: Outcome | None = None
        self._parts, self._text, self._begun = parts, text, begun
        self._count = 0
        self._said: list[str] = []
        self._activity: list[dict[str, Any]] = []
        self._inputs: dict[str, Any] = {}
        self._playing = self._replay() if begun.replayed else self._play()
        self._leave_seat = parts.seats.leave_with(self)

    def __next__(self) -> TurnEvent | None:
        try:
            return next(self._playing)
        except StopIteration:
            self._leave_seat()
            raise

    def finish(self) -> Outcome:
        """Play whatever is left and tell how it ended."""
        for _ in self:
            pass
        if self.outcome is None:
            raise RuntimeError("a turn was finished twice at once")
        return self.outcome

    def close(self) -> None:
        if self.outcome is None:
            self.finish()
        self._leave_seat()

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
        yield self._numbered("turn_started", turn_id=self.id, session_id=scope.session_id)
        failure = yield from self._answer(loop)
        self._settle(loop, "failed" if failure else "completed", failure)
        yield self._completed()

    def _answer(self, loop: TurnLoop) -> Generator[TurnEvent | None, None, AgentappError | None]:
        context = ToolContext(self.scope, self._parts.notes, self._parts.past_chats)
        try:
            for event in self._parts.driver.run(loop, context):
                yield None if event is None else self._noted(event)
        except TurnFailed as error:
            return error
        except Exception:
            log.exception("request %s: turn %s failed unexpectedly", self.scope.request_id, self.id)
            return TurnFailed("Something went wrong on our side while answering.")
        return None

    def _settle(self, loop: TurnLoop, status: Status, failure: AgentappError | None) -> None:
        reply, usage = "".join(self._said), loop.usage
        cost = self._parts.prices.cost(loop.spent)
        outcome = Outcome(
            status=status,
            reply=reply,
            agent=loop.answering,
            title=self._begun.title,
            usage=usage,
            cost_usd=None if cost is None else cost / 1_000_000,
            error_code=failure.code if failure else None,
            error_message=str(failure) if failure else None,
        )
        settled = Settled(
            status=status,
            reply=reply,
            agent=loop.answering,
            stays_with=loop.stays_with if status == "completed" else "",
            activity=tuple(self._activity),
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            model_calls=usage.model_calls,
            cost_microusd=cost,
            ticket=self._ticket,
            outcome=self._told(loop, failure),
            error_code=outcome.error_code,
            error_message=outcome.error_message,
        )
        self.outcome = self._saved(outcome, settled)

    def _told(self, loop: TurnLoop, failure: AgentappError | None) -> admission.Outcome:
        """What the guardrails are told: the real usage of every call, and whose failure it was if it was."""
        blame: Blame = failure.blame if isinstance(failure, TurnFailed) else "turn"
        result: admission.Result = "failed" if blame != "nobody" else "abandoned"
        return admission.Outcome(
            "succeeded" if failure is None else result,
            blame,
            loop.usage.total_tokens,
            self._parts.prices.charge(loop.spent),
            tuple(loop.called.items()),
        )

    @property
    def _ticket(self) -> Pass:
        if self._begun.ticket is None:
            raise RuntimeError("a replayed turn took nothing")
        return self._begun.ticket

    def _limits(self) -> Limits:
        """Those of every turn, or less if less could be reserved."""
        limits, ticket = self._parts.limits, self._ticket
        return replace(limits, tokens=min(limits.tokens, ticket.tokens), microusd=ticket.microusd)

    def _saved(self, outcome: Outcome, settled: Settled) -> Outcome:
        try:
            if not self._parts.turns.settle(self.scope, self.id, settled):
                log.warning("turn %s was no longer running when it ended: %s", self.id, outcome.status)
        except Exception as error:
            log.exception("turn %s could not be saved", self.id)
            ours = error if isinstance(error, AgentappError) else TurnFailed("The answer could not be saved.")
            return replace(outcome, status="failed", error_code=ours.code, error_message=str(ours))
        return outcome

    def _replay(self) -> Generator[TurnEvent | None]:
        """The same message with the same key again: the same turn, told once more."""
        old = self._begun.replayed
        if old is None:
            raise RuntimeError("nothing to replay")
        self.outcome = Outcome(
            status=old.status,
            reply=self._begun.reply,
            agent=old.agent,
            title=self._begun.title,
            usage=Usage(old.input_tokens, old.output_tokens, old.model_calls),
            cost_usd=old.cost_usd,
            error_code=old.error_code,
            error_message=old.error_message,
        )
        yield self._numbered("turn_started", turn_id=self.id, session_id=self.scope.session_id)
        if self._begun.reply:
            yield self._numbered("text", text=self._begun.reply)
        yield self._completed()

    def _opening(self) -> Opening:
        return Opening(self._text, history(self._begun.history), self._begun.agent)

    def _noted(self, event: Event) -> TurnEvent:
        """Number the event, and keep of it what the settled turn will hold."""
        data = dict(event.data)
        match event.kind:
            case "text":
                data["text"] = storable(data["text"])
                self._said.append(data["text"])
            case "handed_over":
                self._activity.append(
                    {"kind": "handed_over", **{k: storable(data[k]) for k in ("from", "to", "task")}}
                )
            case "tool_executing":
                self._inputs[data["call_id"]] = data["input"]
            case "tool_completed":
                self._activity.append(_tool_activity(data, self._inputs.pop(data["call_id"], None)))
        return self._numbered(event.kind, **data)

    def _numbered(self, kind: str, **data: Any) -> TurnEvent:
        self._count += 1
        return TurnEvent(self._count, kind, data)

    def _completed(self) -> TurnEvent:
        end = self.outcome
        if end is None:
            raise RuntimeError("a turn is completed only after it was settled")
        data: dict[str, Any] = {
            "turn_id": self.id,
            "request_id": self.scope.request_id,
            "status": end.status,
            "reply": end.reply,
            "agent": end.agent,
            "title": end.title,
            "usage": usage_as_json(end.usage),
            "cost_usd": end.cost_usd,
        }
        if end.error_code:
            data["error"] = {"code": end.error_code, "message": end.error_message}
        return self._numbered("turn_completed", **data)


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


def storable(text: str) -> str:
    """A model may say anything; what no database or encoding can hold is replaced."""
    clean = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return clean.encode("utf-8", "replace").decode("utf-8")


def usage_as_json(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "model_calls": usage.model_calls,
    }


def _tool_activity(done: dict[str, Any], given: object) -> dict[str, Any]:
    return {
        "kind": "tool",
        "name": done["name"],
        "input": storable(json.dumps(given, ensure_ascii=False, default=str))[:ACTIVITY_CHARS],
        "output": done["output"][:ACTIVITY_CHARS],
        "failed": done["failed"],
        "limited": done["limited"],
    }
