"""The `agentapp` command. Each command parses, calls and echoes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

import click

from agentapp import __version__, config, instance
from agentapp.audit import baseline as known
from agentapp.audit import cache, formats, options, sarif
from agentapp.audit.findings import Unusable
from agentapp.audit.report import Report
from agentapp.audit.report import audit as run_audit
from agentapp.audit.rules import RULES, Rule
from agentapp.errors import AgentappError, BadRequest, SettingError, StartError
from agentapp.guardrails import operator as breakers
from agentapp.guardrails.cell import Cells
from agentapp.guardrails.policies import cell_policies, longest_turn
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.server import options as listen
from agentapp.server import resources
from agentapp.storage import migrate, schema
from agentapp.storage.accounts import Accounts
from agentapp.storage.cells import CellStore
from agentapp.storage.db import Database
from agentapp.storage.values import Role


class _PlainErrors(click.Group):
    """Whatever we raise on purpose is one line for the person at the terminal, never a traceback."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except AgentappError as exc:
            click.echo(f"agentapp: {exc}", err=True)
            ctx.exit(2 if isinstance(exc, SettingError | StartError) else 1)


@click.group(cls=_PlainErrors)
@click.version_option(__version__, prog_name="agentapp", message="%(prog)s %(version)s")
def main() -> None:
    """A multi-user chat-agent server."""


@main.command()
@click.option("--bind", metavar="HOST:PORT", help="Where to listen. [AGENTAPP_BIND, 127.0.0.1:8000]")
@click.option("--workers", metavar="N", help="Processes. [AGENTAPP_WORKERS, 2]")
@click.option("--threads", metavar="N", help="Threads in each process. [AGENTAPP_THREADS, 512]")
def serve(bind: str | None, workers: str | None, threads: str | None) -> None:
    """Bring the database up to date, then serve."""
    where = listen.load(options={"bind": bind, "workers": workers, "threads": threads})
    settings = config.load(bind=where.bind)
    # First of all the port: if another server has it, its database must not change under it.
    listen.check_free(where.bind)
    _upgrade(settings)
    url = listen.url_of(where.bind, https=settings.https)
    model = "demo model" if settings.provider == "demo" else settings.model
    click.echo(f"agentapp {__version__} on {url} ({model})")
    with _accounts(settings) as accounts:
        token = accounts.new_setup_token()
    if token:
        click.echo(f"Make the first account: {url}/setup?token={token}")
    _become_gunicorn(where)


@main.group()
def db() -> None:
    """The database's schema."""


@db.command()
def upgrade() -> None:
    """Bring the database up to date. Does nothing if it is already."""
    _upgrade(config.load())
    click.echo(f"the database is at revision {schema.HEAD}")


@main.group()
def user() -> None:
    """Accounts."""


_password_stdin = click.option(
    "--password-stdin", is_flag=True, required=True, help="Read the password from the first line of stdin."
)


@user.command()
@click.argument("name")
@click.option("--tenant", default="default", show_default=True, help="The organisation; made if new.")
@click.option(
    "--role", type=click.Choice(["member", "admin", "operator"]), default="member", show_default=True
)
@_password_stdin
def add(name: str, tenant: str, role: str, password_stdin: bool) -> None:
    """Make an account."""
    password, settings = _read_password(), config.load()
    if schema.is_missing(settings.database_url):
        _upgrade(settings)
    with _accounts(settings) as accounts:
        made = accounts.add(name, password, tenant=tenant, role=cast(Role, role))
    click.echo(f"added {made.name} to {made.tenant} as {made.role}")


@user.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
def list_users(as_json: bool) -> None:
    """Show all accounts."""
    with _accounts(config.load()) as accounts:
        users = accounts.all()
    if as_json:
        shown = [{"name": u.name, "tenant": u.tenant, "role": u.role, "disabled": u.disabled} for u in users]
        click.echo(json.dumps(shown, indent=2))
        return
    for u in users:
        click.echo("\t".join([u.name, u.tenant, u.role] + ["disabled"] * u.disabled))


@user.command()
@click.argument("name")
def disable(name: str) -> None:
    """Lock an account and end its logins. Its data stays."""
    with _accounts(config.load()) as accounts:
        accounts.disable(name)
    click.echo(f"disabled {name}")


@user.command()
@click.argument("name")
def enable(name: str) -> None:
    """Unlock an account."""
    with _accounts(config.load()) as accounts:
        accounts.enable(name)
    click.echo(f"enabled {name}")


@user.command()
@click.argument("name")
@_password_stdin
def set_password(name: str, password_stdin: bool) -> None:
    """Give an account a new password and end its logins."""
    password = _read_password()
    with _accounts(config.load()) as accounts:
        accounts.set_password(name, password)
    click.echo(f"changed the password of {name}")


class _ScopeAndId(click.ParamType[tuple[str, str]]):
    name = "SCOPE:ID"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, str]:
        scope, _, name = str(value).partition(":")
        if not (scope and name and value.isprintable()):  # half a character is not printable either
            self.fail(f"{value!r} does not look like session:ID, user:NAME or provider:NAME.", param, ctx)
        return scope, name


_which = click.argument("which", metavar="SCOPE:ID", type=_ScopeAndId())


@main.group(name="breakers")
def breakers_group() -> None:
    """Breakers: of chat sessions, users, tenants and the model provider."""


@breakers_group.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.option("--all", "everything", is_flag=True, help="Also those that have nothing to tell.")
def list_breakers(as_json: bool, everything: bool) -> None:
    """Show the breakers that are not closed or have counted failures."""
    with _desk(config.load()) as desk:
        rows = desk.listed(everything=everything)
        nothing = breakers.NO_BREAKERS if everything else breakers.NO_OPEN_BREAKERS
        for line in breakers.as_json(rows) if as_json else breakers.as_table(rows, nothing):
            click.echo(line)


@breakers_group.command()
@_which
def reset(which: tuple[str, str]) -> None:
    """Close a breaker and forget its failures, in every worker at once.

    SCOPE:ID is session:ID, user:NAME, tenant:NAME or provider:NAME; a user or tenant may also be
    given by its id. What is used of budgets and rates stays as it is.
    """
    with _desk(config.load()) as desk:
        _tell(which, desk.reset(*which))


@breakers_group.command()
@_which
@click.argument("state", type=click.Choice(["open", "closed"]))
def force(which: tuple[str, str], state: str) -> None:
    """Keep a breaker open or closed, whatever happens, until it is reset.

    An open one pauses that session, user, tenant or provider. SCOPE:ID is the same as for reset.
    """
    with _desk(config.load()) as desk:
        _tell(which, desk.force(*which, cast(Literal["open", "closed"], state)))


@main.command()
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path())
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
    help="For people, scripts, code hosts, or GitHub's workflows.",
)
@click.option(
    "--baseline", metavar="FILE", help="Leave out what --format json printed into this file before."
)
@click.option(
    "--explain", metavar="RULE", help="Tell what a rule is about, with examples, and do nothing else."
)
@click.option("--no-cache", is_flag=True, help="Read every file anew.")
def audit(
    paths: tuple[str, ...], form: str, baseline: str | None, explain: str | None, no_cache: bool
) -> None:
    """Find state that requests share by mistake, in anybody's Python.

    PATH is a file or a directory; without one, those in [tool.agentapp.audit] of pyproject.toml. Nothing that
    is looked at is imported or run. Exit code 0: nothing found; 1: something found; 2: something
    could not be read.
    """
    try:
        if explain is not None:
            _print(formats.explained(_rule(explain)))
            return
        chosen = options.load(paths[0] if paths else None)
        if not (paths or chosen.paths):
            raise Unusable(f"name a PATH, or paths in {options.TABLE} of pyproject.toml")
        excused = known.load(baseline) if baseline is not None else known.nothing()
        kept_in = None if no_cache else cache.place()
        report = run_audit(
            paths or chosen.paths, chosen, excused=excused, progress=_progress, kept_in=kept_in
        )
    except Unusable as exc:
        click.echo(f"agentapp: {exc}", err=True)
        sys.exit(2)
    _print(_formatted(report, form))
    for directory in report.without:
        click.echo(f"agentapp: there is no Python in {directory}", err=True)
    if report.unread:
        click.echo(f"agentapp: {formats.counted(report.unread, 'path')} could not be read", err=True)
    sys.exit(report.exit_code)


def _formatted(report: Report, form: str) -> str:
    match form:
        case "json":
            return formats.as_json(report)
        case "sarif":
            return sarif.as_sarif(report, version=__version__)
        case "github":
            return formats.as_github(report)
    return formats.as_text(report, coloured=sys.stdout.isatty() and "NO_COLOR" not in os.environ)


def _rule(code: str) -> Rule:
    if code not in RULES:
        raise Unusable(f"there is no rule {code!r}; there are {', '.join(RULES)}")
    return RULES[code]


def _progress(number: int, count: int) -> None:
    """Only somebody who watches, and has to wait, is told how far it is."""
    if count > 300 and (number % 50 == 0 or number == count) and sys.stderr.isatty():
        end = "\r\x1b[K" if number == count else ""
        click.echo(f"\rreading {number} of {count} files{end}", err=True, nl=False)


def _print(text: str) -> None:
    """Also on a terminal that does not know all the characters of somebody else's source."""
    encoding = sys.stdout.encoding or "utf-8"
    if text:
        click.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def _tell(which: tuple[str, str], change: breakers.Change) -> None:
    click.echo(f"{':'.join(which)} was {change.was}, is {change.now} now")


def _upgrade(settings: config.Settings) -> None:
    if settings.database_url.startswith(f"sqlite:///{settings.instance}/"):
        instance.prepare(settings.instance)
    migrate.upgrade(settings.database_url)


@contextmanager
def _accounts(settings: config.Settings) -> Iterator[Accounts]:
    with _database(settings) as database:
        yield Accounts(database)


@contextmanager
def _desk(settings: config.Settings) -> Iterator[breakers.BreakerAdmin]:
    lease = longest_turn(settings)
    with _database(settings) as database:
        yield breakers.BreakerAdmin(Cells(cell_policies(settings, lease)), CellStore(database))


@contextmanager
def _database(settings: config.Settings) -> Iterator[Database]:
    schema.require_current(settings.database_url)
    binder = ThreadBinder()
    database = Database(settings.database_url, binder)
    try:
        with binder.bound(RequestScope(request_id="cli")):
            yield database
    finally:
        database.engine.dispose()


def _read_password() -> str:
    """One line, of which only the line end is dropped: a password may begin or end with a space."""
    line = sys.stdin.buffer.readline() if sys.stdin else b""  # None when it was closed before we started
    try:
        password = line.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise BadRequest("The password on standard input is not UTF-8 text.") from None
    if not password:
        raise BadRequest("There is no password on standard input.")
    return password


def _become_gunicorn(where: listen.ServerOptions) -> None:
    """The same process from now on, so that whoever started us can stop it; nothing open is taken along."""
    command = [sys.executable, "-m", "gunicorn", "-c", str(resources.gunicorn_config())]
    os.execve(sys.executable, [*command, "agentapp.app:create_app()"], {**os.environ, **where.environ()})  # noqa: S606
