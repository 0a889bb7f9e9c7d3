"""The library, the pytest plugin and the examples of the documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.audit.support.sites import HEAD, TAIL, Imports

ROOT = Path(__file__).parents[3]


def test_importing_the_auditor_loads_no_framework() -> None:
    """Neither the static auditor nor the detector; only the pytest plugin imports pytest."""
    code = (
        "import importlib, pkgutil, sys, agentapp.audit\n"
        "for each in pkgutil.walk_packages(agentapp.audit.__path__, 'agentapp.audit.'):\n"
        "    if not each.name.endswith('pytest_plugin'):\n"
        "        importlib.import_module(each.name)\n"
        "import agentapp.audit.runtime as runtime\n"
        "runtime.Watch(('agentapp',)).compare(runtime.Watch(('agentapp',)).snapshot())\n"
        "heavy = {'flask', 'werkzeug', 'sqlalchemy', 'alembic', 'gunicorn', 'anthropic', 'pydantic'}\n"
        "assert not {'pytest', '_pytest', 'click', *heavy} & set(sys.modules)\n"
        "assert sys.getprofile() is None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


PLUGIN_TESTS = """
import shared_things

pytest_plugins = ["agentapp.audit.runtime.pytest_plugin"]

def test_leaks(leak_watch):
    leak_watch("shared_things")
    shared_things.HISTORY.append("alice@example.com")

def test_is_allowed(leak_watch):
    leak_watch("shared_things", allow=["shared_things.HISTORY"])
    shared_things.HISTORY.append("alice@example.com")

def test_is_clean(leak_watch):
    guard = leak_watch("shared_things")
    shared_things.HISTORY.append(1)
    assert [change.kind for change in guard.changes()] == ["grew"]
    shared_things.HISTORY.pop()

def test_does_not_watch():
    shared_things.HISTORY.append(1)

def test_is_not_loaded(leak_watch):
    leak_watch("no_such_package")
"""


def test_the_fixture_fails_a_test_that_leaves_changes(tmp_path: Path) -> None:
    (tmp_path / "shared_things.py").write_text("HISTORY = []\n")
    (tmp_path / "test_it.py").write_text(PLUGIN_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = re.findall(r"^(PASSED|FAILED|ERROR) test_it\.py::(\w+)", run.stdout, re.M)
    verdicts = {name: verdict for verdict, name in told}
    assert verdicts == {
        "test_leaks": "ERROR",  # at its teardown
        "test_is_allowed": "PASSED",
        "test_is_clean": "PASSED",
        "test_does_not_watch": "PASSED",
        "test_is_not_loaded": "FAILED",
    }, run.stdout
    assert "shared_things.HISTORY grew (list of 0 -> list of 1)" in run.stdout
    assert "import it before you watch it" in run.stdout


def test_the_examples_in_the_documentation_run(imported: Imports) -> None:
    page = (ROOT / "docs/auditor-runtime.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 4
    module = imported(HEAD + TAIL)
    for block in blocks:
        exec(compile(block.replace("myapp", module.__name__), "page", "exec"), {"__name__": "page"})
