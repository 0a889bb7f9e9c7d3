"""What workers tell each other about turns: the messages, and the mailboxes they go through.

Every worker has one mailbox, named after it. A letter is a list of messages as JSON. Nothing depends on a
letter that gets lost: who follows a turn asks again and again for what comes next, and a request to stop is
in the database too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from agentapp.events import Event, from_json
from agentapp.isolation import Scope


class Owner(NamedTuple):
    """Whose chat a message is about. Every message names it, and who gets it compares."""

    tenant_id: str
    user_id: str
    session_id: str

    @classmethod
    def of(cls, scope: Scope) -> Owner:
        return cls(scope.tenant_id, scope.user_id, scope.session_id)


@dataclass(frozen=True, slots=True)
class Follow:
    """To the worker that plays a turn: somebody reads it at the worker ``reader``, which has its events up to
    the number ``after``.
    """

    turn_id: str
    owner: Owner
    reader: str
    after: int


@dataclass(frozen=True, slots=True)
class Stop:
    """To the worker that plays a turn: its user wants it to end."""

    turn_id: str
    owner: Owner


@dataclass(frozen=True, slots=True)
class Piece:
    """To a worker that follows a turn: events of it, the first of which has the number ``first``. There are
    none if the worker asked and nothing is new. ``is_over`` says that no more comes: mostly the database has
    the turn's end then.
    """

    turn_id: str
    owner: Owner
    first: int
    events: tuple[Event, ...]
    is_over: bool = False


Message = Follow | Stop | Piece


class Mailboxes(Protocol):
    def put(self, letters: Sequence[tuple[str, str]]) -> None:
        """Each is for the worker that it names. Raises `StorageUnavailable` if they may not have arrived."""

    def take(self, worker: str, seconds: float) -> Sequence[str]:
        """The letters for that worker, mostly each once. If there are none, wait for so long. One thread of
        that worker does this. Raises `StorageUnavailable`.
        """


def packed(messages: Sequence[Message]) -> str:
    return json.dumps([_as_json(message) for message in messages], separators=(",", ":"))


def unpacked(letter: str) -> Iterator[Message]:
    """Raises `ValueError` at what is none of ours. A kind that only a newer version knows is left out."""
    try:
        for message in json.loads(letter):
            kind, about = message["kind"], (message["turn"], Owner(*map(str, message["owner"])))
            if kind == "follow":
                yield Follow(*about, str(message["reader"]), int(message["after"]))
            elif kind == "stop":
                yield Stop(*about)
            elif kind == "piece":
                events = tuple(from_json(*event) for event in message["events"])
                yield Piece(*about, int(message["first"]), events, bool(message["over"]))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("not a letter") from error


def _as_json(message: Message) -> Mapping[str, Any]:
    about = {"turn": message.turn_id, "owner": message.owner}
    match message:
        case Follow():
            return {"kind": "follow", **about, "reader": message.reader, "after": message.after}
        case Stop():
            return {"kind": "stop", **about}
        case Piece():
            events = [(event.kind, event.data) for event in message.events]
            return {
                "kind": "piece",
                **about,
                "first": message.first,
                "events": events,
                "over": message.is_over,
            }
