"""Where the server listens, and with how many workers and threads."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from agentapp.config import Settings
from agentapp.errors import StartError
from agentapp.parsing import (
    ADDRESSES,
    address,
    flag,
    long_seconds,
    required_setting,
    same_setting,
    setting,
    settings_of,
    whole,
)

# By default a stopping server lets every turn end: it waits this much longer than the longest may take.
GRACE_SECONDS_BEYOND_A_TURN = 15

# A worker's connections besides one for each thread: idle ones, and requests that are not whole yet.
WAITING_CONNECTIONS = 3000

# Not a setting: by this `agentapp serve` tells the process that it becomes who has started it.
STARTED_BY_SERVE = "AGENTAPP_STARTED_BY_SERVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What gunicorn is started with."""

    bind: str = setting("AGENTAPP_BIND", "127.0.0.1:8000", address, "where to listen")
    workers: int = setting("AGENTAPP_WORKERS", "2", whole(1, 64), "processes")
    threads: int = same_setting(Settings, "threads")
    pin_workers: bool = setting(
        "AGENTAPP_PIN_WORKERS",
        "1",
        flag,
        "a worker's threads stay on one processor, if each processor gets as many workers as the others",
    )
    grace: float = required_setting(
        "AGENTAPP_GRACE",
        "",
        long_seconds,
        "seconds a stopping server takes at most; turns that still run shortly before are interrupted",
        default_in_words=f"turn deadline + {GRACE_SECONDS_BEYOND_A_TURN}",
    )

    def environ(self) -> dict[str, str]:
        """The variables from which another process loads the same. No option changes the grace."""
        declared = settings_of(ServerOptions)
        return {declared[name].variable: str(getattr(self, name)) for name in ("bind", "workers", "threads")}


def open_files_of(threads: int) -> int:
    """How many a worker needs: besides its connection, a thread may have one to the database, which is up to
    three files.
    """
    return threads + WAITING_CONNECTIONS + 4 * threads + 200


def load(
    environ: Mapping[str, str] | None = None, options: Mapping[str, str | None] | None = None
) -> ServerOptions:
    """From the environment, or from command-line options, which come first and are named in errors."""
    variables, given = os.environ if environ is None else environ, options or {}
    declared = settings_of(ServerOptions)

    def read(name: str) -> Any:
        value, option = given.get(name), f"--{name}"
        if value is None:
            return declared[name].read(variables)
        # A blank variable counts as not set, but a blank option is refused.
        return replace(declared[name], variable=option).read({option: value or "''"})

    turn_deadline = settings_of(Settings)["turn_deadline"].read(variables)
    return ServerOptions(
        bind=read("bind"),
        workers=read("workers"),
        threads=read("threads"),
        pin_workers=read("pin_workers"),
        grace=declared["grace"].read(
            variables, default=str(ceil(turn_deadline) + GRACE_SECONDS_BEYOND_A_TURN)
        ),
    )


def check_free(bind: str) -> None:
    """A `StartError` in one line if the address cannot be listened on right now."""
    if bind.startswith("unix:"):
        _check_free_path(bind.removeprefix("unix:"))
        return
    host, port = host_and_port(bind)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            probe.listen(1)
    except OSError as exc:
        raise StartError(f"cannot listen on {bind}: {exc.strerror or exc}") from exc


def url_of(bind: str, *, https: bool, hosts: Sequence[str] = ()) -> str:
    """What to type into a browser. With ``hosts``, which are the only names the server answers to, the first
    of them. For an address that means every address, the name of this machine.

    TLS is spoken by a proxy in front, whose port is not the one of ``bind``.
    """
    scheme = "https" if https else "http"
    if https and hosts and ADDRESSES not in hosts:  # else nobody has said by which name it is reached
        return f"https://[{hosts[0]}]" if ":" in hosts[0] else f"https://{hosts[0]}"
    if bind.startswith("unix:"):
        return f"{scheme}://{hosts[0] if hosts else 'localhost'}"
    host, port = host_and_port(bind)
    if hosts and host not in hosts:
        host = hosts[0]
    elif host in ("0.0.0.0", "::"):  # noqa: S104 - only compared with
        host = socket.gethostname()
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def host_and_port(bind: str) -> tuple[str, int]:
    host, _, port = bind.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


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
        pass  # left by a server that is gone; gunicorn replaces it
    except OSError as exc:
        raise StartError(f"cannot listen on {path}: {exc.strerror}") from exc
    else:
        raise StartError(f"cannot listen on {path}: another server does")
