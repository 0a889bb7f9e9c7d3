"""What a reader has been shown of one model call, and what the call has cost if it is ended early."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from agentapp.agents.provider import Reply
from agentapp.errors import ProviderError, TurnFailed, TurnInterrupted, TurnStopped
from agentapp.events import Text, Usage

CHARS_PER_TOKEN = 4


@dataclass(slots=True)
class Progress:
    """The progress of one model call. ``separator`` goes before its first piece of text."""

    separator: str
    tick: float
    chars_shown: int = 0
    _last_event: float = field(default_factory=time.monotonic)

    def events_for(self, piece: str) -> Iterator[Text | None]:
        """The event of a piece. Without text it is ``None``, and only if there was no event for a tick."""
        if piece:
            self.chars_shown += len(piece)
            text, self.separator = self.separator + piece, ""
            yield Text(text)
            self._last_event = time.monotonic()
        elif time.monotonic() - self._last_event >= self.tick:
            yield None
            self._last_event = time.monotonic()

    def complete(self, error: TurnFailed, spent: Usage) -> None:
        """Add to the error that ended the call what it does not know: the cost, and if any text was shown."""
        if error.usage is None:
            halted = isinstance(error, (TurnStopped, TurnInterrupted))
            error.usage = _at_least(spent, self.chars_shown) if halted else spent
        if isinstance(error, ProviderError):
            error.said_something = self.chars_shown > 0


def usage_in(item: object) -> Usage | None:
    """What a call has cost so far, if the item that its provider gave or raised says so."""
    match item:
        case Usage():
            return item
        case Reply(usage=Usage() as usage) | TurnFailed(usage=Usage() as usage):
            return usage
    return None


def _at_least(spent: Usage, chars: int) -> Usage:
    # A provider may report its output tokens only at the end, which a halted call never reaches. Otherwise a
    # user could stop every answer just before its end and pay nothing, so the text that was shown is counted
    # roughly.
    return replace(spent, output_tokens=max(spent.output_tokens, math.ceil(chars / CHARS_PER_TOKEN)))
