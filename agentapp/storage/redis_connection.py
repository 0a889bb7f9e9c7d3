"""One connection to a Redis: how it is opened, and how commands and their answers go over it.

Of redis-py only the connection is used, with its protocol and TLS. Its pool hands a connection out again
although an answer is still to come on it, if something interrupts the caller between command and answer.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from redis import Connection
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import DataError, ResponseError
from redis.exceptions import TimeoutError as TooLate
from redis.retry import Retry

Argument = str | bytes | int | float
Command = Sequence[Argument]

CONNECT_SECONDS = 0.5
CALL_SECONDS = 0.5  # for each answer, besides what a command itself is told to wait
IDLE_SECONDS = 60.0  # Firewalls forget a connection that nobody uses, mostly after some minutes.
FULL_PAUSE_SECONDS = 0.005


# Whoever catches these knows that no answer came, and not whether the command was carried out.
NO_ANSWER = (NotConnected, TooLate, OSError)


class Dialed:
    """One connection. It is in the hands of one call at a time, and closed unless that call was answered."""

    def __init__(self, connection: Any, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds
        self.used_at = time.monotonic()

    def connect(self) -> None:
        self._connection.connect()

    def close(self) -> None:
        self._connection.disconnect()

    def is_quiet(self) -> bool:
        """Whether it is open and nothing has come that nobody has asked for."""
        if time.monotonic() - self.used_at > IDLE_SECONDS:
            return False
        try:
            return not self._connection.can_read(timeout=0)
        except Exception:  # closed by the other side; how redis-py says so differs by version
            return False

    def exchange(self, commands: Sequence[Command], wait: float) -> list[Any]:
        """One answer for each command; an error that Redis answers is among them, not raised.

        Whatever is raised here, answers may still be to come, and the connection must be closed.
        """
        connection = self._connection
        try:
            packed = connection.pack_commands(commands)
        except DataError as error:
            raise TypeError(f"{error}") from error
        ends = time.monotonic() + wait + 2 * self._seconds
        connection.send_packed_command(packed)
        if wait and not connection.can_read(timeout=wait + self._seconds):
            raise TimeoutError("no answer")
        answers = []
        for _ in commands:
            answers.append(self._answer())
            if time.monotonic() > ends and len(answers) < len(commands):
                raise TimeoutError("the answers come too slowly")
        self.used_at = time.monotonic()
        return answers

    def _answer(self) -> Any:
        try:
            return self._connection.read_response()
        except ResponseError as error:  # It was read whole, and is the answer to this one command.
            return error.with_traceback(None)  # Otherwise it would keep everything that its callers hold.


def dialer(url: str, seconds: float = CALL_SECONDS) -> Callable[[], Dialed]:
    """Makes connections that are not open yet. ``seconds`` is for an answer. Nothing is tried twice."""
    options: dict[str, Any] = dict(parse_url(url))  # type: ignore[no-untyped-call]
    make = options.pop("connection_class", Connection)
    if url.startswith("rediss:"):
        options = {"ssl_check_hostname": True} | options  # redis-py before 6.0 would not
    options |= {
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": seconds,
        "socket_keepalive": True,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    return lambda: Dialed(make(**options), seconds)


class Pool:
    """The connections of one process. One that is taken belongs to nobody else until it is given back.

    Whoever is interrupted gives nothing back, and the connection is closed. So nothing here needs a
    ``finally``: an exception thrown into a thread from outside may come between any two steps.
    """

    def __init__(self, dial: Callable[[], Dialed], most: int) -> None:
        self.pid = os.getpid()
        self._dial, self._most = dial, most
        self._idle: deque[Dialed] = deque()  # used last, taken first
        self._made: list[weakref.ref[Dialed]] = []  # those that nobody holds any more are closed
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(connection() is not None for connection in self._made)

    def exchange(self, commands: Sequence[Command], wait: float = 0.0) -> list[Any]:
        """One answer for each command. An error that Redis answers is among them; others are `NO_ANSWER`."""
        connection = self.take()
        try:
            answers = connection.exchange(commands, wait)
        except BaseException:  # an answer may still be to come, and it would be the next caller's
            self.drop(connection)
            raise
        self.give_back(connection)
        return answers

    def take(self) -> Dialed:
        """An open one. If all are in use, one that is given back within the time of a call."""
        ends = time.monotonic() + CALL_SECONDS
        while True:
            with suppress(IndexError):
                while True:
                    idle = self._idle.pop()
                    if idle.is_quiet():
                        return idle
                    self.drop(idle)
            made = self._new()
            if made is not None:
                return made
            if time.monotonic() > ends:
                raise TimeoutError(f"all {self._most} connections are in use")
            time.sleep(FULL_PAUSE_SECONDS)

    def give_back(self, connection: Dialed) -> None:
        """Only after all its answers were read."""
        self._idle.append(connection)

    def drop(self, connection: Dialed) -> None:
        connection.close()

    def clear(self) -> None:
        with suppress(IndexError):
            while True:
                self.drop(self._idle.pop())

    def _new(self) -> Dialed | None:
        with self._lock:
            self._made = [made for made in self._made if made() is not None]
            if len(self._made) >= self._most:
                return None
            new = self._dial()
            self._made.append(weakref.ref(new))
        try:
            new.connect()
        except BaseException:
            self.drop(new)
            raise
        return new
