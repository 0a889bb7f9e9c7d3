"""How many cases of the labelled set the auditor gets right. The held-out ones were not used for tuning."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from agentapp.audit.judge import Hazard
from agentapp.audit.rules import RULES
from tests.audit.support.cases import Case, audited, cases, topics

# The hazards that the auditor is known to miss, and the reason.
MISSED = {
    "streamlit-cached-board": "a script that runs once for every session",
    "tornado-initialize-todo": "arguments that only a framework passes on",
    "acquire-result-ignored": "a lock that was perhaps not acquired counts as held",
    "generator-yields-shared-shards": "indexes of tuples are not followed into other functions",
    "getattr-proxy-to-shared-cart": "a `__getattr__` that returns attributes of another object",
    "handler-table-gets-shared-state": "calls of functions from a table are not resolved",
    "methodcaller-and-setitem-on-shared": "calls of functions made by `operator` are not resolved",
}
# The hazards that it finds, but not on a line with a marked write.
FOUND_ELSEWHERE = {
    "orm-session-current": "the write is reported that changes an object from the shared session",
    "langchain-shared-buffer": "an earlier line that changes a list from the memory is reported",
    "langchain-buffer-memory-for-everyone": "an earlier line that reads the memory is reported",
}
# The clean cases in which it is known to find something.
FALSE_ALARMS = {"partialmethod-on-request-meter": "a method that is called by another name"}


@cache
def load(part: str, topic: str) -> list[Case]:
    return list(cases(part, topic))


def load_all(part: str) -> list[Case]:
    return [case for topic in topics(part) for case in load(part, topic)]


@cache
def judge(part: str, topic: str) -> list[tuple[Case, list[Hazard]]]:
    return [(case, case.found()) for case in load(part, topic)]


def judge_all(part: str) -> list[tuple[Case, list[Hazard]]]:
    return [each for topic in topics(part) for each in judge(part, topic)]


def test_the_set_is_large_enough_and_a_third_of_it_is_held_out() -> None:
    tuning, held_out = load_all("tuning"), load_all("held_out")
    every = [*tuning, *held_out]
    counts = Counter(case.is_hazard for case in every)
    assert min(counts[True], counts[False]) >= 80
    assert 3 * len(held_out) >= len(every)
    assert all(bool(case.marked) == case.is_hazard for case in every)
    assert len({(case.round, case.is_hazard, case.name) for case in every}) == len(every)
    assert all(case.round.startswith("tuning-") for case in tuning)
    assert all(case.round.startswith("held-out") for case in held_out)


@pytest.mark.parametrize("topic", topics("tuning"))
def test_hazards_are_found_at_the_write_and_clean_cases_are_not(topic: str) -> None:
    """If a hazard has several writes, it is enough that the findings point at one of them."""
    wrong = []
    for case, found in judge("tuning", topic):
        expected = case.name not in MISSED if case.is_hazard else case.name in FALSE_ALARMS
        lines = {(hazard.path, hazard.line) for hazard in found}
        if bool(found) != expected:
            wrong.append(f"{case}: {found or 'nothing is found'}")
        elif found and case.is_hazard and (not lines & case.marked) != (case.name in FOUND_ELSEWHERE):
            wrong.append(f"{case}: {found} instead of {sorted(case.marked)}")
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong)


def test_each_known_mistake_is_one_case_of_the_set() -> None:
    names = [(case.name, case.is_hazard) for case in load_all("tuning")]
    for mistakes, is_hazard in ((MISSED, True), (FOUND_ELSEWHERE, True), (FALSE_ALARMS, False)):
        assert [names.count((name, is_hazard)) for name in mistakes] == [1] * len(mistakes)


def test_precision_and_recall_on_the_held_out_cases() -> None:
    """Cases are only counted and never named: with names, the auditor could be tuned for them."""
    counts = Counter((case.is_hazard, bool(found)) for case, found in judge_all("held_out"))
    found, missed, false = counts[True, True], counts[True, False], counts[False, True]
    assert found / (found + false) >= 0.95, f"precision: {found} found, {false} false alarms"
    assert found / (found + missed) >= 0.95, f"recall: {found} found, {missed} missed"


@pytest.mark.parametrize("code", [code for code in RULES if code < "ISO090"])
def test_every_rule_finds_its_bad_example_and_not_its_good_one(code: str) -> None:
    rule = RULES[code]
    assert {hazard.rule for hazard in audited({"app.py": rule.bad})} == {code}
    assert audited({"app.py": rule.good}) == []


def test_cyclic_and_unknown_names_do_not_make_it_fail() -> None:
    """Imports and aliases in cycles, and names that are not defined."""
    one = "from b import x as y\nfrom b import *\nclass A(A): pass\nz = z()\ndef f(): return f()\n"
    two = "from a import y as x\nimport a.c.d as e\nclass B(C): pass\nclass C(B): pass\n"
    writes = "f()[1] = z.w\ndef g(): e.q.w = x.v[0]()\n"
    assert isinstance(audited({"a.py": one + writes, "b.py": two + writes}), list)


def test_lazy_initialisation_under_two_different_locks_is_a_hazard() -> None:
    code = (
        "from threading import Lock\na_lock, b_lock, made = Lock(), Lock(), None\n"
        "def one():\n    global made\n    with a_lock:\n        if made is None:\n            made = 1\n"
        "def two():\n    global made\n    with b_lock:\n        if made is None:\n            made = 2\n"
    )
    assert [hazard.rule for hazard in audited({"app.py": code})] == ["ISO005"]


def test_a_write_is_reported_where_it_is_even_if_the_object_was_passed_on() -> None:
    files = {
        "app.py": "from b import first\nSTATE = {}\n\n\ndef view(key):\n    first(STATE, key)\n",
        "b.py": "from c import second\n\n\ndef first(table, key):\n    second(table, key)\n",
        "c.py": "def second(table, key):\n    table[key] = 1\n",
    }
    (hazard,) = audited(files)
    assert (hazard.path, hazard.line, hazard.function) == ("c.py", 2, "second")
    assert "`STATE`, from app.py:2" in hazard.message


def test_the_message_names_the_object_that_is_written_to() -> None:
    cell = "class Cell:\n    def __init__(self):\n        self.value = 0\n\n\nONE = Cell()\nTWO = Cell()\n"
    (hazard,) = audited({"app.py": f"{cell}\n\ndef view(value):\n    TWO.value = value\n"})
    assert hazard.message.startswith("`TWO`, from app.py:7")


def test_a_program_in_which_each_function_calls_all_others_is_judged_quickly() -> None:
    """Following every path through the calls separately would take exponential time."""
    names = [f"f{n}" for n in range(80)]
    code = "".join(
        f"def {name}(x):\n    " + "; ".join(f"{other}(x)" for other in names) + "\n" for name in names
    )
    assert audited({"app.py": code}) == []


GUARDED = """
import threading

slots = threading.Semaphore({size})
used = {{}}


def take(key):
    with slots:
        used[key] = used.get(key, 0) + 1
"""
SWITCHED = """
class Meter:
    def __init__(self, is_test=False):
        self.is_test = is_test
        self.calls = 0

    def hear(self):
        if self.is_test:
            self.calls += 1


meter = Meter({given})


def view():
    meter.hear()
"""
ALIASED = """
class Engine:
    def __init__(self):
        self.target = None

    @property
    def {name}(self):
        return self.target

    @{name}.setter
    def {name}(self, value):
        self.target = value


engine = Engine()
"""
TAKEN = """
import threading

lock = threading.Lock()
jobs = []


def work():
    with lock:
        job = jobs{how}
    job["state"] = "running"


def add(job):
    with lock:
        jobs.append(job)
"""
RECURSIVE = """
COUNTS = {}


def visit(node):
    for child in node:
        other(child)


def other(node):
    COUNTS[node] = 1
    visit(node)


def view(request):
    visit(request.tree)
"""


@pytest.mark.parametrize(
    ("code", "is_hazard"),
    [
        (GUARDED.format(size="1"), False),
        (GUARDED.format(size=""), False),
        (GUARDED.format(size="8"), True),
        (SWITCHED.format(given=""), False),
        (SWITCHED.format(given="is_test=True"), True),
        (SWITCHED.format(given="settings.is_test"), True),
        (SWITCHED.format(given="") + "\n\ndef watch():\n    meter.is_test = True\n", True),
        (ALIASED.format(name="_target"), False),
        (ALIASED.format(name="goal"), True),
        (ALIASED.format(name="_target") + "\n\ndef view(x):\n    engine._target = x\n", True),
        (TAKEN.format(how=".pop()"), False),
        (TAKEN.format(how="[0]"), True),
        (RECURSIVE, True),
    ],
)
def test_code_that_never_runs_is_clean_and_locks_must_exclude(code: str, is_hazard: bool) -> None:
    assert bool(audited({"app.py": code})) == is_hazard


def test_the_documentation_lists_every_rule() -> None:
    page = (Path(__file__).parents[2] / "docs" / "auditor.md").read_text()
    table = page.partition("<!-- rules -->")[2].partition("<!-- end of rules -->")[0]
    rows = [f"| {rule.code} | {rule.title} | {rule.severity} | {rule.why} |" for rule in RULES.values()]
    assert table.strip().splitlines()[2:] == rows
