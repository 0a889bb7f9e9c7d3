"""The values that turns and their stores hand each other."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from agentapp.agents.provider import Message
from agentapp.events import Event, TurnResult, Usage, UsagePart
from agentapp.guardrails.admission import Reservation
from agentapp.isolation import Scope

UNTITLED = "New chat"  # a chat's title until its first message
MAX_TITLE_CHARS = 60


def title_of(text: str) -> str:
    """A chat is called after its first message until somebody renames it."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_TITLE_CHARS else line[: MAX_TITLE_CHARS - 1].rstrip() + "…"


@dataclass(frozen=True, slots=True)
class NewMessage:
    """A message to send. Without a text it has the text of the turn that it ``replaces``.

    It goes after the newest turn, unless it says which turn it comes ``after``, or of which turn it
    is to be another version.
    """

    text: str | None
    key: str | None = None
    after: str | None = None
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Which worker plays a turn, and for how long it counts as alive if nothing is heard of it."""

    worker: str
    length: timedelta


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the chat a turn goes, and which agent it begins with."""

    number: int
    follows: int
    agent: str


@dataclass(frozen=True, slots=True)
class Spent:
    """What a turn has spent so far. ``cost_microusd`` is what people are told, None if a price is not known.
    ``charged_microusd`` is what budgets count. ``parts`` say on which agents and models.
    """

    usage: Usage
    cost_microusd: int | None
    charged_microusd: int
    parts: tuple[UsagePart, ...] = ()

    def added_to(self, result: TurnResult) -> TurnResult:
        return replace(
            result,
            usage=self.usage,
            cost_microusd=self.cost_microusd,
            charged_microusd=self.charged_microusd,
            parts=self.parts,
        )

    def to_json(self) -> list[Any]:
        numbers = self.usage.numbers
        parts = [[part.agent, part.model, part.charged_microusd, *part.usage.numbers] for part in self.parts]
        return [*numbers[:3], self.cost_microusd, self.charged_microusd, *numbers[3:], parts]

    @classmethod
    def from_json(cls, state: list[Any]) -> Spent:
        """An older version has stored the first five or seven only, and reads no more of a newer one's."""
        parts = (
            UsagePart(agent, model, Usage(*usage), charged)
            for agent, model, charged, *usage in (state[7] if len(state) > 7 else ())
        )
        return cls(Usage(*state[:3], *state[5:7]), state[3], state[4], tuple(parts))

    @classmethod
    def of(cls, result: TurnResult) -> Spent:
        return cls(result.usage, result.cost_microusd, result.charged_microusd, result.parts)

    @classmethod
    def on_first_call(cls, reservation: Reservation) -> Spent:
        """What counts as spent until something was stored."""
        cost = reservation.first_call_microusd
        usage = Usage(reservation.first_call_tokens, 0, model_calls=1)
        part = UsagePart(reservation.first_call_agent, reservation.first_call_model, usage, cost)
        return cls(usage, cost, cost, (part,))


def difference(parts: tuple[UsagePart, ...], counted: tuple[UsagePart, ...]) -> tuple[UsagePart, ...]:
    """What has to be added to those that are ``counted`` already; less than nothing if that was too much."""
    total = {(part.agent, part.model): part for part in parts}
    for before in counted:
        key = (before.agent, before.model)
        now = total.get(key, UsagePart(*key, Usage(), 0))
        total[key] = now._replace(
            usage=now.usage - before.usage, charged_microusd=now.charged_microusd - before.charged_microusd
        )
    return tuple(total.values())


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """The turn that a chat's row says is running. No lease: its worker has ended it and is gone."""

    id: str
    worker: str
    lease_until: datetime | None
    reservation: Reservation | None
    request_id: str = ""


@dataclass(frozen=True, slots=True)
class StartedTurn:
    """A turn that was let in: what it needs to be played, and what it has reserved."""

    turn_id: str
    text: str
    agent: str
    history: tuple[Message, ...]
    title: str
    reservation: Reservation
    tool_calls: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RepeatedMessage:
    """The same message with the same key had come before: this is the turn that answers it."""

    turn_id: str


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn as the database has it: its events so far and its result, whose status may be running."""

    turn_id: str
    request_id: str
    events: tuple[Event, ...]
    result: TurnResult


@dataclass(frozen=True, slots=True)
class NewEvents:
    """Events of one turn that are not stored yet; the first of them has the number ``first``. And what the
    turn has spent so far.
    """

    scope: Scope
    turn_id: str
    first: int
    events: tuple[Event, ...]
    spent: Spent
