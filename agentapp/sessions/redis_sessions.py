"""Sessions in Redis: each is one hash, changed by scripts that run as one step."""

from __future__ import annotations

import json
from types import TracebackType
from typing import Any

from agentapp.config.redis_url import redis_url
from agentapp.sessions.values import (
    SessionConflict,
    SessionKey,
    SessionLimits,
    StoredSession,
    checked_seconds,
    first_version,
    messages_as_json,
    state_as_json,
    too_many,
)
from agentapp.storage.redis_client import Redis, Script

# Of the hash: v is the version, n how many messages there are, s the state, and each message is under its
# number. All in one key, so that Redis cannot forget one part of a session and keep another.
LIVE_ON = """
local function live_on(ms)
  if ms == '0' then redis.call('PERSIST', KEYS[1]) else redis.call('PEXPIRE', KEYS[1], ms) end
end
"""
LOAD = Script("""
local found = redis.call('HMGET', KEYS[1], 'v', 'n', 's')
if not found[1] then return false end
local last, messages = tonumber(found[2] or '0'), {}
for number = tonumber(ARGV[1]) + 1, last do
  messages[#messages + 1] = redis.call('HGET', KEYS[1], number)
end
return {found[1], last, found[3], messages}
""")
APPEND = Script(
    LIVE_ON
    + """
local last = tonumber(redis.call('HGET', KEYS[1], 'n') or '0')
local count = #ARGV - 3
if last + count > tonumber(ARGV[3]) then return {0, last + count} end
redis.call('HSETNX', KEYS[1], 'v', ARGV[2])
for place = 1, count do redis.call('HSET', KEYS[1], last + place, ARGV[place + 3]) end
redis.call('HSET', KEYS[1], 'n', last + count)
live_on(ARGV[1])
return {1, last + count}
"""
)
SAVE = Script(
    LIVE_ON
    + """
local current = redis.call('HGET', KEYS[1], 'v')
if (current or '0') ~= ARGV[3] then return {0, current or '0'} end
if current then redis.call('HINCRBY', KEYS[1], 'v', 1) else redis.call('HSET', KEYS[1], 'v', ARGV[2]) end
redis.call('HSET', KEYS[1], 's', ARGV[4])
live_on(ARGV[1])
return {1, redis.call('HGET', KEYS[1], 'v')}
"""
)
TOUCH = Script(LIVE_ON + "if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end live_on(ARGV[1]) return 1")


class RedisSessions:
    """A `SessionStore`. ``url`` is ``redis://:password@host:6379/0``, or ``rediss://`` with TLS. ``ttl`` is
    in seconds; None is for ever. Programs that share a Redis, but not sessions, need different prefixes.
    """

    def __init__(
        self,
        url: str,
        *,
        ttl: float | None = None,
        prefix: str = "agentapp-sessions:",
        limits: SessionLimits | None = None,
    ) -> None:
        self._redis = Redis(redis_url(url), prefix)
        self._ttl_ms = 0 if checked_seconds(ttl) is None else max(1, round((ttl or 0) * 1000))
        self._limits = limits or SessionLimits()

    def load(self, key: SessionKey, after: int = 0) -> StoredSession | None:
        found = self._redis.run(LOAD, [self._key(key)], after)
        if found is None:
            return None
        version, last, state, messages = found
        return StoredSession(
            int(version),
            last,
            tuple(json.loads(message) for message in messages),
            None if state is None else json.loads(state),
        )

    def append(self, key: SessionKey, *messages: Any) -> int:
        texts = messages_as_json(messages, self._limits)
        name, most = self._key(key), self._limits.messages
        was_done, last = self._redis.run(APPEND, [name], self._ttl_ms, first_version(), most, *texts)
        if not was_done:
            raise too_many(last, self._limits)
        return int(last)

    def save(self, key: SessionKey, state: Any, version: int) -> int:
        text = state_as_json(state, self._limits)
        name = self._key(key)
        was_done, current = self._redis.run(SAVE, [name], self._ttl_ms, first_version(), version, text)
        if not was_done:
            raise SessionConflict(int(current))
        return int(current)

    def touch(self, key: SessionKey) -> bool:
        return bool(self._redis.run(TOUCH, [self._key(key)], self._ttl_ms))

    def delete(self, key: SessionKey) -> bool:
        return bool(self._redis.call("DEL", self._key(key)))

    def purge(self) -> int:
        """Redis does that by itself."""
        return 0

    def close(self) -> None:
        self._redis.close()

    def __enter__(self) -> RedisSessions:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _key(self, key: SessionKey) -> str:
        return self._redis.key(key.tenant, key.user, key.session)
