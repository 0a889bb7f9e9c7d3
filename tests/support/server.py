"""The real server in a subprocess, for tests that need processes, sockets and signals."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from tests.support.forked_agentapp import ForkedAgentapp

Process = subprocess.Popen[bytes] | ForkedAgentapp
SCRIPTS = Path(sys.executable).parent
TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Server:
    url: str
    process: Process
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def setup_link(self) -> str | None:
        found = re.search(r"\S+/setup\?token=\S+", self.output())
        return found and found[0]

    def output(self) -> str:
        """Everything printed so far, on either stream."""
        return self.log.read_text()

    def children(self) -> list[int]:
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def worker_of(self, port: int) -> int | None:
        """The process that has the other end of an open connection, which comes from this port."""
        inodes = _sockets(int(self.url.rpartition(":")[2]), port)
        for pid in self.children():
            with suppress(OSError):  # it may end while it is looked at
                for file in Path(f"/proc/{pid}/fd").iterdir():
                    with suppress(OSError):
                        if os.readlink(file) in inodes:
                            return pid
        return None

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """Ask it to stop and wait for it: its exit code."""
        self.process.send_signal(sig)
        return self.process.wait(TIMEOUT_SECONDS)


def _sockets(local: int, remote: int) -> set[str]:
    """How /proc calls the sockets between these two ports."""
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if [int(fields[n].rpartition(":")[2], 16) for n in (1, 2)] == [local, remote]:
            found.add(f"socket:[{fields[9]}]")
    return found


@contextmanager
def server(
    directory: Path,
    *,
    env: Mapping[str, str] | None = None,
    workers: int = 1,
    threads: int = 16,
    host: str = "127.0.0.1",
    port: int | None = None,
    command: Sequence[str | Path] | None = None,
) -> Iterator[Server]:
    """A server that works in `directory` and answers already; gone at the end, whatever happens.

    Without a command it is `agentapp serve`, without the time that it takes to import the libraries.
    """
    port = port or free_port()
    where = {
        "AGENTAPP_BIND": f"{host}:{port}",
        "AGENTAPP_WORKERS": str(workers),
        "AGENTAPP_THREADS": str(threads),
        # Many servers share the processors here. And chance must decide which worker a connection reaches: if
        # one of the two processors is busy, it would always be the other worker.
        "AGENTAPP_PIN_WORKERS": "0",
        # What is written is what went wrong, and not a line for each request.
        "AGENTAPP_LOG_LEVEL": "warning",
    }
    log = directory / f"output-{port}.txt"
    with started(command, directory, log, {**where, **(env or {})}) as process:
        running = Server(f"http://{host}:{port}", process, log)
        wait_until_up(running)
        yield running


@contextmanager
def started(
    command: Sequence[str | Path] | None, directory: Path, log: Path, env: Mapping[str, str]
) -> Iterator[Process]:
    """A command in a process group of its own, of which nothing is left at the end."""
    with open(log, "wb") as output:
        process: Process = (
            ForkedAgentapp("serve", directory=directory, log=log, env=clean_env(**env))
            if command is None
            else subprocess.Popen(
                [str(part) for part in command],
                cwd=directory,
                env=clean_env(**env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
    try:
        yield process
    finally:
        # How a server stops is asked where it is told to, by `Server.stop`. Here nobody waits for that.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_until_up(running: Server) -> None:
    end = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < end:
        if running.process.poll() is not None:
            raise AssertionError(f"exit code {running.process.returncode}: {running.output()}")
        with suppress(OSError, HTTPException), urlopen(f"{running.url}/livez", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"no answer after {TIMEOUT_SECONDS} s: {running.output()}")


def run(
    *command: str | Path, directory: Path, env: Mapping[str, str] | None = None, stdin: bytes = b""
) -> subprocess.CompletedProcess[str]:
    """A command that is expected to end by itself."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=directory,
        env=clean_env(**(env or {})),
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def clean_env(**variables: str) -> dict[str, str]:
    """This process's environment without any setting of ours that happens to be in it."""
    ours = ("AGENTAPP_", "ANTHROPIC_", "GUNICORN_")
    return {k: v for k, v in os.environ.items() if not k.startswith(ours)} | variables


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
