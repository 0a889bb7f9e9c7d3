from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentapp.agents.provider import ToolCall
from agentapp.agents.tool import Tool, ToolContext, ToolInputError
from agentapp.agents.tools.memory import (
    MAX_NOTE_CHARS,
    MAX_NOTES,
    MAX_PASSAGE_CHARS,
    add_note,
    list_notes,
    remove_note,
    search_past_chats,
)
from agentapp.isolation import Scope


class Shelf:
    """Notes and past chats in memory, kept apart by scope like the real stores."""

    def __init__(self) -> None:
        self.notes: dict[str, dict[int, str]] = {}
        self.hits: dict[str, list[tuple[str, str, str]]] = {}
        self.searched: list[tuple[str, str, int]] = []

    def add(self, scope: Scope, text: str) -> int:
        own = self.notes.setdefault(scope.session_id, {})
        number = max(own, default=0) + 1
        own[number] = text
        return number

    def all(self, scope: Scope) -> Sequence[tuple[int, str]]:
        return list(self.notes.get(scope.session_id, {}).items())

    def remove(self, scope: Scope, number: int) -> bool:
        return self.notes.get(scope.session_id, {}).pop(number, None) is not None

    def search(self, scope: Scope, words: str, limit: int) -> Sequence[tuple[str, str, str]]:
        self.searched.append((scope.user_id, words, limit))
        return self.hits.get(scope.user_id, [])


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def told(shelf: Shelf, tool: Tool, *, user: str = "ada", session: str = "s1", **values: Any) -> str:
    scope = Scope(request_id="r", tenant_id="t", user_id=user, session_id=session)
    return str(tool.call(ToolContext(scope, shelf, shelf), ToolCall("1", tool.name, values)))


def refused(shelf: Shelf, tool: Tool, **values: Any) -> str:
    with pytest.raises(ToolInputError) as caught:
        told(shelf, tool, **values)
    return str(caught.value)


def test_note_is_kept_without_the_space_around_it_and_listed(shelf: Shelf) -> None:
    assert told(shelf, add_note, text="  buy milk \n") == "Noted as number 1: buy milk"
    told(shelf, add_note, text="call Ada")
    assert told(shelf, list_notes) == "Notes of this chat:\n1. buy milk\n2. call Ada"


def test_chat_without_notes_says_so(shelf: Shelf) -> None:
    assert told(shelf, list_notes) == "There are no notes in this chat yet."


def test_notes_of_another_session_are_neither_seen_nor_removed(shelf: Shelf) -> None:
    told(shelf, add_note, text="secret", session="s1")
    assert "secret" not in told(shelf, list_notes, session="s2")
    with pytest.raises(ToolInputError):
        told(shelf, remove_note, number=1, session="s2")
    assert "secret" in told(shelf, list_notes, session="s1")


def test_removed_note_is_gone_and_the_others_keep_their_numbers(shelf: Shelf) -> None:
    for text in ("one", "two"):
        told(shelf, add_note, text=text)
    assert told(shelf, remove_note, number=1) == "Note 1 is removed."
    assert told(shelf, list_notes) == "Notes of this chat:\n2. two"


def test_removing_what_is_not_there_tells_what_is(shelf: Shelf) -> None:
    assert refused(shelf, remove_note, number=7) == "there is no note 7; there are none"
    told(shelf, add_note, text="one")
    assert refused(shelf, remove_note, number=7) == "there is no note 7; there are 1"


@pytest.mark.parametrize("text", ["", "  \n "])
def test_empty_note_is_refused(shelf: Shelf, text: str) -> None:
    assert refused(shelf, add_note, text=text) == "the note is empty"


def test_note_may_have_the_full_length_and_no_more(shelf: Shelf) -> None:
    told(shelf, add_note, text="x" * MAX_NOTE_CHARS)
    assert "1,001 characters; at most 1,000" in refused(shelf, add_note, text="x" * (MAX_NOTE_CHARS + 1))
    assert len(shelf.notes["s1"]) == 1


def test_full_chat_takes_no_more_notes_but_another_chat_does(shelf: Shelf) -> None:
    for number in range(MAX_NOTES):
        told(shelf, add_note, text=f"note {number}")
    assert "remove one first" in refused(shelf, add_note, text="one too many")
    assert told(shelf, add_note, text="here is room", session="s2").startswith("Noted")


def test_search_tells_day_title_and_passage_of_the_users_own_chats(shelf: Shelf) -> None:
    shelf.hits["ada"] = [("Paints", "2026-01-02", "the  blue\none")]
    answer = told(shelf, search_past_chats, words="  blue \n paint ", limit=3)
    assert answer == "Found in your past chats for 'blue paint':\n- 2026-01-02, Paints: the blue one"
    assert shelf.searched == [("ada", "blue paint", 3)]
    assert (
        told(shelf, search_past_chats, words="blue", user="bob")
        == "Nothing in your past chats matches 'blue'."
    )


def test_search_keeps_to_its_limit_and_shortens_passages(shelf: Shelf) -> None:
    shelf.hits["ada"] = [("T", "2026-01-02", "y" * 1000)] * 9
    answer = told(shelf, search_past_chats, words="y", limit=2)
    assert answer.count("\n- ") == 2
    assert max(map(len, answer.splitlines())) <= MAX_PASSAGE_CHARS + len("- 2026-01-02, T: ")


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"words": "  "}, "there are no words to search for"),
        ({"words": "x" * 201}, "search for at most 200 characters; a few words find more"),
        ({"words": "x", "limit": 0}, "limit must be from 1 to 20"),
        ({"words": "x", "limit": 21}, "limit must be from 1 to 20"),
    ],
)
def test_senseless_search_is_refused_before_the_store_is_asked(
    shelf: Shelf, values: dict[str, Any], problem: str
) -> None:
    assert refused(shelf, search_past_chats, **values) == problem
    assert not shelf.searched
