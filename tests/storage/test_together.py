"""Statements that are run together are the same as one after the other."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.dialects import sqlite

from agentapp.storage import together as module
from agentapp.storage.statements import CompiledStatements, DriverConnection
from agentapp.storage.together import Together

ADD = "INSERT INTO things (id, text) VALUES (?, ?)"
ADD_TWO = (
    "INSERT INTO things (id, text) VALUES (?, ?), (?, ?) ON CONFLICT (id) DO UPDATE SET text = excluded.text"
)
CHANGE = "UPDATE things SET text = text || ? WHERE id = ?"
REMOVE = "DELETE FROM things WHERE id = ?"


class Counted(sqlite3.Connection):
    calls = 0

    def execute(self, *args: Any) -> sqlite3.Cursor:
        self.calls += 1
        return super().execute(*args)


@pytest.fixture
def connection() -> Iterator[Counted]:
    made = sqlite3.connect(":memory:", isolation_level=None, factory=Counted)
    made.execute("CREATE TABLE things (id TEXT PRIMARY KEY, text)")
    made.execute("CREATE TABLE log (n INTEGER PRIMARY KEY, id TEXT)")
    made.execute(
        "CREATE TRIGGER logged AFTER INSERT ON things BEGIN INSERT INTO log (id) VALUES (new.id); END"
    )
    yield made
    made.close()


def things(connection: sqlite3.Connection) -> list[tuple[str, object]]:
    return connection.execute("SELECT id, text FROM things ORDER BY id").fetchall()


def sequence(first: str, text: object) -> list[tuple[str, list[object]]]:
    return [
        (ADD, [first, text]),
        (ADD_TWO, [first + "2", "more", "other", None]),
        (CHANGE, ["!", first + "2"]),
        (REMOVE, ["other"]),
    ]


def run(connection: Counted, together: Together, first: str, text: object) -> int:
    """In a transaction of its own. In how many calls of the driver."""
    connection.execute("BEGIN IMMEDIATE")
    before = connection.calls
    together.run(connection, sequence(first, text))
    calls = connection.calls - before
    connection.execute("COMMIT")
    together.learn(connection)
    return calls


@pytest.mark.parametrize("text", ['it\'s; a -- "text" ?', "", None, 7, 0.5, b"\x00\xff", "€" * 10_000])
def test_what_was_run_before_is_one_call_with_the_same_result(connection: Counted, text: object) -> None:
    together = Together()
    assert run(connection, together, "a", text) == 4
    assert run(connection, together, "b", text) == 1
    assert things(connection) == [("a", text), ("a2", "more!"), ("b", text), ("b2", "more!")]
    assert connection.execute("SELECT count(*) FROM log").fetchall() == [(6,)], "triggers of tables run too"


def test_if_one_of_them_fails_none_has_an_effect(connection: Counted) -> None:
    together = Together()
    for first in ("a", "b"):
        run(connection, together, first, "text")
    before = things(connection)
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.IntegrityError):
        together.run(connection, sequence("a", "text"))
    connection.execute("ROLLBACK")
    assert things(connection) == before
    assert run(connection, together, "c", "text") == 1, "and it is still known"


def test_nothing_is_learnt_in_a_transaction_that_may_be_rolled_back(connection: Counted) -> None:
    together = Together()
    connection.execute("BEGIN IMMEDIATE")
    together.run(connection, sequence("a", "text"))
    connection.execute("ROLLBACK")
    together.learn(connection)
    assert run(connection, together, "a", "text") == 1


def test_what_cannot_be_learnt_is_run_one_by_one(connection: Counted) -> None:
    together, odd = Together(), "INSERT INTO things (id, text) VALUES (?, ?) RETURNING id"  # not in a trigger
    for first in "abc":
        together.run(connection, [(odd, [first, 1]), (REMOVE, [first])])
        together.learn(connection)
    assert things(connection) == []


def test_it_does_not_learn_for_ever(connection: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_KNOWN", 3)
    together = Together()
    for n in range(10):
        texts = [(f"DELETE FROM things WHERE id = '{n}'", []), (REMOVE, ["x"])]
        together.run(connection, texts)
        together.learn(connection)
    assert len(together._known) == 3


def test_whoever_asks_sees_what_was_left_for_later(connection: Counted) -> None:
    compiled = CompiledStatements(sqlite.dialect())
    db = DriverConnection(connection, compiled, None, Together())
    db.run_text_later(ADD, ["a", 1])
    assert db.run_text("SELECT count(*) FROM things").fetchall() == [(1,)]
    db.run_text_later(ADD, ["b", 1])
    assert connection.execute("SELECT count(*) FROM things").fetchall() == [(1,)]
    db.run_text("COMMIT" if connection.in_transaction else "SELECT 1")
    assert [id for id, _ in things(connection)] == ["a", "b"]
