"""How gunicorn serves agentapp, started by `agentapp serve` or as plain `gunicorn wsgi:app`."""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from contextlib import suppress
from importlib import import_module, metadata
from itertools import chain
from math import ceil
from typing import Any

from agentapp.config import PROVIDERS
from agentapp.errors import AgentappError
from agentapp.server import options
from agentapp.server.worker import TurnWorker

try:
    _options = options.load()
except AgentappError as exc:
    print(f"agentapp: {exc}", file=sys.stderr)
    sys.exit(2)


# The libraries every worker needs. The master imports them: then a worker that takes a dead one's place is at
# work at once, and all of them share that memory. None of them opens anything when it is imported.
_LIBRARIES = (
    "argon2",
    "flask",
    "flask_login",
    "flask_wtf",
    "markdown_it",
    "nh3",
    "pygments",
    "sqlalchemy.orm",
)
# Those that are needed only if a variable is set.
_IF_SET = {
    "AGENTAPP_DATABASE_URL": ("psycopg",),
    **{provider.key_variable: provider.libraries for provider in PROVIDERS if provider.key_variable},
}


bind = [_options.bind]
worker_class = TurnWorker
workers = _options.workers
# A thread is busy for as long as it streams an answer. One that waits costs next to nothing, and
# too few of them would let some people's slow answers keep everybody else's pages waiting.
threads = _options.threads
worker_connections = threads + 1000  # the rest may be idle keep-alive connections

# Only a worker whose main loop hangs is killed after this; how long an answer may take is the turn's
# own deadline. It must also be enough to import everything on a slow machine.
timeout = 60
# Before it is over, the turns that still run are interrupted, and their readers are told.
graceful_timeout = ceil(_options.grace)
keepalive = 5

preload_app = False  # after SIGHUP workers get the new code, and nothing is opened before the fork
# Heartbeats go to a file: on a disk that stalls they would be late, and the worker killed for it.
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None  # noqa: S108
# All masters of one user would share one socket, and commands would reach the wrong one.
control_socket_disable = True

# Whom to believe about a forwarded address or scheme is decided in one place, the application,
# by AGENTAPP_TRUSTED_PROXIES. An empty list alone would still trust whoever comes by a Unix socket.
forwarded_allow_ips = ""
secure_scheme_headers: dict[str, str] = {}
forwarder_headers = ""

proc_name = "agentapp"
errorlog = "-"
loglevel = "warning"
accesslog = None


def on_starting(arbiter: Any) -> None:
    """Try once what every worker will do, so that a mistake is told once and nothing is respawned.

    It is tried in a child, so that the master itself opens nothing and imports nothing that its
    workers would inherit, except for the libraries.
    """
    for name in _libraries():
        with suppress(ImportError):  # whoever needs it will say so
            import_module(name)
    arbiter.libraries = _versions()
    gc.freeze()  # what is never touched again is never copied
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        code = _rehearse(arbiter)
        sys.stderr.flush()
        os._exit(code)
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except KeyboardInterrupt:
        code = 130
    if code:
        sys.exit(code)


def on_reload(arbiter: Any) -> None:
    """New workers get the application as it is now, but the libraries that the master has."""
    found = _versions()
    if changed := sorted(name for name in found if found[name] != arbiter.libraries.get(name)):
        print(
            f"agentapp: other versions are installed now of {', '.join(changed)}: restart to use them",
            file=sys.stderr,
            flush=True,
        )


def post_fork(arbiter: Any, worker: Any) -> None:
    """Forget what reading this file imported: after SIGHUP a worker must not mix old modules with new.
    And take turns quickly.
    """
    for name in [name for name in sys.modules if name.partition(".")[0] == "agentapp"]:
        del sys.modules[name]
    # With many threads at work, whoever came back from the database or from a hash waited up to 5 ms for
    # each of them. In shorter turns the slowest answers came twice as fast, and nothing got slower.
    sys.setswitchinterval(0.001)


def post_worker_init(worker: Any) -> None:
    """A worker that comes later, after a crash or SIGHUP, may find another schema than the first did."""
    from agentapp.errors import StartError, StorageUnavailable

    worker.wsgi.extensions["agentapp"].start(threads=worker.cfg.threads)
    try:
        _require_schema(worker.wsgi)
    except StorageUnavailable:
        pass  # it may come back, and /readyz tells
    except StartError as exc:
        print(f"agentapp: {exc}", file=sys.stderr, flush=True)
        sys.exit(3)  # gunicorn's WORKER_BOOT_ERROR: the whole server stops


def worker_int(worker: Any) -> None:
    """The server is to end at once: what still runs is written down as interrupted."""
    worker.interrupt()


def _libraries() -> list[str]:
    also = [names for variable, names in _IF_SET.items() if os.environ.get(variable)]
    return [*_LIBRARIES, *chain.from_iterable(also)]


def _versions() -> dict[str, str]:
    """Of all that is installed besides agentapp, which every worker reads anew."""
    return {found.name: found.version for found in metadata.distributions() if found.name != "agentapp"}


def _rehearse(arbiter: Any) -> int:
    from agentapp import config
    from agentapp.errors import StorageUnavailable
    from agentapp.storage import schema

    try:
        for address in arbiter.cfg.bind:
            schema.engine_for(config.load(bind=address).database_url)
        _require_schema(arbiter.app.wsgi())
    except StorageUnavailable as exc:
        print(f"agentapp: starting anyway: {exc}", file=sys.stderr)
    except AgentappError as exc:
        print(f"agentapp: {exc}", file=sys.stderr)
        return 2
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else 1  # wsgi.py has said why
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _require_schema(app: Any) -> None:
    from agentapp.storage import schema

    schema.require_current(app.extensions["agentapp"].settings.database_url)
