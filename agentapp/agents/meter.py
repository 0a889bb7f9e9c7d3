"""What a model call costs: estimated until its provider says, and counted while it goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agentapp.events import Usage

BYTES_PER_TOKEN = 4


def estimated_tokens(texts: Iterable[str]) -> int:
    return tokens_in(sum(map(size_of, texts)))


def tokens_in(size: int) -> int:
    return -(-size // BYTES_PER_TOKEN)


def size_of(text: str) -> int:
    """Bytes as UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


class Meter:
    """Belongs to one model call. The thread that reads the answer writes it; any other may read it.

    From the moment that the request is ``sent``, its input is charged as estimated, until the provider says
    how much it was. What is ``heard`` is charged as it comes, because many providers say how much that was
    only at the end, and many calls never get there.
    """

    def __init__(self, estimated_input: int = 0) -> None:
        self.estimate = Usage(estimated_input, 0, model_calls=1)
        self._known = Usage()
        self._heard_bytes = 0

    @property
    def usage(self) -> Usage:
        """What it has cost so far."""
        known = self._known
        return replace(known, output_tokens=max(known.output_tokens, tokens_in(self._heard_bytes)))

    @property
    def usage_if_sent(self) -> Usage:
        """The same, but never nothing: for when it cannot be known later whether the request was sent."""
        usage = self.usage
        return usage if usage.model_calls else usage + self.estimate

    def sent(self) -> None:
        """The request leaves, for the first time or for another attempt. Providers call it."""
        self._known += self.estimate

    def heard(self, text: str) -> None:
        self._heard_bytes += size_of(text)

    def says(self, usage: Usage) -> None:
        """What the provider says that the whole call has cost so far, with all its attempts."""
        self._known = usage
