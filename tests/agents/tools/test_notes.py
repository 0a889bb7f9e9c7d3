"""The tools for notes."""

from __future__ import annotations

import pytest

from agentapp.agents.tool import ToolInputError
from agentapp.agents.tools.notes import MAX_NOTE_CHARS, MAX_NOTES, add_note, list_notes, remove_note
from tests.agents.tools.stores import Stores, call, refusal_of


def test_note_is_kept_without_the_space_around_it_and_listed(stores: Stores) -> None:
    assert call(stores, add_note, text="  buy milk \n") == "Noted as number 1: buy milk"
    call(stores, add_note, text="call Ada")
    assert call(stores, list_notes) == "Notes of this chat:\n1. buy milk\n2. call Ada"


def test_chat_without_notes_says_so(stores: Stores) -> None:
    assert call(stores, list_notes) == "There are no notes in this chat yet."


def test_notes_of_another_session_are_neither_seen_nor_removed(stores: Stores) -> None:
    call(stores, add_note, text="secret", session="s1")
    assert "secret" not in call(stores, list_notes, session="s2")
    with pytest.raises(ToolInputError):
        call(stores, remove_note, number=1, session="s2")
    assert "secret" in call(stores, list_notes, session="s1")


def test_removed_note_is_gone_and_the_others_keep_their_numbers(stores: Stores) -> None:
    for text in ("one", "two"):
        call(stores, add_note, text=text)
    assert call(stores, remove_note, number=1) == "Note 1 is removed."
    assert call(stores, list_notes) == "Notes of this chat:\n2. two"


def test_removing_what_is_not_there_tells_what_is(stores: Stores) -> None:
    assert refusal_of(stores, remove_note, number=7) == "there is no note 7; there are none"
    call(stores, add_note, text="one")
    assert refusal_of(stores, remove_note, number=7) == "there is no note 7; there are 1"


@pytest.mark.parametrize("text", ["", "  \n "])
def test_empty_note_is_refusal_of(stores: Stores, text: str) -> None:
    assert refusal_of(stores, add_note, text=text) == "the note is empty"


def test_note_may_have_the_full_length_and_no_more(stores: Stores) -> None:
    call(stores, add_note, text="x" * MAX_NOTE_CHARS)
    assert "1,001 characters; at most 1,000" in refusal_of(stores, add_note, text="x" * (MAX_NOTE_CHARS + 1))
    assert len(stores.notes["s1"]) == 1


def test_full_chat_takes_no_more_notes_but_another_chat_does(stores: Stores) -> None:
    for number in range(MAX_NOTES):
        call(stores, add_note, text=f"note {number}")
    assert "remove one first" in refusal_of(stores, add_note, text="one too many")
    assert call(stores, add_note, text="here is room", session="s2").startswith("Noted")
