"""Several hosts on this machine, behind nginx: each is `agentapp serve` in a PID namespace of its own, so
that none sees the processes of another. They share a database, a secret and perhaps a Redis; nothing else.
"""

from __future__ import annotations

import functools
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.support.forked_agentapp import ForkedAgentapp
from tests.support.messages_api import MessagesApi
from tests.support.nginx import NGINX, Nginx, nginx
from tests.support.server import SCRIPTS, TIMEOUT_SECONDS, Process, clean_env
from tests.support.server_users import OFF

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
OWN_CLOCK = Path(__file__).parent / "own_clock"
SECRET = "the secret that all hosts have in common"
UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "--")
# What faketime leaves in /dev/shm goes with the host.
OWN_SHARED_MEMORY = ("sh", "-c", 'mount -t tmpfs none /dev/shm && exec "$@"', "sh")
# The system takes none of these for a connection of its own, while a host that is down does not listen.
PORTS = range(20_000, 32_000)


@functools.cache
def why_no_hosts() -> str | None:
    """None where hosts can be started."""
    if shutil.which("unshare") is None:
        return "no unshare on this machine"
    probe = [*UNSHARE, "mount", "-t", "tmpfs", "none", "/dev/shm"]
    tried = subprocess.run(probe, capture_output=True, text=True, check=False)
    return f"no PID namespaces here: {tried.stderr.strip()}" if tried.returncode else None


needs_hosts = pytest.mark.skipif(
    NGINX is None or why_no_hosts() is not None,
    reason=(NGINX is None and "no nginx on this machine (Debian: nginx-light)") or why_no_hosts() or "",
)
needs_clocks = pytest.mark.skipif(not FAKETIME.exists(), reason="no libfaketime here (Debian: faketime)")


class Host:
    """One `agentapp serve`. ``clock`` is by how many seconds its wall clock is ahead.

    Without a clock of its own and without a command it starts without the time that imports take.
    """

    def __init__(
        self,
        directory: Path,
        env: Mapping[str, str],
        *,
        workers: int = 2,
        clock: float = 0,
        command: Sequence[str | Path] | None = None,
    ) -> None:
        directory.mkdir(exist_ok=True)
        self.directory, self.port, self.clock = directory, port_for_a_host(), clock
        self.log = directory / "output.txt"
        self.log.touch()
        self._workers, self._command = workers, command
        self._env = {**env, "AGENTAPP_BIND": self.address, "AGENTAPP_WORKERS": str(workers)}
        self._process: Process | None = None
        self._frozen: list[int] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of gunicorn's master, as it is called outside: the first process of its namespace."""
        found = _children(self.process.pid)
        if not found:
            raise AssertionError(f"the host does not run: {self.output()[-3000:]}")
        return found[0]

    @property
    def process(self) -> Process:
        if self._process is None:
            raise AssertionError("the host was not started")
        return self._process

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def workers(self) -> list[int]:
        return _children(self.pid)

    def has(self, worker: str) -> bool:
        """Whether a worker of that name, as turns have it, is one of this host's."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        machine = f"{boot} {os.readlink(f'/proc/{self.pid}/ns/pid')}"
        return worker.startswith(hashlib.sha256(machine.encode()).hexdigest()[:16])

    def start(self, *, wait: bool = True) -> None:
        assert not self.is_running, "the host runs already"
        self._process = self._started()
        if wait:
            self.wait_until_up()

    def wait_until_up(self, path: str = "/livez") -> None:
        """Until that page says 200 and all workers are there."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < end:
            assert self.is_running, f"exit code {self.process.returncode}: {self.output()[-3000:]}"
            with suppress(OSError, HTTPException), urlopen(f"{self.url}{path}", timeout=5) as answer:
                if answer.status == 200 and len(self.workers()) == self._workers:
                    return
            time.sleep(0.02)
        raise AssertionError(f"no answer after {TIMEOUT_SECONDS} s: {self.output()[-3000:]}")

    def drain(self) -> None:
        """Tell it to end, and do not wait: it takes nothing new and brings to an end what it has."""
        os.kill(self.pid, signal.SIGTERM)

    def wait_until_ended(self, seconds: float = TIMEOUT_SECONDS) -> int:
        return self.process.wait(seconds)

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """Its exit code."""
        os.kill(self.pid, sig)
        return self.wait_until_ended()

    def end(self) -> None:
        """Nothing is left of it, whatever state it is in."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill_worker(self, pid: int | None = None) -> int:
        killed = pid or random.choice(self.workers())
        os.kill(killed, signal.SIGKILL)
        return killed

    def freeze(self) -> None:
        """As if the machine hung: it says nothing any more and closes nothing. The system still takes
        connections for it.
        """
        # First the master, so that no worker is started after this look.
        for pid in (self.pid, *self.workers()):
            os.kill(pid, signal.SIGSTOP)
            self._frozen.append(pid)

    def thaw(self) -> None:
        frozen, self._frozen = self._frozen, []
        for pid in reversed(frozen):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _started(self) -> Process:
        if self._command is None and not self.clock:
            where = {"directory": self.directory, "log": self.log}
            return ForkedAgentapp("serve", **where, env=clean_env(**self._env), as_host=True)
        preload = [
            "env",
            f"LD_PRELOAD={FAKETIME}",
            f"FAKETIME={self.clock:+g}s",
            "FAKETIME_DONT_FAKE_MONOTONIC=1",
            f"PYTHONPATH={OWN_CLOCK}",
        ]
        serve = self._command or (SCRIPTS / "agentapp", "serve")
        command = [*UNSHARE, *OWN_SHARED_MEMORY, *(preload if self.clock else ()), *map(str, serve)]
        with open(self.log, "ab") as output:
            return subprocess.Popen(
                command,
                cwd=self.directory,
                env=clean_env(**self._env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


class Hosts(list[Host]):
    """All of them, and nginx in front."""

    proxy: Nginx

    @property
    def url(self) -> str:
        """Whichever host nginx chooses."""
        return self.proxy.url

    def output(self) -> str:
        return "".join(host.output() for host in self)

    def children(self) -> list[int]:
        return [pid for host in self if host.is_running for pid in host.workers()]


@contextmanager
def hosts(
    directory: Path,
    database_url: str,
    *,
    clocks: Sequence[float] = (0, 0),
    api: MessagesApi | None = None,
    redis_url: str | None = None,
    workers: int = 2,
    threads: int = 128,
    command: Sequence[str | Path] | None = None,
    changes_of_nginx: Mapping[str, str] | None = None,
    **settings: object,
) -> Iterator[Hosts]:
    """One for each clock, on this database, which has all tables. All of them answer. They ask this model, or
    the demo. Limits are off but for what ``settings`` say: variables without AGENTAPP_, in small letters.
    """
    env = OFF | {
        "AGENTAPP_DATABASE_URL": database_url,
        "AGENTAPP_SECRET_KEY": SECRET,
        "AGENTAPP_TRUSTED_PROXIES": "1",
        "AGENTAPP_THREADS": str(threads),
        "AGENTAPP_PIN_WORKERS": "0",
        "AGENTAPP_LOG_LEVEL": "warning",
        "AGENTAPP_DEMO_DELAY": "0",
    }
    if api is not None:
        env |= {"ANTHROPIC_API_KEY": "sk-test-key", "ANTHROPIC_BASE_URL": api.url}
    if redis_url is not None:
        env["AGENTAPP_REDIS_URL"] = redis_url
    env |= {f"AGENTAPP_{name.upper()}": str(value) for name, value in settings.items()}
    with ExitStack() as held:
        made = Hosts()
        for number, clock in enumerate(clocks):
            home = directory / f"host-{'abcdefgh'[number]}"
            made.append(Host(home, env, workers=workers, clock=clock, command=command))
            held.callback(made[-1].end)
            made[-1].start(wait=False)
        for host in made:
            host.wait_until_up()
        addresses = [host.address for host in made]
        made.proxy = held.enter_context(
            nginx(directory, port_for_a_host(), addresses, changes=dict(changes_of_nginx or {}))
        )
        yield made


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def port_for_a_host() -> int:
    while True:
        port = random.choice(PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port
