"""The prompt cache of the Messages API, as its documentation describes it.

A request's blocks come in the order tools, system, messages. An entry is everything up to one block, and is
made only where a request has a `cache_control`. A request finds an entry at one of its own marks, or up to
twenty blocks before it. What is shorter than the minimum is not kept, and nobody is told so.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.support.messages_api.scripts import size_of_block, tokens_in
from tests.support.messages_api.validation import merged_messages, system_blocks

LOOK_BACK_BLOCKS = 20
LIFE_SECONDS = 300.0
MINIMUM_TOKENS = 1_024


@dataclass(frozen=True, slots=True)
class CachedInput:
    """How the input of one request is counted."""

    plain: int
    read: int
    written: int


@dataclass(frozen=True, slots=True)
class _Prefix:
    """A request up to and including one of its blocks."""

    key: str
    tokens: int
    is_marked: bool


class PromptCache:
    def __init__(
        self, clock: Callable[[], float] = time.monotonic, minimum_tokens: int = MINIMUM_TOKENS
    ) -> None:
        self._clock, self._minimum = clock, minimum_tokens
        self._lock = threading.Lock()
        self._live_until: dict[str, float] = {}

    def take(self, workspace: str, request: Any) -> CachedInput:
        """Read what is there of the request, keep what it marks, and say how its tokens are counted."""
        prefixes = tuple(_prefixes(workspace, request))
        marked = [place for place, prefix in enumerate(prefixes) if prefix.is_marked]
        with self._lock:
            now = self._clock()
            found = max((self._find(prefixes, place, now) for place in marked), default=-1)
            kept = [place for place in marked if prefixes[place].tokens >= self._minimum]
            for place in [place for place in kept if place > found] + ([found] if found >= 0 else []):
                self._live_until[prefixes[place].key] = now + LIFE_SECONDS
        total = prefixes[-1].tokens
        read = prefixes[found].tokens if found >= 0 else 0
        upto = max([read, *(prefixes[place].tokens for place in kept)])
        return CachedInput(total - upto, read, upto - read)

    def _find(self, prefixes: tuple[_Prefix, ...], mark: int, now: float) -> int:
        """The place of the longest entry that this mark finds; -1 if there is none."""
        for place in range(mark, max(-1, mark - LOOK_BACK_BLOCKS), -1):
            if self._live_until.get(prefixes[place].key, now) > now:
                return place
        return -1


def _prefixes(workspace: str, request: Any) -> Iterator[_Prefix]:
    digest, size = hashlib.sha256(json.dumps([workspace, request["model"]]).encode()), 0
    for level, block in _blocks(request):
        content = {name: value for name, value in block.items() if name != "cache_control"}
        digest.update(json.dumps([level, content]).encode())
        size += size_of_block(block)
        yield _Prefix(digest.hexdigest(), tokens_in(size), "cache_control" in block)


def _blocks(request: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for tool in request.get("tools") or ():
        yield "tools", tool
    for block in system_blocks(request):
        yield "system", block
    for message in merged_messages(request["messages"]):
        for block in message["content"]:
            yield message["role"], block
