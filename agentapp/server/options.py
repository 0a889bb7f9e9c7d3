"""Where the server listens, and with how many workers and threads."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from agentapp.errors import StartError
from agentapp.reading import Reader, long_seconds, seconds, whole

# By default a stopping server lets every turn end: this much longer than the longest may take.
GRACE_BEYOND = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    bind: str
    workers: int
    threads: int
    grace: float

    def environ(self) -> dict[str, str]:
        """The variables from which `load` makes the same again, in another process."""
        return {
            "AGENTAPP_BIND": self.bind,
            "AGENTAPP_WORKERS": str(self.workers),
            "AGENTAPP_THREADS": str(self.threads),
        }


def load(environ: Mapping[str, str] | None = None, options: Mapping[str, str | None] | None = None) -> Listen:
    """From the environment, or from command-line options, which come first and are named in errors."""
    env, given = os.environ if environ is None else environ, options or {}

    def read(option: str, default: str) -> tuple[Reader, str, str]:
        if (value := given.get(option)) is not None:
            # A blank variable counts as unset, a blank option does not.
            return Reader({f"--{option}": value or "''"}), f"--{option}", default
        return Reader(env), f"AGENTAPP_{option.upper()}", default

    def number(option: str, default: str, most: int) -> int:
        reader, name, fallback = read(option, default)
        return reader.parsed(name, fallback, whole(1, most))

    reader, name, fallback = read("bind", "127.0.0.1:8000")
    turn = Reader(env).parsed("AGENTAPP_TURN_DEADLINE", "120", seconds)
    return Listen(
        bind=reader.parsed(name, fallback, _address),
        workers=number("workers", "2", 64),
        threads=number("threads", "512", 4096),
        grace=Reader(env).parsed("AGENTAPP_GRACE", str(ceil(turn) + GRACE_BEYOND), long_seconds),
    )


def check_free(bind: str) -> None:
    """A `StartError` in one line if the address cannot be listened on right now."""
    if bind.startswith("unix:"):
        _check_free_path(bind.removeprefix("unix:"))
        return
    host, port = split(bind)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as exc:
        raise StartError(f"cannot listen on {bind}: {exc.strerror or exc}") from exc


def url_of(bind: str, *, https: bool) -> str:
    """What to type into a browser. Where that is anybody's guess, this machine's name."""
    scheme = "https" if https else "http"
    if bind.startswith("unix:"):
        return f"{scheme}://localhost"
    host, port = split(bind)
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared with, not listened on
        host = socket.gethostname()
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def split(bind: str) -> tuple[str, int]:
    host, _, port = bind.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _address(value: str) -> str:
    if value.startswith("unix:/"):
        return value
    host, _, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not host or (":" in host) != bracketed or any(c.isspace() or c in ",/" for c in host):
        raise ValueError("must look like 127.0.0.1:8000, [::1]:8000 or unix:/run/agentapp.sock")
    try:
        whole(1, 65535)(port)
    except ValueError:
        raise ValueError("must end in a port from 1 to 65535") from None
    return value


def _check_free_path(path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise StartError(f"cannot listen on {path}: it is there and is not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.connect(path)
    except FileNotFoundError:
        if not os.access(os.path.dirname(path), os.W_OK | os.X_OK):
            raise StartError(f"cannot listen on {path}: its directory cannot be written to") from None
    except ConnectionRefusedError:
        pass  # left by a server that is gone; gunicorn takes its place
    except OSError as exc:
        raise StartError(f"cannot listen on {path}: {exc.strerror}") from exc
    else:
        raise StartError(f"cannot listen on {path}: another server does")
