"""`agentapp audit`: the options of the auditor's command."""

from __future__ import annotations

import sys

import click


@click.command()
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
    "--baseline",
    "baseline_file",
    metavar="FILE",
    help="Leave out what --format json printed into this file before.",
)
@click.option(
    "--explain", metavar="RULE", help="Tell what a rule is about, with examples, and do nothing else."
)
@click.option("--no-cache", is_flag=True, help="Read every file anew.")
def audit(
    paths: tuple[str, ...], form: str, baseline_file: str | None, explain: str | None, no_cache: bool
) -> None:
    """Find state that requests share by mistake, in anybody's Python.

    PATH is a file or a directory; without one, those in [tool.agentapp.audit] of pyproject.toml. Nothing that
    is looked at is imported or run. Exit code 0: nothing found; 1: something found; 2: something
    could not be read.
    """
    # Imported here because it takes longer than everything else together, and --help does not need it.
    from agentapp.cli import auditing

    if explain is not None:
        sys.exit(auditing.explain(explain))
    sys.exit(auditing.run(paths, form, baseline_file=baseline_file, no_cache=no_cache))
