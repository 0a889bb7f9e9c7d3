"""The documentation is complete, and its examples run."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from flask import Flask

from agentapp.agents.providers.anthropic import AsyncAnthropicProvider
from agentapp.agents.providers.retrying import AsyncRetrying
from agentapp.cli import CommandOnDemand, main
from agentapp.config import Settings
from agentapp.events import KINDS, Event, HandedOver, ToolExecuting, TurnCompleted, TurnResult
from agentapp.parsing import Setting, settings_of
from agentapp.server.options import ServerOptions
from agentapp.telemetry.log_options import LogOptions
from agentapp.web.problems import TABLE
from agentapp.web.steps import steps_of
from tests.server.test_load import PASSWORD, add_users
from tests.support.documentation import ROOT, example
from tests.support.http_client import Visitor
from tests.support.messages_api import MessagesApi
from tests.support.scripted import scope
from tests.support.server import server
from tests.support.users import person

REFERENCE = (ROOT / "docs/reference.md").read_text()
README = (ROOT / "README.md").read_text()
TEMPLATES = list((ROOT / "agentapp/web/templates").glob("*.html"))
SCRIPT = (ROOT / "agentapp/web/static/app.js").read_text()


def section(title: str) -> str:
    """What stands under a heading of the reference, with its subsections."""
    level = len(title.partition(" ")[0])
    found = re.search(rf"^{re.escape(title)}\n(.*?)(?=^#{{1,{level}}} |\Z)", REFERENCE, re.M | re.S)
    assert found, title
    return found[1]


def table_rows(part: str) -> list[tuple[str, ...]]:
    """The cells of each row of all tables in a part, without their heads."""
    lines = [line for line in part.splitlines() if line.startswith("|")]
    rows = [tuple(cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]) for line in lines]
    rules = {number for number, line in enumerate(lines) if set(line) <= set("|-")}
    return [row for number, row in enumerate(rows) if not rules & {number, number + 1}]


def row_of(setting: Setting[Any]) -> tuple[str, ...]:
    """The row of a setting, as the reference must have it."""
    default = setting.default_in_words or (f"`{setting.default}`" if setting.default else "")
    return f"`{setting.variable}`", default, setting.sentence


SETTINGS = {
    setting.variable: setting
    for owner in (ServerOptions, LogOptions, Settings)
    for setting in settings_of(owner).values()
}


def commands(group: click.Group, path: str = "agentapp") -> Iterator[tuple[str, click.Command]]:
    for name, found in group.commands.items():
        command = found.load() if isinstance(found, CommandOnDemand) else found
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands(main))
# What followers are shown besides an event's own data: the reply as HTML, made where it is sent.
ADDED_BY_THE_WEB = {"turn_completed": {"html"}}
# The page says nothing when an agent is done.
NOT_SHOWN_BY_THE_PAGE = {"agent_completed"}


def keys_of(kind: type[Event]) -> set[str]:
    """Every key that the data of an event may have."""
    if kind is TurnCompleted:
        failed = TurnResult("failed", error_code="provider-failed", error_message="It failed.")
        return set(TurnCompleted("turn", "request", failed).data)
    return {field.name.rstrip("_") for field in fields(kind)}


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_is_documented_with_its_default_and_its_sentence(name: str) -> None:
    assert row_of(SETTINGS[name]) in table_rows(section("## Settings"))


def test_every_documented_setting_exists() -> None:
    assert set(re.findall(r"`((?:AGENTAPP|ANTHROPIC|OTEL)_[A-Z_]+)`", REFERENCE)) <= set(SETTINGS)


def test_every_row_of_the_settings_tables_is_one_setting() -> None:
    assert len(table_rows(section("## Settings"))) == len(SETTINGS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_documented_with_its_options(command: str) -> None:
    (row,) = [
        row
        for row in table_rows(section("## Commands"))
        if re.search(rf"`{re.escape(command)}(?![\w-])", row[0])
    ]
    for parameter in COMMANDS[command].params:
        if isinstance(parameter, click.Option):
            assert parameter.opts[0] in row[0]


def test_every_documented_command_exists() -> None:
    documented = re.findall(r"`(agentapp(?: [a-z-]+)+)", section("## Commands"))
    assert sorted(documented) == sorted(COMMANDS)


@pytest.mark.parametrize("code", TABLE)
def test_every_error_code_is_documented(code: str) -> None:
    assert f"`{code}`" in section("## Problems")


def test_every_documented_error_code_exists() -> None:
    documented = [
        code for row in table_rows(section("## Problems")) for code in re.findall(r"`([\w-]+)`", row[0])
    ]
    assert sorted(documented) == sorted(TABLE)


def test_every_event_is_documented_and_no_other() -> None:
    documented = [
        kind for row in table_rows(section("### Events")) for kind in re.findall(r"`(\w+)`", row[0])
    ]
    assert sorted(documented) == sorted(kind.kind for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_every_key_of_an_event_is_documented_and_no_other(kind: type[Event]) -> None:
    (row,) = [row for row in table_rows(section("### Events")) if f"`{kind.kind}`" in row[0]]
    assert set(re.findall(r"`(\w+)", row[1])) == keys_of(kind) | ADDED_BY_THE_WEB.get(kind.kind, set())


def test_the_page_shows_every_event_but_those_listed_here() -> None:
    found = re.search(r"const EVENTS = new Set\(\[(.*?)\]\)", SCRIPT, re.S)
    assert found
    shown = re.findall(r'"(\w+)"', found[1])
    assert sorted(shown) == sorted({kind.kind for kind in KINDS} - NOT_SHOWN_BY_THE_PAGE)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_the_page_uses_only_keys_that_the_event_has(kind: type[Event]) -> None:
    methods = re.findall(rf"^    {kind.kind}\(\{{([^}}]*)\}}\) \{{$", SCRIPT, re.M)
    assert len(methods) == (kind.kind not in NOT_SHOWN_BY_THE_PAGE)
    for keys in methods:
        used = {key.strip() for key in keys.split(",")}
        assert used <= keys_of(kind) | ADDED_BY_THE_WEB.get(kind.kind, set())


def test_the_templates_know_only_events_and_steps_that_there_are() -> None:
    steps = {HandedOver.kind, steps_of([ToolExecuting("1", "x", {})])[0]["kind"]}
    known = {name for page in TEMPLATES for name in re.findall(r"kind == '(\w+)'", page.read_text())}
    assert known
    assert known <= steps


def test_every_route_is_documented(app: Flask) -> None:
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<id:(\w+)>", r"<\1>", rule.rule)
        last = path.rsplit("/", 1)[1]
        if rule.endpoint not in ("static", "home"):
            assert path in REFERENCE or f"`{last}`" in REFERENCE, path


def test_every_link_in_the_documentation_leads_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readmes_commands_install_what_is_pinned() -> None:
    commands = re.findall(r"^    (python3 -m venv .*)$", README, re.M)
    assert [command.rsplit(" && ", 1)[1] for command in commands] == [
        ".venv/bin/agentapp serve",
        ".venv/bin/pytest",
    ]
    assert all(" -c constraints.txt && " in command for command in commands)


def test_every_commit_is_tested_with_the_readmes_own_command() -> None:
    (told,) = re.findall(r"^    (python3 -m venv .*pytest)$", README, re.M)
    lines = [line.strip() for line in (ROOT / ".ci/run").read_text().splitlines()]
    assert [line for line in lines if "pytest" in line or "pip install" in line] == [told]


def test_every_dependency_is_pinned_within_its_range() -> None:
    lines = (ROOT / "constraints.txt").read_text().lower().replace("_", "-").splitlines()
    pins = dict(line.split("==") for line in lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wanted in chain(project["dependencies"], *project["optional-dependencies"].values()):
        name, least, below = re.fullmatch(r"([\w-]+)(?:\[\w+\])?(?:>=([\d.]+),<([\d.]+))?", wanted).groups()  # type: ignore[union-attr]
        if name != "agentapp":
            assert as_numbers(least or "0") <= as_numbers(pins[name.lower()]) < as_numbers(below or "9999"), (
                name
            )


def as_numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_the_readme_has_a_team_in_twenty_lines() -> None:
    assert len(example("README.md", "team = Team(").splitlines()) <= 20


def test_the_readmes_own_team_answers(make_app: Callable[..., Flask]) -> None:
    module = ModuleType("shop")
    exec(compile(example("README.md", "team = Team("), "shop.py", "exec"), vars(module))
    ann = person(make_app(module.team), "ann")
    chat = ann.new_chat()
    events = ann.stream(chat, "/handover warehouse")
    assert [(e["from"], e["to"]) for e in events if e["event"] == "handed_over"] == [("desk", "warehouse")]
    assert "pens: 7 in stock" in ann.ask(chat, '/call stock {"item": "pens"}')["reply"]
    assert "order 1001 of user" in ann.ask(chat, "/call my_orders {}")["reply"]


def test_the_readmes_own_team_can_be_served(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(example("README.md", "team = Team("))
    url = f"sqlite:///{tmp_path}/shop.sqlite3"
    add_users(url, ["ann"])
    env = {"AGENTAPP_TEAM": "shop:team", "AGENTAPP_DATABASE_URL": url, "AGENTAPP_DEMO_DELAY": "0"}
    with server(tmp_path, env=env) as running:
        ann = Visitor(running.url)
        ann.sign_in("ann", PASSWORD)
        answer = ann.send(ann.new_chat(), "/handover warehouse", "text/event-stream")
        assert '"to": "warehouse"' in answer.text


def test_the_asyncio_example_answers_a_hundred_people_at_once() -> None:
    """With AsyncAnthropic against a local server that speaks the Messages API."""
    names: dict[str, Any] = {"__name__": "embedded"}
    exec(compile(example("docs/agents.md", "async def answer"), "embedded.py", "exec"), names)

    async def everybody(url: str) -> list[str]:
        claude = AsyncAnthropicProvider("sk-test", url)
        try:
            jobs = [
                names["answer"](AsyncRetrying(claude), scope(str(n)), f"I am number {n}.") for n in range(100)
            ]
            return await asyncio.gather(*jobs)
        finally:
            await claude.close()

    with MessagesApi() as api:
        answers = asyncio.run(everybody(api.url))
    for n, answer in enumerate(answers):
        assert re.findall(r"number (\d+)\.", answer) == [str(n)]


def test_the_tool_example_is_a_tool() -> None:
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(example("docs/agents.md", "def convert("), "convert.py", "exec"), names)
    assert names["convert"].spec.input_schema["properties"]["to"]["enum"] == ["EUR", "USD"]
