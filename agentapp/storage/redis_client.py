"""Redis as everything here uses it: calls that are short, are never given another call's answer, and fail at
once while it is away."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import NoScriptError

from agentapp.errors import RedisAway
from agentapp.storage.redis_check import is_about_all_commands, problem_of, said
from agentapp.storage.redis_connection import NO_ANSWER, Argument, Command, Pool, dialer

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


class _Process:
    """What one process has of a `Redis`. A child that is forked begins with one of its own."""

    def __init__(self, pool: Pool) -> None:
        self.pid, self.pool = os.getpid(), pool
        self.away: str | None = NOT_TRIED  # why; None while all is well
        self.watcher: threading.Thread | None = None
        self.state = threading.Lock()  # around changes of the two above, never while anybody waits for Redis
        self.trying = threading.Lock()


class Redis:
    """May be shared by all threads, and made before a fork: nothing is opened before the first call.

    A call takes half a second at most, besides what its command itself waits. It is tried once: if no answer
    comes, nobody knows whether it was carried out. That is a `RedisAway`, and so is every other call at once,
    until a thread of ours, which tries once a second, finds that all is well again.
    """

    def __init__(self, url: str, prefix: str = "agentapp:", *, connections: int = CONNECTIONS) -> None:
        self.prefix = prefix
        self._dial, self._connections = dialer(url), connections
        self._process = self._new_process()
        self._closed = threading.Event()

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
        here = self._here()
        if here.away == NOT_TRIED:
            self._watch(here)

    def look(self) -> None:
        """Find out whether it is still there, also if nobody calls."""
        with suppress(RedisAway):
            self.call("PING")

    def close(self) -> None:
        """For good."""
        self._closed.set()
        here = self._here()
        watcher = here.watcher
        if watcher is not None:
            watcher.join()
        here.away = CLOSED
        here.pool.clear()

    def _here(self) -> _Process:
        """Nothing is shared over a fork, not even a lock: if it was held just then, it would be for ever."""
        here = self._process
        if here.pid != os.getpid():
            here = self._process = self._new_process()
        return here

    def _new_process(self) -> _Process:
        return _Process(Pool(self._dial, self._connections))

    def _answers(self, commands: Sequence[Command], wait: float = 0.0) -> list[Any]:
        here = self._here()
        if here.away is not None:
            self._begin(here)
        try:
            return here.pool.exchange(commands, wait)
        except NO_ANSWER as error:
            self._note(here, said(error))
            raise RedisAway(f"Redis is away: {said(error)}") from error

    def _begin(self, here: _Process) -> None:
        """The first call finds out whether this Redis can be used. Those that come meanwhile wait."""
        if here.away == NOT_TRIED:
            with here.trying:
                if here.away == NOT_TRIED:
                    self._note(here, self._problem(here))
        if here.away is not None:
            raise RedisAway(f"Redis is away: {here.away}")

    def _accepted(self, answer: Any) -> Any:
        if not isinstance(answer, Exception):
            return answer
        if is_about_all_commands(answer):
            self._note(self._here(), said(answer))
        raise RedisAway(f"Redis refused: {said(answer)}") from answer

    def _note(self, here: _Process, why_away: str | None) -> None:
        if self._closed.is_set():
            return
        with here.state:
            before, here.away = here.away, why_away
        if why_away is not None:
            here.pool.clear()
            self._watch(here)
            if before in (None, NOT_TRIED):
                log.warning("Redis is away, and everything goes on without it: %s", why_away)
        elif before is not None:
            log.info("Redis is there")

    def _watch(self, here: _Process) -> None:
        """Begin to try once a second, unless that is being done."""
        with here.state:
            if here.watcher is None and not self._closed.is_set():
                name = "agentapp-redis-watcher"
                watcher = threading.Thread(target=self._try_until_there, args=(here,), name=name, daemon=True)
                watcher.start()
                here.watcher = watcher

    def _try_until_there(self, here: _Process) -> None:
        """At first at once: when Redis was restarted, only the connections to it are lost."""
        while not self._closed.is_set():
            with here.trying:
                problem = self._problem(here) if here.away is not None else None
                self._note(here, problem)
            with here.state:
                if here.away is None:
                    here.watcher = None
                    return
            self._closed.wait(PROBE_SECONDS)

    def _problem(self, here: _Process) -> str | None:
        return problem_of(here.pool, self.key("probe", os.urandom(8).hex()))
