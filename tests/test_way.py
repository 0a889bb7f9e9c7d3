"""The way of a message through the files, from the request to the settled row: short enough to follow."""

from __future__ import annotations

import re
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from flask import Flask

from tests.support.documentation import ROOT
from tests.support.users import person

PACKAGE = f"{ROOT / 'agentapp'}/"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
MOST_FILES = 32
# No steps on the way: the parts of a cell and of a model call, which call each other; the app's parts, which
# every view asks for; and the first connection of a process, which makes the database's files private.
VALUES = {f"guardrails/{name}.py" for name in ("bucket", "budget", "bulkhead", "cell", "holds", "outage")}
VALUES |= {"agents/provider.py", "agents/meter.py", "agents/drivers/in_place.py", "instance.py"}
# They are told what happens, count it or look for what was left, and hand nothing on.
VALUES |= {
    "guardrails/budget_alerts.py",
    "storage/holders.py",
    "telemetry/measurements.py",
    "telemetry/minutes.py",
}
VALUES |= {"turns/live_agents.py", "web/checks.py"}
# Everybody asks for the parts, and for the time.
ACCESSORS = {"web/parts.py", "storage/clock.py"}


@contextmanager
def traced() -> Iterator[dict[str, set[str]]]:
    """For each file of the package, the other files of the package that it called, on any thread."""
    calls: defaultdict[str, set[str]] = defaultdict(set)

    def note(frame: FrameType, event: str, arg: Any) -> None:
        callee = frame.f_code.co_filename
        if event != "call" or not callee.startswith(PACKAGE):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != callee:
            calls[caller.f_code.co_filename.removeprefix(PACKAGE)].add(callee.removeprefix(PACKAGE))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def files_on_the_way(app: Flask) -> set[str]:
    """Those that hand the message on to another file, up to the model's provider."""
    ann = person(app, "ann")
    chat = ann.new_chat()
    ann.ask(chat, "warm")
    with traced() as calls:
        ann.ask(chat, "hello")
    handing_on = {caller for caller, callees in calls.items() if callees - ACCESSORS}
    return {file for file in handing_on if not file.startswith("agents/providers/")} - VALUES


def test_a_message_is_handed_on_by_few_files(app: Flask) -> None:
    way = files_on_the_way(app)
    assert {
        "web/turns.py",
        "turns/turn.py",
        "storage/turns.py",
        "guardrails/guard.py",
        "agents/loop.py",
    } <= way
    assert len(way) <= MOST_FILES, sorted(way)


def test_the_documentation_shows_the_whole_way(app: Flask) -> None:
    table = ARCHITECTURE.partition("## The way of a message")[2].partition("## ")[0]
    shown = set(re.findall(r"`([\w/]+\.py)`", table))
    shown |= {f"guardrails/{name}" for name in shown if "/" not in name}
    assert files_on_the_way(app) - shown == set()


def test_every_file_that_the_documentation_names_is_there() -> None:
    rooms = "agentapp|agents|guardrails|storage|turns|web|server|cli|telemetry"
    for page in (ROOT / "docs").glob("*.md"):
        for name in re.findall(rf"`((?:{rooms})/[a-z_/.]+\.py)`", page.read_text()):
            places = (ROOT / name, ROOT / "agentapp" / name, ROOT / "tests" / name)
            assert any(place.exists() for place in places), f"{page.name} names {name}"
