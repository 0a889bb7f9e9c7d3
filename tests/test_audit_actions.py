"""The list of what the audit log can say is complete: in the code, and in the documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from agentapp.storage.audit_actions import ACTIONS
from tests.support.documentation import ROOT
from tests.test_layers import MODULES

THE_LIST = "storage.audit_actions"
# What makes a row, and the place of the action among its arguments.
MAKERS = {"AuditEntry": 0, "AuditEntry.of": 1, "tallies.add": 1, "tallies.add_sign_in": 1}
DOCUMENT = (ROOT / "docs/observability.md").read_text()


def written() -> Iterator[tuple[str, str]]:
    """Every action that stands where a row is made, with its module."""
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func) if node.args else ""
            place = next((at for maker, at in MAKERS.items() if called.endswith(maker)), len(node.args))
            for part in [each for argument in node.args[place : place + 1] for each in ast.walk(argument)]:
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield name, part.value


def texts() -> set[str]:
    """Every text in the package but those of the list itself."""
    return {
        node.value
        for name, tree in MODULES.items()
        if name != THE_LIST
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_whatever_the_code_writes_is_in_the_list() -> None:
    found = list(written())
    assert {"signed-in", "signed-out", "sign-in-failed", "lookup-denied"} <= {action for _, action in found}
    assert [each for each in found if each[1] not in ACTIONS] == []


def test_no_action_is_listed_twice() -> None:
    assert len(ACTIONS) == len(set(ACTIONS))
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)+", action) and len(action) <= 48 for action in ACTIONS)


def test_whatever_is_in_the_list_is_written_by_the_code() -> None:
    assert set(ACTIONS) - texts() == set()


def test_the_documentation_has_the_same_list() -> None:
    section = DOCUMENT.partition("\n## Audit log\n")[2].partition("\n## ")[0]
    documented = [
        action
        for row in re.findall(r"^\| (`[^|]+) \|", section, re.M)
        for action in re.findall(r"`([\w-]+)`", row)
    ]
    assert documented == list(ACTIONS)
