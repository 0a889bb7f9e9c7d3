"""The mailboxes of all workers, in Redis: a stream each, that is gone a while after the last letter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agentapp.errors import RedisAway

if TYPE_CHECKING:
    from agentapp.storage.redis_client import Redis

KEPT_SECONDS = 60  # Nobody may empty it: its worker is dead.
MOST_LETTERS = 1_000  # About that many: a worker that cannot keep up loses the oldest ones, and asks again.
LETTERS_AT_ONCE = 100
BEGINNING = b"0"


class RedisMailboxes:  # agentapp: shared ok - what was taken is changed by the one thread that takes
    """`turns.mailboxes.Mailboxes`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._last = BEGINNING  # the letter that was taken last
        self._taken: Sequence[bytes] = ()

    def put(self, letters: Sequence[tuple[str, str]]) -> None:
        commands: list[tuple[str | int, ...]] = []
        for worker, letter in letters:
            key = self._redis.key("mail", worker)
            commands.append(("XADD", key, "MAXLEN", "~", MOST_LETTERS, "*", "letter", letter))
            commands.append(("EXPIRE", key, KEPT_SECONDS))
        self._redis.call_all(commands)

    def take(self, worker: str, seconds: float) -> Sequence[str]:
        key = self._redis.key("mail", worker)
        waits = ("COUNT", LETTERS_AT_ONCE, "BLOCK", max(1, int(seconds * 1000)))
        commands: list[tuple[str | int | bytes, ...]] = [("XREAD", *waits, "STREAMS", key, self._last)]
        if self._taken:
            commands.append(("XDEL", key, *self._taken))
        try:
            found, *_ = self._redis.call_all(commands, wait=seconds)
        except RedisAway:
            # A Redis that comes back may count from another time. What is read twice does no harm.
            self._last = BEGINNING
            raise
        entries: Sequence[Any] = found[0][1] if found else ()
        self._taken = [number for number, _ in entries]
        self._last = self._taken[-1] if self._taken else self._last
        return [
            dict(zip(fields[::2], fields[1::2], strict=False)).get(b"letter", b"").decode()
            for _, fields in entries
        ]
