"""What `agentapp audit` does: runs the auditor and prints what it found."""

from __future__ import annotations

import os
import sys

import click

from agentapp import __version__
from agentapp.audit import baseline, cache, formats, options, sarif
from agentapp.audit.findings import Unusable
from agentapp.audit.report import Report
from agentapp.audit.report import audit as run_audit
from agentapp.audit.rules import RULES

FILES_WORTH_A_PROGRESS_LINE = 300
FILES_BETWEEN_PROGRESS_LINES = 50
UNUSABLE = 2  # the exit code if the command cannot be carried out


def run(paths: tuple[str, ...], form: str, *, baseline_file: str | None, no_cache: bool) -> int:
    """Audit, print the report, and return the exit code."""
    try:
        report = _report(paths, baseline_file, no_cache=no_cache)
    except Unusable as exc:
        return _refuse(str(exc))
    _print(_formatted(report, form))
    for directory in report.without:
        click.echo(f"agentapp: there is no Python in {directory}", err=True)
    if report.unread:
        click.echo(f"agentapp: {formats.counted(report.unread, 'path')} could not be read", err=True)
    return report.exit_code


def explain(code: str) -> int:
    """Print what a rule is about, and return the exit code."""
    if code not in RULES:
        return _refuse(f"there is no rule {code!r}; there are {', '.join(RULES)}")
    _print(formats.explained(RULES[code]))
    return 0


def _refuse(message: str) -> int:
    click.echo(f"agentapp: {message}", err=True)
    return UNUSABLE


def _report(paths: tuple[str, ...], baseline_file: str | None, *, no_cache: bool) -> Report:
    chosen = options.load(paths[0] if paths else None)
    if not (paths or chosen.paths):
        raise Unusable(f"name a PATH, or paths in {options.TABLE} of pyproject.toml")
    excused = baseline.nothing() if baseline_file is None else baseline.load(baseline_file)
    kept_in = None if no_cache else cache.place()
    return run_audit(paths or chosen.paths, chosen, excused=excused, progress=_progress, kept_in=kept_in)


def _formatted(report: Report, form: str) -> str:
    match form:
        case "json":
            return formats.as_json(report)
        case "sarif":
            return sarif.as_sarif(report, version=__version__)
        case "github":
            return formats.as_github(report)
    return formats.as_text(report, coloured=sys.stdout.isatty() and "NO_COLOR" not in os.environ)


def _progress(number: int, count: int) -> None:
    """Say how far it is, if somebody watches and it takes a while."""
    if (
        count > FILES_WORTH_A_PROGRESS_LINE
        and (number % FILES_BETWEEN_PROGRESS_LINES == 0 or number == count)
        and sys.stderr.isatty()
    ):
        end = "\r\x1b[K" if number == count else ""
        click.echo(f"\rreading {number} of {count} files{end}", err=True, nl=False)


def _print(text: str) -> None:
    """Escape the characters that the terminal does not know: the source that is shown may have any."""
    encoding = sys.stdout.encoding or "utf-8"
    if text:
        click.echo(text.encode(encoding, "backslashreplace").decode(encoding))
