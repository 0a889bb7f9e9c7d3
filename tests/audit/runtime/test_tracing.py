"""With `trace=True` a report names the function and the line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.audit.support.sites import Site, body_of

TRACED = """
HISTORY, LAST, COUNT = [], {}, 0

class Agent:
    user = None

    def hear(self, name):
        x = len(name)
        self.user = name  # HEAR
        return x

agent = Agent()

def remember(name):
    HISTORY.append(name)  # REMEMBER
    return len(HISTORY)

@app.get("/")
def home():
    global COUNT
    name = request.args["name"]
    LAST[name] = 1  # LAST
    remember(name)
    agent.hear(name)
    COUNT += 1  # COUNT
    return "ok"

@app.get("/stream")
def stream():
    def items():
        yield "a"
        HISTORY.append(1)  # STREAM
        yield "b"
    return Response(items())

@app.get("/library")
def library():
    collections.UserList.append(USERS, 1)  # LIBRARY
    return "ok"

USERS = collections.UserList()
"""


def line_of(module: ModuleType, mark: str) -> int:
    lines = Path(str(module.__file__)).read_text().splitlines()
    (found,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return found


def test_the_function_and_the_line_are_named(site: Callable[..., Site]) -> None:
    leaky = site(TRACED, trace=True)
    leaky.get("/?name=ann")
    assert {(where, *change.by) for (where, _), change in zip(leaky.places(), leaky.found, strict=True)} == {
        (where, f"{leaky.name}.{function} (__init__.py:{line_of(leaky.module, mark)})")
        for where, function, mark in [
            ("LAST", "home", "LAST"),
            ("HISTORY", "remember", "REMEMBER"),
            ("agent.user", "Agent.hear", "HEAR"),
            ("COUNT", "home", "COUNT"),
        ]
    }
    assert "by " + leaky.name in str(leaky.found[0])
    leaky.take()
    leaky.get("/library")
    assert [change.by for change in leaky.found] == [
        (f"{leaky.name}.library (__init__.py:{line_of(leaky.module, 'LIBRARY')})",)
    ]


def test_a_stream_is_traced_and_the_profiler_is_removed_between_items(site: Callable[..., Site]) -> None:
    leaky = site(TRACED, trace=True)
    body = body_of(leaky.middleware, "/stream")
    for _ in body:
        assert sys.getprofile() is None
    body.close()
    (change,) = leaky.found
    assert change.by == (
        f"{leaky.name}.stream.<locals>.items (__init__.py:{line_of(leaky.module, 'STREAM')})",
    )


def test_an_earlier_profiler_is_restored_and_one_of_the_app_is_kept(site: Callable[..., Site]) -> None:
    def theirs(*args: object) -> None:
        pass

    leaky = site(
        "import sys\ndef mine(*args): pass\n"
        "@app.get('/')\ndef home():\n    sys.setprofile(mine)\n    return 'ok'\n",
        trace=True,
    )
    try:
        sys.setprofile(theirs)
        leaky.get("/openly")
        assert sys.getprofile() is theirs
        leaky.get("/")
        assert sys.getprofile() is leaky.module.mine
    finally:
        sys.setprofile(None)


def test_a_tracer_that_fails_does_not_fail_the_request(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise RuntimeError("broken")

    leaky = site("", trace=True)
    monkeypatch.setattr("agentapp.audit.runtime.tracing.find_changed", fails)
    assert leaky.get("/openly") == "ok"
    assert leaky.places() == [("OPENLY", "grew")]
    assert leaky.found[0].by == ()


def test_without_tracing_nothing_is_profiled(site: Callable[..., Site]) -> None:
    leaky = site("import sys\nSEEN = []\n@app.get('/')\ndef home():\n    return str(sys.getprofile())\n")
    assert leaky.get("/") == "None"
