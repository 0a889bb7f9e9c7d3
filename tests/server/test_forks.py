"""What the master has imported before it forks, what it must not have opened, which code a worker runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.test_start import GUNICORN, ROOT, SERVE, get, opened, sockets_of, upgrade, wait_for
from tests.support.server import Server, run, server

SDK = {"ANTHROPIC_API_KEY": "sk-nobody", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}

# A wsgi.py that shows what this worker has made, and which modules it did not import itself.
SHOWING = """
import sys
INHERITED = "agentapp.app" in sys.modules

import json, os, random, secrets, ssl, uuid
from agentapp.app import create_app
from agentapp.isolation import new_id

app = create_app()
inside = app.wsgi_app
team = app.extensions["agentapp"].turns.kit.team

def showing(environ, start):
    if environ["PATH_INFO"] != "/made":
        return inside(environ, start)
    start("200 OK", [("Content-Type", "application/json")])
    seen = {"pid": os.getpid(), "inherited": INHERITED, "team": team.front.name, "made": made()}
    return [json.dumps(seen).encode()]

def made():
    # Many of each: the workers may have drawn some before, and not the same number.
    kinds = new_id, secrets.token_hex, uuid.uuid4, random.random, lambda: ssl.RAND_bytes(16)
    return [str(draw()) for draw in kinds for _ in range(300)]

app.wsgi_app = showing
"""
TEAM = """
from agentapp.agents import Agent, Team

team = Team(Agent(name={name!r}, instructions="Answer."))
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "gunicorn.conf.py", tmp_path)
    (tmp_path / "wsgi.py").write_text(SHOWING)
    upgrade(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("served"), command=SERVE, workers=2, env=SDK) as running:
        yield running


def made_by(s: Server) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(f"{s.url}/made"))
    return found


def test_master_has_opened_nothing_but_its_port_and_has_one_thread(served: Server) -> None:
    wait_for(lambda: len(served.children()) == 2)
    get(f"{served.url}/readyz")
    assert [file for file in opened(served.pid) if "sqlite" in file] == []
    assert len(sockets_of(served.pid)) == 1, "the listening one"
    assert len(list(Path(f"/proc/{served.pid}/task").iterdir())) == 1


def test_two_workers_never_make_the_same_ids(clone: Path) -> None:
    """What is random must not be drawn from something that both have of the master."""
    made: dict[int, set[str]] = {}
    with server(clone, command=GUNICORN, workers=2) as s:

        def both_have_answered() -> bool:
            found = made_by(s)
            made.setdefault(found["pid"], set(found["made"]))
            return len(made) == 2

        wait_for(both_have_answered)
    one, other = made.values()
    assert len(one) == len(other) == 5 * 300
    assert one & other == set()


def test_a_worker_in_place_of_a_killed_one_has_the_masters_modules_and_serves(clone: Path) -> None:
    with server(clone, command=GUNICORN) as s:
        before = made_by(s)
        os.kill(before["pid"], signal.SIGKILL)
        wait_for(lambda: s.children() not in ([], [before["pid"]]))
        after = made_by(s)
        assert (before["inherited"], after["inherited"]) == (True, True)
        assert after["made"] != before["made"]
        assert get(f"{s.url}/readyz")


def test_after_sighup_a_worker_runs_our_code_and_the_team_as_they_are_now(clone: Path) -> None:
    (clone / "our_team.py").write_text(TEAM.format(name="before"))
    env = {"AGENTAPP_TEAM": "our_team:team", "PYTHONPATH": _and_python_path(clone)}
    with server(clone, command=GUNICORN, env=env) as s:
        before = made_by(s)
        assert (before["team"], before["inherited"]) == ("before", True)
        (clone / "our_team.py").write_text(TEAM.format(name="afterwards"))
        s.process.send_signal(signal.SIGHUP)
        wait_for(lambda: bool(s.children()) and before["pid"] not in s.children())
        after = made_by(s)
        assert (after["team"], after["inherited"]) == ("afterwards", False)
        os.kill(after["pid"], signal.SIGKILL)
        wait_for(lambda: s.children() not in ([], [after["pid"]]))
        last = made_by(s)
        assert (last["team"], last["inherited"]) == ("afterwards", False)


def test_a_worker_has_nothing_left_to_import(clone: Path) -> None:
    """Neither to start, nor for what it does before its first request."""
    code = f"""
import runpy, sys
settings = runpy.run_path({str(ROOT / "gunicorn.conf.py")!r})
settings["_import"]([*settings["_libraries"](), *settings["_ours"]()])
before = set(sys.modules)
from agentapp.app import create_app
from agentapp.web.warm_up import warm_up
warm_up(create_app())
new = {{name.partition(".")[0] for name in set(sys.modules) - before}} - sys.stdlib_module_names
print(sorted(new))
"""
    done = run(sys.executable, "-c", code, directory=clone, env=SDK)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def _and_python_path(directory: Path) -> str:
    return os.pathsep.join(filter(None, (str(directory), os.environ.get("PYTHONPATH"))))
