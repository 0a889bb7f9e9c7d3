"""How gunicorn serves agentapp, started by `agentapp serve` or as plain `gunicorn wsgi:app`."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module, metadata
from itertools import chain, count
from math import ceil
from typing import Any

from agentapp.config import PROVIDERS
from agentapp.errors import AgentappError, SettingError, StartError
from agentapp.guardrails.pages import PAGES_WORKER
from agentapp.guardrails.seats import clear_row, make_memory
from agentapp.instance import PRIVATE_UMASK
from agentapp.logs import escaped
from agentapp.processors import processors_of
from agentapp.server import metrics_directory, options
from agentapp.server.logger import OneLineLogger
from agentapp.server.memory import limit_memory
from agentapp.server.worker import TurnWorker
from agentapp.storage.write_token import make_pipe
from agentapp.telemetry import log_options
from agentapp.telemetry.log_setup import set_up

limit_memory(os.environ)
os.umask(PRIVATE_UMASK)  # not gunicorn's own `umask`, which is for its socket: a proxy may be another user

try:
    _options, _log = options.load(), log_options.load()
except AgentappError as exc:
    print(f"agentapp: {escaped(str(exc))}", file=sys.stderr)
    sys.exit(2)


# Whether `agentapp serve` has become this process and left it to bring the database up to date.
_is_serve = os.environ.pop(options.STARTED_BY_SERVE, None) is not None

# What every worker needs is imported by the master: once for all, so that a new worker can start work at once
# and all workers share that memory. Nothing of it opens anything or starts a thread when it is imported.
# First what is needed to bring the database up to date, which goes on while the rest is imported.
_FOR_THE_DATABASE = (
    "argon2",
    "sqlalchemy.dialects.postgresql",
    "sqlalchemy.dialects.sqlite",
    "sqlalchemy.orm",
)
_LIBRARIES = (
    "flask",
    "flask_login",
    "flask_wtf",
    "markdown_it",
    "nh3",
    "prometheus_client",
    "pydantic.main",
    "pygments.formatters.html",
    "pygments.lexers.python",
    "pygments.styles.default",
    "structlog.dev",
    "structlog.processors",
)
# Libraries that are needed only if an environment variable is set.
_LIBRARIES_IF_SET = {
    "AGENTAPP_DATABASE_URL": ("psycopg",),
    "OTEL_EXPORTER_OTLP_ENDPOINT": ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http"),
    **{provider.key_variable: provider.libraries for provider in PROVIDERS if provider.key_variable},
}
# Our own code comes last. It is only for workers that start before the first SIGHUP: see `post_fork`.
_OURS_FOR_THE_DATABASE = ("agentapp.storage.accounts", "agentapp.storage.schema")
_OURS = ("agentapp.app", "agentapp.web.warm_up", "agentapp.agents.shipped")


# A turn makes thousands of objects, and hardly any of them refer to each other in a circle. To look for such
# after each 700 new ones, as Python does, takes a twentieth of a turn's time.
GARBAGE_THRESHOLDS = (20_000, 20, 20)
PR_SET_PDEATHSIG = 1

bind = [_options.bind]
worker_class = TurnWorker
workers = _options.workers
# A thread is busy for as long as it streams an answer. A thread that waits costs next to nothing. With too
# few threads, the slow answers of some people would keep everybody else's pages waiting.
threads = _options.threads
# The rest wait for their client, without a thread. If there are more, those with the least to lose are
# closed.
worker_connections = threads + options.WAITING_CONNECTIONS

# In seconds. Only a worker whose main loop hangs is killed after this; how long an answer may take is decided
# by the turn's own deadline. It must also be long enough to import everything on a slow machine.
timeout = 60
# Before it is over, the turns that still run are interrupted and their readers are told.
graceful_timeout = ceil(_options.grace)

preload_app = False  # so that workers get the new code after SIGHUP, and nothing is opened before the fork
# Each worker tells gunicorn through a file that it is alive. On a disk that stalls this would come too late,
# and gunicorn would kill the worker.
worker_tmp_dir = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None  # noqa: S108
# All gunicorn masters of one user would share one control socket, and commands would reach the wrong one.
control_socket_disable = True

# The application alone decides which forwarded addresses and schemes to trust, by AGENTAPP_TRUSTED_PROXIES.
# An empty list of addresses is not enough here: gunicorn would still trust any client on a Unix socket.
forwarded_allow_ips = ""
secure_scheme_headers: dict[str, str] = {}
forwarder_headers = ""

proc_name = "agentapp"
logger_class = OneLineLogger
errorlog = "-"
# gunicorn tells of everyday things, such as a worker that starts, only to who wants to know everything.
loglevel = "info" if _log.level == "debug" else _log.level_of_libraries
accesslog = None


def on_starting(arbiter: Any) -> None:
    """Try once what every worker will do, so that a mistake is reported once and no worker starts in vain.

    Whatever opens something is done in child processes, so that the workers inherit nothing that is open.
    The team and wsgi.py may open what they like when they are imported: the master does not import them.
    """
    if arbiter.cfg.is_ssl:
        print("agentapp: TLS is for a proxy in front, and not for --certfile", file=sys.stderr)
        sys.exit(2)
    _allow_open_files(options.open_files_of(threads))
    # Until gunicorn sees to its signals: the database may be waited for. The first process of a container
    # would not be ended by SIGTERM at all.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, _end_now)
    gc.disable()  # hardly anything that is imported is garbage: to look for it takes a tenth of the time
    arbiter.has_reloaded = False
    _import([*_FOR_THE_DATABASE, *_OURS_FOR_THE_DATABASE])
    preparing = _forked(_prepare) if _is_serve else None
    _import([*_libraries(), *_ours()])
    arbiter.seats = make_memory(
        rows=max(16, 4 * arbiter.cfg.workers), width=arbiter.cfg.threads + PAGES_WORKER
    )
    arbiter.write_token = make_pipe()
    arbiter.metrics = metrics_directory.make()
    gc.freeze()  # the collector does not touch these objects again, so the workers go on sharing their memory
    if preparing:
        _wait_for(preparing)
    rehearsing = _forked(lambda: _rehearse(arbiter))
    arbiter.libraries = _versions()
    _wait_for(rehearsing)
    gc.enable()


def on_reload(arbiter: Any) -> None:
    """New workers get the application's code as it is now, but the libraries that the master has imported."""
    arbiter.has_reloaded = True
    installed = _versions()
    if changed := sorted(name for name in installed if installed[name] != arbiter.libraries.get(name)):
        print(
            f"agentapp: other versions are installed now of {', '.join(changed)}: restart to use them",
            file=sys.stderr,
            flush=True,
        )


def pre_fork(arbiter: Any, worker: Any) -> None:
    """Give the worker a row of the seats that no other worker has."""
    taken = {each.seats[1] for each in arbiter.WORKERS.values()}
    row = next(row for row in count() if row not in taken)
    # A master that was started by the version before has none, and goes on after SIGHUP.
    worker.seats, worker.write_token = (arbiter.seats, row), getattr(arbiter, "write_token", None)
    worker.metrics = getattr(arbiter, "metrics", None)
    worker.processors = processors_of(row, arbiter.cfg.workers) if _options.pin_workers else None


def child_exit(arbiter: Any, worker: Any) -> None:
    """A worker has ended, perhaps killed: its seats are free again, and its gauges are gone."""
    clear_row(*worker.seats)
    if worker.metrics is not None:
        metrics_directory.forget_gauges(worker.metrics, worker.seats[1])


def on_exit(arbiter: Any) -> None:
    if getattr(arbiter, "metrics", None) is not None:
        metrics_directory.delete(arbiter.metrics)


def post_fork(arbiter: Any, worker: Any) -> None:
    """After SIGHUP a worker forgets our modules that the master has imported, and imports them as they are.

    Until then, one that takes the place of a worker that has crashed runs the same code as the others.
    """
    if arbiter.has_reloaded:
        for name in [name for name in sys.modules if name.partition(".")[0] == "agentapp"]:
            del sys.modules[name]
    gc.disable()  # until all is imported


def post_worker_init(worker: Any) -> None:
    """Start the parts of the application, check the schema once more, and be ready for the first request.

    A worker that is started later, after a crash or SIGHUP, may find another schema than the first ones did.
    """
    from agentapp.errors import StartError, StorageUnavailable
    from agentapp.web.warm_up import warm_up

    app = worker.wsgi.extensions["agentapp"]
    app.start(worker.cfg.threads, worker.seats, worker.write_token, worker.metrics)
    try:
        _require_schema(worker.wsgi)
    except StorageUnavailable:
        pass  # the database may come back; until then /readyz answers 503
    except StartError as exc:
        print(f"agentapp: {escaped(str(exc))}", file=sys.stderr, flush=True)
        sys.exit(3)  # gunicorn's WORKER_BOOT_ERROR: the whole server stops
    warm_up(worker.wsgi)
    gc.collect()
    gc.freeze()  # what is there now stays: the collector need not look at it again and again
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()


def worker_int(worker: Any) -> None:
    """The server is to end at once. The turns that still run are stored as interrupted."""
    worker.interrupt()


def _allow_open_files(needed: int) -> None:
    """The usual limit of 1,024 open files is less than one worker needs. If more are not allowed, new
    connections take the place of old ones that wait.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _import(names: Iterable[str]) -> None:
    for name in names:
        with suppress(Exception):  # the code that needs it will report it, in the rehearsal
            import_module(name)


def _libraries() -> list[str]:
    needed = [names for variable, names in _LIBRARIES_IF_SET.items() if os.environ.get(variable)]
    return [*_FOR_THE_DATABASE, *_LIBRARIES, *chain.from_iterable(needed)]


def _ours() -> list[str]:
    has_key = [each for each in PROVIDERS if not each.key_variable or os.environ.get(each.key_variable)]
    return [*_OURS, *(f"agentapp.agents.providers.{each.name}" for each in has_key)]


def _versions() -> dict[str, str]:
    """The versions of all installed packages but agentapp itself, whose code every worker imports anew."""
    return {found.name: found.version for found in metadata.distributions() if found.name != "agentapp"}


def _forked(act: Callable[[], None]) -> int:
    """A child process that does this and ends. Returns its id."""
    master, child = os.getpid(), os.fork()
    if child:
        return child
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with(master)
    code = _exit_code_of(act)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_now(signum: int, frame: object) -> None:
    sys.exit(130 if signum == signal.SIGINT else 0)


def _end_with(master: int) -> None:
    """Whatever ends the master: a child may wait for the database, and nobody would wait for the child."""
    with suppress(AttributeError):  # it is Linux's
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != master:
        os._exit(0)


def _exit_code_of(act: Callable[[], None]) -> int:
    try:
        act()
    except AgentappError as exc:
        print(f"agentapp: {escaped(str(exc))}", file=sys.stderr)
        return 2 if isinstance(exc, SettingError | StartError) else 1
    except SystemExit as exc:
        return exc.code if isinstance(exc.code, int) else 1  # wsgi.py has said why
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _wait_for(child: int) -> None:
    """The server ends with it if it has failed. It has said why."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        sys.exit(code)


def _prepare() -> None:
    from agentapp.cli.serve import prepare

    set_up()  # so that what is logged meanwhile looks as in any other command
    prepare()


def _rehearse(arbiter: Any) -> None:
    """Load the application and check the schema, as a worker will."""
    from agentapp import config
    from agentapp.errors import StorageUnavailable
    from agentapp.storage import schema

    try:
        for address in arbiter.cfg.bind:
            schema.engine_for(config.load(bind=address).database_url)
        app = arbiter.app.wsgi()
        _require_schema(app)
        _warn_of_connections(app.extensions["agentapp"].db, arbiter.cfg.workers)
    except StorageUnavailable as exc:
        print(f"agentapp: starting anyway: {escaped(str(exc))}", file=sys.stderr)


def _warn_of_connections(db: Any, workers: int) -> None:
    """Once, for all workers of all hosts. What a pooler lets in cannot be seen from here."""
    from agentapp.storage.connection_budget import find_budget
    from agentapp.storage.engines import pool_size

    if db.connector is None:
        return
    found = find_budget(db.engine, socket.gethostname(), workers, pool_size(db.engine))
    if not db.connector.is_pooled and not found.fits:
        text = f"{found}: lower AGENTAPP_DB_POOL, raise max_connections, or use PgBouncer"
        print(f"agentapp: too few connections: {text}", file=sys.stderr, flush=True)


def _require_schema(app: Any) -> None:
    from agentapp.storage import schema

    schema.require_current(app.extensions["agentapp"].settings.database_url)
