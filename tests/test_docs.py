"""The documentation is complete, and its examples run."""

from __future__ import annotations

import asyncio
import re
import tomllib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from flask import Flask

from agentapp.agents.anthropic import AsyncAnthropicProvider
from agentapp.agents.retrying import AsyncRetrying
from agentapp.cli import main
from agentapp.web.problems import TABLE
from tests.messages_api import MessagesApi
from tests.people import person
from tests.scripted import scope
from tests.serving import server
from tests.test_load import PASSWORD, add_users
from tests.visiting import Visitor

ROOT = Path(__file__).parent.parent
REFERENCE = (ROOT / "docs/reference.md").read_text()
README = (ROOT / "README.md").read_text()


def example(page: str, beginning: str) -> str:
    """The Python example of a page that has these words in it."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    (found,) = [block for block in blocks if beginning in block]
    return str(found)


def settings_in_the_code() -> set[str]:
    source = "".join((ROOT / "agentapp" / name).read_text() for name in ("config.py", "listen.py"))
    literal = set(re.findall(r'"((?:AGENTAPP|ANTHROPIC)_[A-Z_]+)"', source))
    return literal | {"AGENTAPP_BIND", "AGENTAPP_WORKERS", "AGENTAPP_THREADS"}


def commands(group: click.Group, path: str = "agentapp") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}"


@pytest.mark.parametrize("name", sorted(settings_in_the_code()))
def test_every_setting_is_documented(name: str) -> None:
    assert f"`{name}`" in REFERENCE


def test_every_documented_setting_exists() -> None:
    assert set(re.findall(r"`((?:AGENTAPP|ANTHROPIC)_[A-Z_]+)`", REFERENCE)) <= settings_in_the_code()


@pytest.mark.parametrize("command", list(commands(main)))
def test_every_command_is_documented(command: str) -> None:
    assert f"`{command}" in REFERENCE


@pytest.mark.parametrize("code", TABLE)
def test_every_error_code_is_documented(code: str) -> None:
    assert f"`{code}`" in REFERENCE


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
    pins = dict(line.lower().split("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
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
