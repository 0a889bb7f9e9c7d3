"""Redis as everything here uses it: calls that are short, are never given another call's answer, and fail at
once while it is away."""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from redis.exceptions import NoScriptError

from agentapp.errors import RedisAway
from agentapp.storage.redis_check import is_about_all_commands, problem_of, said
from agentapp.storage.redis_connection import CALL_SECONDS, NO_ANSWER, Argument, Command, Pool, dialer

PROBE_SECONDS = 1.0  # how often it is tried while it is away
CONNECTIONS = 64  # of one process, at most
NOT_TRIED, CLOSED = "not tried yet", "closed"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Script:
    """Lua that Redis runs as one step. It is sent by its digest, and whole only if Redis does not know it."""

    source: str
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        digest = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "digest", digest)


class _Process:  # agentapp: shared ok - one field at a time is replaced, by what is true just then
    """What one process has of a `Redis`. A child that is forked begins with one of its own."""

    def __init__(self, pool: Pool, probe_key: str) -> None:
        self.pid, self.pool, self._probe_key = os.getpid(), pool, probe_key
        self.away: str | None = NOT_TRIED  # why; None while all is well
        self.is_closed = False
        self.wake: SimpleQueue[None] = SimpleQueue()
        self._trying = threading.Lock()
        self._watcher: threading.Thread | None = None

    def try_first_time(self) -> None:
        """Those who come meanwhile wait for the first."""
        with self._trying:
            if self.away == NOT_TRIED:
                self.watch()
                self.note(problem_of(self.pool, self._probe_key))

    def watch(self) -> None:
        """From now on look once a second, also while nobody calls. Ends when this is of no use any more."""
        if self._watcher is None:
            self._watcher = threading.Thread(
                target=_watch, args=(weakref.ref(self),), name="agentapp-redis-watcher", daemon=True
            )
            self._watcher.start()

    def look(self) -> None:
        with self._trying:
            if self.away is not None or not self._answers():
                self.note(problem_of(self.pool, self._probe_key))

    def _answers(self) -> bool:
        try:
            self.pool.exchange([("PING",)])
        except NO_ANSWER:
            return False
        return True

    def note(self, why_away: str | None) -> None:
        if self.is_closed:
            return
        before, self.away = self.away, why_away
        if why_away is None and before is not None:
            log.info("Redis is there")
        if why_away is None:
            return
        self.pool.clear()
        if before is None:
            self.wake.put(None)  # When Redis was restarted, only the connections to it are lost.
        if before in (None, NOT_TRIED):
            log.warning("Redis is away, and everything goes on without it: %s", why_away)

    def close(self) -> None:
        self.is_closed = True
        self.wake.put(None)
        if self._watcher is not None:
            self._watcher.join()
        self.away = CLOSED
        self.pool.clear()


def _watch(found: weakref.ref[_Process]) -> None:
    """What nobody uses any more is not kept by this."""
    while True:
        here = found()
        if here is None or here.is_closed:
            return
        here.look()
        wake = here.wake
        del here
        with suppress(Empty):
            wake.get(timeout=PROBE_SECONDS)


class Redis:  # agentapp: shared ok - changed once in a process, after a fork
    """May be shared by all threads, and made before a fork: nothing is opened before the first call.

    A call takes half a second at most, besides what its command itself waits. It is tried once: if no answer
    comes, nobody knows whether it was carried out. That is a `RedisAway`, and so is every other call at once,
    until a thread of ours, which tries once a second, finds that all is well again.
    """

    def __init__(
        self,
        url: str,
        prefix: str = "agentapp:",
        *,
        connections: int = CONNECTIONS,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self.prefix = prefix
        self._dial, self._connections = dialer(url, call_seconds), connections
        self._process = self._new_process()

    @property
    def is_away(self) -> bool:
        """Whether calls fail now. Before it was tried for the first time it counts as away."""
        return self._here().away is not None

    @property
    def why_away(self) -> str | None:
        """For the operator: without a password, and without words of people."""
        return self._here().away

    def key(self, *parts: str) -> str:
        """The name of a key. Two different lists of parts never have the same name, whatever is in them."""
        return self.prefix + ":".join(part.replace("%", "%25").replace(":", "%3A") for part in parts)

    def call(self, *command: Argument, wait: float = 0.0) -> Any:
        """The answer; texts are bytes. ``wait`` is for how long the command itself may block."""
        return self.call_all([command], wait=wait)[0]

    def call_all(self, commands: Sequence[Command], *, wait: float = 0.0) -> list[Any]:
        """Several commands in one round trip, each by itself. The first error that Redis answers is raised,
        but the other commands were carried out.
        """
        return [self._accepted(answer) for answer in self._answers(commands, wait)]

    def run(self, script: Script, keys: Sequence[str], *args: Argument) -> Any:
        rest = (len(keys), *keys, *args)
        (answer,) = self._answers([("EVALSHA", script.digest, *rest)])
        if isinstance(answer, NoScriptError):  # so nothing of it was run
            (answer,) = self._answers([("EVAL", script.source, *rest)])
        return self._accepted(answer)

    def start(self) -> None:
        """Find out in the background whether it is there. Otherwise the first call does."""
        self._here().watch()

    def close(self) -> None:
        """For good."""
        self._here().close()

    def _here(self) -> _Process:
        """Nothing is shared over a fork, not even a lock: if it was held just then, it would be for ever."""
        here = self._process
        if here.pid != os.getpid():
            here = self._process = self._new_process()
        return here

    def _new_process(self) -> _Process:
        return _Process(Pool(self._dial, self._connections), self.key("probe", secrets.token_hex(8)))

    def _answers(self, commands: Sequence[Command], wait: float = 0.0) -> list[Any]:
        here = self._here()
        if here.away == NOT_TRIED:
            here.try_first_time()
        if here.away is not None:
            raise RedisAway(f"Redis is away: {here.away}")
        try:
            return here.pool.exchange(commands, wait)
        except NO_ANSWER as error:
            here.note(said(error))
            raise RedisAway(f"Redis is away: {said(error)}") from error

    def _accepted(self, answer: Any) -> Any:
        if not isinstance(answer, Exception):
            return answer
        if is_about_all_commands(answer):
            self._here().note(said(answer))
        raise RedisAway(f"Redis refused: {said(answer)}") from answer
