"""The command `agentapp` in a fork of a process that has imported the libraries already.

A server that starts from nothing spends most of its first seconds with imports. Here they are done once for
all servers of a test process. From there on it is the same: the command, then gunicorn with our
gunicorn.conf.py, which imports all of agentapp anew. Only passwords are hashed with less effort.
`tests/server/test_start.py` starts the commands themselves, and so does bench/.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

LIBRARIES = (
    "alembic.command",
    "anthropic",
    "argon2",
    "click",
    "flask",
    "flask_login",
    "flask_wtf",
    "gunicorn.app.wsgiapp",
    "gunicorn.workers.gthread",
    "markdown_it",
    "nh3",
    "psycopg",
    "pygments.formatters.html",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.orm",
)
POLL_SECONDS = 0.01

# Of Linux.
NEW_MOUNTS, NEW_PIDS = 0x00020000, 0x20000000
SHARED_WITH_NOBODY = 0x4000 | 0x40000
SIGNAL_AT_PARENTS_DEATH = 1


class ForkedAgentapp:
    """A running `agentapp` with these arguments, as the part of `subprocess.Popen` that tests use.

    ``as_host``: it is the first process of a PID namespace, and what is started is the parent of that.
    """

    def __init__(
        self, *arguments: str, directory: Path, log: Path, env: Mapping[str, str], as_host: bool = False
    ) -> None:
        self._parent = _parent()
        self._arguments = arguments
        self.returncode: int | None = None
        self.pid: int = self._parent.ask([str(directory), str(log), dict(env), arguments, as_host])

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._parent.ask(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(["agentapp", *self._arguments], timeout or 0)
            time.sleep(POLL_SECONDS)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)


class Parent:
    """The process that all are forked from. It is asked to start one, or how one ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiled = tempfile.mkdtemp(prefix="agentapp-compiled-")
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, self._compiled],
            cwd=self._compiled,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, question: Any) -> Any:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with self._lock:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()
        shutil.rmtree(self._compiled, ignore_errors=True)


@functools.cache
def _parent() -> Parent:
    made = Parent()
    atexit.register(made.close)
    return made


def main(compiled: str) -> None:
    for name in LIBRARIES:
        import_module(name)
    make_passwords_cheap()
    gc.freeze()
    # What workers import one after the other is compiled once, whatever the environment says.
    sys.pycache_prefix, sys.dont_write_bytecode = compiled, False
    for line in sys.stdin:
        question = json.loads(line)
        if isinstance(question, int):
            ended, status = os.waitpid(question, os.WNOHANG)
            print(json.dumps(os.waitstatus_to_exitcode(status) if ended else None), flush=True)
            continue
        child = os.fork()
        if child == 0:
            run(*question)
        print(child, flush=True)


def make_passwords_cheap() -> None:
    """The same algorithm with the smallest parameters, as `add_people` has it: hundreds of users sign in."""
    import argon2

    hasher = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
    argon2.PasswordHasher = lambda **_: hasher  # type: ignore[assignment, misc]


def run(directory: str, log: str, env: dict[str, str], arguments: list[str], as_host: bool) -> NoReturn:
    os.setsid()
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(env)
    sys.path[:0] = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, standard in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
        os.dup2(source, standard)
    os.closerange(3, 100)
    if as_host:
        enter_own_namespaces()
    os.execve = functools.partial(become_gunicorn, directory)
    code = 1
    try:
        from agentapp.cli import main as agentapp

        agentapp(arguments, prog_name="agentapp")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def enter_own_namespaces() -> None:
    """As `unshare --pid --fork --mount-proc --kill-child` does. Only the child returns; the parent waits for
    it and ends as it did.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS | NEW_PIDS):
        raise OSError(ctypes.get_errno(), "unshare")
    child = os.fork()
    if child:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    libc.prctl(SIGNAL_AT_PARENTS_DEATH, signal.SIGKILL)
    libc.mount(b"none", b"/", None, SHARED_WITH_NOBODY, None)
    for kind, place in ((b"proc", b"/proc"), (b"tmpfs", b"/dev/shm")):
        if libc.mount(kind, place, kind, 0, None):
            raise OSError(ctypes.get_errno(), f"mount {place.decode()}")


def become_gunicorn(directory: str, _path: str, command: list[str], env: dict[str, str]) -> None:
    """In place of `python -m gunicorn`, which would import everything once more."""
    os.environ.clear()
    os.environ.update(env)
    # Where it works is what it found when it was imported.
    sys.argv = ["gunicorn", "--chdir", directory, *command[3:]]
    for name in [name for name in sys.modules if name.partition(".")[0] == "agentapp"]:
        del sys.modules[name]
    from gunicorn.app import wsgiapp

    wsgiapp.run()


if __name__ == "__main__":
    main(sys.argv[1])
