"""`agentapp doctor`: runs the checks, each for a bounded time, and prints their lines."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TookTooLong
from dataclasses import asdict

import click

from agentapp.cli.checks import database_checks, machine_checks, model_checks, served_checks, setting_checks
from agentapp.cli.checks.line import Line, do
from agentapp.config import Settings
from agentapp.logs import described, escaped
from agentapp.parsing import settings_of

CHECK_SECONDS = 30.0  # for one check, whatever hangs in it

Check = Callable[[], Line | Iterable[Line]]


class _Url(click.ParamType[str]):
    name = "URL"

    def convert(self, value: object, param: object, ctx: object) -> str:
        text = str(value)
        if not text.startswith(("http://", "https://")) or not text.isprintable() or "@" in text:
            self.fail(f"{value!r} does not look like https://chat.example.org.")
        return text


@click.command()
@click.option("--json", "as_json", is_flag=True, help="For scripts.")
@click.option("--bind", metavar="HOST:PORT", help="Where it is to listen, if serve is told so by --bind.")
@click.option("--url", type=_Url(), help="Also ask the running server there, as its users reach it.")
def doctor(as_json: bool, bind: str | None, url: str | None) -> None:
    """Look at settings, database, model provider and machine, and say what to do.

    It reads the same environment as `agentapp serve`, changes nothing, and makes no call that costs anything.
    Each line is ok, a note, or something to do. Exit code 0: all is well; 1: something must be done; 2: a
    setting is bad.
    """
    bad = [do("settings", str(error)) for error in setting_checks.bad_settings(os.environ, bind)]
    if bad:
        _print(bad, as_json)
        sys.exit(2)
    lines = list(_lines(bind, url))
    _print(lines, as_json)
    sys.exit(1 if any(line.state == "do" for line in lines) else 0)


def _lines(bind: str | None, url: str | None) -> Iterator[Line]:
    environ = os.environ
    settings, server = setting_checks.load(environ, bind)
    checks: dict[str, Check] = {
        "settings": lambda: setting_checks.check_settings(environ),
        "secret": lambda: setting_checks.check_secret(environ, settings),
        "address": lambda: setting_checks.check_address(settings, server),
        "database": lambda: database_checks.check_database(settings),
        "connections": lambda: database_checks.check_connections(settings, server),
        "team and provider": lambda: model_checks.check_model(environ, settings, server),
        "open files": lambda: machine_checks.check_open_files(server),
        "traces": lambda: machine_checks.check_traces(settings),
    }
    if url is not None:
        checks["served"] = lambda: served_checks.check_served(url)
    secrets = _secrets(settings)
    for name, check in checks.items():
        for line in _within(CHECK_SECONDS, name, check):
            yield line.without(secrets)


def _within(seconds: float, name: str, check: Check) -> list[Line]:
    """Nothing that a check meets, also nothing that hangs, keeps the other checks from being made."""
    made: Future[list[Line]] = Future()

    def run() -> None:
        try:
            found = check()
            made.set_result([found] if isinstance(found, Line) else list(found))
        except BaseException as error:
            made.set_exception(error)

    threading.Thread(target=run, name=f"doctor-{name}", daemon=True).start()
    try:
        return made.result(seconds)
    except TookTooLong:
        return [do(name, f"it could not be found out within {seconds:g} s")]
    except BaseException as error:
        return [do(name, f"it could not be found out: {described(error)}")]


def _secrets(settings: Settings) -> list[str]:
    """The database's URL is one as a whole; its password goes with what stands before the @ of an address."""
    names = [name for name, declared in settings_of(Settings).items() if declared.secret]
    values = [getattr(settings, name) for name in names if name != "database_url"]
    texts = [value.decode("utf-8", "replace") if isinstance(value, bytes) else value for value in values]
    return [text for text in texts if text and text != setting_checks.NO_SECRET]


def _print(lines: list[Line], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(line) for line in lines], indent=2))
        return
    width = max(len(line.check) for line in lines)
    for line in lines:
        click.echo(f"{line.state:<4}  {line.check:<{width}}  {escaped(line.text)}")
