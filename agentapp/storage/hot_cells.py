"""A copy of the guardrails' cells in Redis, written behind the database. It admits nothing and is no truth:
all of it may be lost at any time.

Each state carries a version, in its JSON in the database, which grows with every change of that row and is
given under its lock. So of two that write at once, the newer one stays, whoever comes last. A version begins
with the time: a row that was deleted, or changed by a worker that knows none, goes on above the old ones.

A state is believed only for a moment after it was read under its lock, by the database's clock. What was not
written behind (the worker died, Redis was away) can mislead for no longer than that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from agentapp.errors import RedisAway
from agentapp.guardrails.cell import Key
from agentapp.guardrails.operator import SCOPES
from agentapp.isolation import Scope, UserScope

if TYPE_CHECKING:
    from agentapp.storage.redis_client import Redis

BELIEVED_SECONDS = 1.5
KEPT_MS = 600_000  # Longer than any write can come late: until then its version is known to be old.
KEYS_REMEMBERED = 16  # of messages, for each session
DIGEST_CHARS = 16
VERSION = re.compile(r',?"v":([0-9]+)\}$')  # always the last thing of a state

LOOK = """
local found = {}
for place, key in ipairs(KEYS) do
  found[place] = redis.call('HMGET', key, 'state', 'until', 'owner', 'messages')
end
return found
"""
# ARGV: until when they are believed, how long they are kept, the owner of the session and the key of the
# message, how much is remembered of such keys; then for each its version, its state, whether it is the
# session's.
CONFIRM = """
for place, key in ipairs(KEYS) do
  local version, state, is_session = unpack(ARGV, 3 * place + 3, 3 * place + 5)
  local known = redis.call('HGET', key, 'version')
  if not known or tonumber(version) >= tonumber(known) then
    redis.call('HSET', key, 'version', version, 'state', state, 'until', ARGV[1])
  end
  if is_session == '1' and ARGV[3] ~= '' then
    redis.call('HSET', key, 'owner', ARGV[3])
    if ARGV[4] ~= '' then
      local messages = (redis.call('HGET', key, 'messages') or '') .. ARGV[4] .. ','
      redis.call('HSET', key, 'messages', string.sub(messages, -tonumber(ARGV[5])))
    end
  end
  redis.call('PEXPIRE', key, ARGV[2])
end
"""


class SeenCells:
    """What one transaction has read and written, with the versions."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.read_at = 0.0
        self.read: dict[Key, str] = {}
        self.written: dict[Key, str] = {}

    def opened(self, found: Mapping[Key, str]) -> dict[Key, str]:
        """What was read, without the versions."""
        self.read_at = self._now()
        for key, text in found.items():
            self.read.setdefault(key, text)
        return {key: VERSION.sub("}", text) for key, text in found.items()}

    def closed(self, key: Key, text: str) -> str:
        """What is written, with the next version. The row was read before, so it is locked."""
        if key.scope not in SCOPES:
            return text
        before = version_of(self.written.get(key) or self.read.get(key, ""))
        after = max(before + 1, int(self._now() * 1000))
        comma = "" if text == "{}" else ","
        self.written[key] = stamped = f'{text[:-1]}{comma}"v":{after}}}'
        return stamped


def version_of(text: str) -> int:
    """0 if it has none: then it was written by a worker without Redis, or before there were versions."""
    found = VERSION.search(text)
    return int(found[1]) if found else 0


class RedisHotCells:
    """A `guardrails.early.HotCells`, and what keeps it up to date."""

    def __init__(self, redis: Redis, now: Callable[[], float]) -> None:
        from agentapp.storage.redis_client import Script

        self._redis, self.now = redis, now
        self._look, self._confirm = Script(LOOK), Script(CONFIRM)

    def look(
        self, keys: Sequence[Key], scope: UserScope, message_key: str | None = None
    ) -> Mapping[Key, str]:
        try:
            answers = self._redis.run(self._look, [self._name(key) for key in keys])
        except RedisAway:
            return {}
        now, found = self.now(), {}
        for key, (state, until, owner, messages) in zip(keys, answers, strict=True):
            if state is None or not now < float(until) <= now + BELIEVED_SECONDS:
                continue
            if key.scope == "session":
                if message_key is not None and _digest(message_key).encode() in (messages or b"").split(b","):
                    return {}
                if owner is None or owner.decode() != _owner(scope):
                    continue
            found[key] = VERSION.sub("}", state.decode())
        return found

    def confirm(
        self, seen: SeenCells, states: Mapping[Key, str], scope: Scope | None, message_key: str | None
    ) -> None:
        """After the transaction. It does not matter to anybody whether this gets through."""
        hot = {key: text for key, text in states.items() if key.scope in SCOPES}
        if not hot:
            return
        arguments: list[str | int | float] = []
        for key, text in hot.items():
            is_own = scope is not None and key == ("session", scope.session_id)
            arguments += [version_of(text), text, int(is_own)]
        owner, message = _owner(scope) if scope else "", _digest(message_key) if message_key else ""
        until, remembered = repr(seen.read_at + BELIEVED_SECONDS), KEYS_REMEMBERED * (DIGEST_CHARS + 1)
        names = [self._name(key) for key in hot]
        try:
            self._redis.run(self._confirm, names, until, KEPT_MS, owner, message, remembered, *arguments)
        except RedisAway:
            return

    def _name(self, key: Key) -> str:
        return self._redis.key("cell", *key)


def find_hot_cells(redis: Redis | None, now: Callable[[], float]) -> RedisHotCells | None:
    return None if redis is None else RedisHotCells(redis, now)


def _owner(scope: UserScope) -> str:
    return hashlib.sha256(f"{scope.tenant_id}\0{scope.user_id}".encode()).hexdigest()


def _digest(message_key: str) -> str:
    return hashlib.sha256(message_key.encode()).hexdigest()[:DIGEST_CHARS]
