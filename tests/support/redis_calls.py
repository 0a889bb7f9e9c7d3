"""Many calls of a Redis that answers late, by threads that exceptions are thrown into: whose answers come?"""

from __future__ import annotations

import ctypes
import logging
import random
import secrets
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentapp.errors import RedisAway
from agentapp.storage.redis_client import Redis, Script
from tests.support.redis_server import RedisServer

ANSWER_SECONDS = 0.03  # what a call waits here: in a server it is half a second
LATE_SHARE = 0.02  # of the answers
THREADS = 8
ECHO = Script("return {KEYS[1], ARGV[1]}")


class Caller(Protocol):
    """What is tried: our client, or another."""

    def call(self, *command: Any, wait: float = 0.0) -> Any: ...
    def call_all(self, commands: Any, *, wait: float = 0.0) -> list[Any]: ...
    def run(self, script: Script, keys: Any, *args: Any) -> Any: ...


class Cancelled(Exception):
    """Thrown into a thread from outside, wherever it is."""


@dataclass
class Found:
    calls: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    foreign: list[str] = field(default_factory=list)


def call_often(server: RedisServer, count: int, make: Callable[[str], Any] | None = None) -> Found:
    """So many calls through a proxy that holds answers back about as long as a call waits for them."""
    found = Found()
    with late_answers(server) as url, quiet_log():
        redis = (make or (lambda url: Redis(url, "calls:", call_seconds=ANSWER_SECONDS)))(url)
        calls = _Calls(redis, found, count)
        calls.run()
        redis.close()
    return found


@contextmanager
def quiet_log() -> Iterator[None]:
    """An exception thrown into the middle of `logging` can leave its lock held."""
    log = logging.getLogger("agentapp.storage.redis_client")
    log.disabled = True
    yield
    log.disabled = False


class _Calls:
    def __init__(self, redis: Caller, found: Found, count: int) -> None:
        self._redis, self._found, self._count = redis, found, count
        self._armed = [False] * THREADS
        self._done = threading.Event()

    def run(self) -> None:
        threads = [threading.Thread(target=self._until_done, args=(n,)) for n in range(THREADS)]
        thrower = threading.Thread(target=self._throw, args=(threads,))
        for each in (*threads, thrower):
            each.start()
        for each in threads:
            each.join()
        self._done.set()
        thrower.join()

    def _throw(self, threads: list[threading.Thread]) -> None:
        """At most one exception is on its way to a thread, and none when it has ended."""
        while not self._done.is_set():
            time.sleep(random.uniform(0, 0.004))
            n = random.randrange(THREADS)
            if self._armed[n]:
                self._armed[n] = False
                ident = ctypes.c_ulong(threads[n].ident or 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Cancelled))

    def _until_done(self, n: int) -> None:
        while True:
            try:
                while self._found.calls < self._count:
                    self._one(n)
                self._armed[n] = False
                for _ in range(10):  # until the last one has come
                    time.sleep(0.01)
                return
            except Cancelled:
                self._found.outcomes["cancelled"] += 1

    def _one(self, n: int) -> None:
        mark = f"{n}:{secrets.token_hex(8)}"
        kind, ask = random.choice(KINDS)
        self._found.calls += 1
        self._armed[n] = True
        try:
            answers = ask(self._redis, mark)
        except RedisAway as error:
            if error.__cause__ is not None:
                self._found.outcomes["late"] += 1
            else:
                self._found.calls -= 1  # none was made
                time.sleep(0.001)
            return
        except (AssertionError, IndexError, TypeError, ValueError) as error:  # the answer to something else
            self._found.foreign.append(f"{kind} with {mark}: {error!r}"[:300])
            return
        self._found.outcomes[kind] += 1
        if not all(mark.encode() in (answer or b"") for answer in answers):
            self._found.foreign.append(f"{kind} with {mark} was answered {answers!r}"[:300])


def _ask_one(redis: Caller, mark: str) -> list[Any]:
    return [redis.call("ECHO", mark)]


def _ask_many(redis: Caller, mark: str) -> list[Any]:
    answers = redis.call_all([("ECHO", f"{mark}/{number}") for number in range(5)])
    assert [answer.split(b"/")[1] for answer in answers] == [b"0", b"1", b"2", b"3", b"4"]
    return answers


def _ask_much(redis: Caller, mark: str) -> list[Any]:
    return [redis.call("ECHO", mark + 100_000 * "x")]


def _run_script(redis: Caller, mark: str) -> list[Any]:
    return list(redis.run(ECHO, [mark], mark))


def _wait_for_a_stream(redis: Caller, mark: str) -> list[Any]:
    """What is blocked is told by its own stream. Mostly nothing comes, and that is the answer."""
    if random.random() < 0.5:
        redis.call("XADD", mark, "*", "mark", mark)
        (found,) = redis.call("XREAD", "BLOCK", 5, "STREAMS", mark, "0", wait=0.005)
        redis.call("DEL", mark)
        return [found[0], found[1][0][1][1]]
    answer = redis.call("XREAD", "BLOCK", 5, "STREAMS", mark, "$", wait=0.005)
    return [mark.encode() if answer is None else repr(answer).encode()]


KINDS: tuple[tuple[str, Callable[[Caller, str], list[Any]]], ...] = (
    ("one", _ask_one),
    ("one", _ask_one),
    ("several", _ask_many),
    ("large", _ask_much),
    ("script", _run_script),
    ("blocking", _wait_for_a_stream),
)


@contextmanager
def late_answers(server: RedisServer) -> Iterator[str]:
    """The URL of a proxy. Some answers come about when a call gives up, a little earlier or later."""
    listener = socket.create_server(("127.0.0.1", 0))
    ends = threading.Event()
    thread = threading.Thread(target=_relay, args=(listener, server.port, ends))
    thread.start()
    try:
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
    finally:
        ends.set()
        thread.join()
        listener.close()


def _relay(listener: socket.socket, port: int, ends: threading.Event) -> None:
    """One thread for all connections. What is held back holds back what comes behind it, as a line does."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ, None)
        held: dict[socket.socket, tuple[float, socket.socket, bytes]] = {}  # by the side it comes from
        while not ends.is_set():
            for key, _ in selector.select(0.002):
                if key.data is None:
                    _connect(selector, listener, port)
                else:
                    other, is_answer = key.data
                    _pass_on(selector, held, key.fileobj, other, is_answer)
            for source in [each for each, (at, _, _) in held.items() if at <= time.monotonic()]:
                _, other, data = held.pop(source)
                with suppress(OSError):
                    other.sendall(data)
                    selector.register(source, selectors.EVENT_READ, (other, True))
        for key in list(selector.get_map().values()):
            if key.data is not None:
                key.fileobj.close()  # type: ignore[union-attr]
        for source, (_, other, _) in held.items():
            source.close()
            other.close()


def _connect(selector: selectors.BaseSelector, listener: socket.socket, port: int) -> None:
    client, _ = listener.accept()
    redis = socket.create_connection(("127.0.0.1", port))
    for each in (client, redis):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    selector.register(client, selectors.EVENT_READ, (redis, False))
    selector.register(redis, selectors.EVENT_READ, (client, True))


def _pass_on(
    selector: selectors.BaseSelector, held: Any, source: Any, other: socket.socket, is_answer: bool
) -> None:
    try:
        data = source.recv(262_144)
        if not data:
            raise OSError
        if is_answer and random.random() < LATE_SHARE:
            selector.unregister(source)
            held[source] = (time.monotonic() + random.uniform(0.5, 1.5) * ANSWER_SECONDS, other, data)
        else:
            other.sendall(data)
    except OSError:
        for each in (source, other):
            with suppress(KeyError, ValueError):
                selector.unregister(each)
            if each not in held:
                each.close()
