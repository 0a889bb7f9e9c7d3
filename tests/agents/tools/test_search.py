"""The tool that searches past chats."""

from __future__ import annotations

from typing import Any

import pytest

from agentapp.agents.tools.search import MAX_PASSAGE_CHARS, search_past_chats
from tests.agents.tools.stores import Stores, call, refusal_of


def test_search_tells_day_title_and_passage_of_the_users_own_chats(stores: Stores) -> None:
    stores.hits["ada"] = [("Paints", "2026-01-02", "the  blue\none")]
    answer = call(stores, search_past_chats, words="  blue \n paint ", limit=3)
    assert answer == "Found in your past chats for 'blue paint':\n- 2026-01-02, Paints: the blue one"
    assert stores.searched == [("ada", "blue paint", 3)]
    assert (
        call(stores, search_past_chats, words="blue", user="bob")
        == "Nothing in your past chats matches 'blue'."
    )


def test_search_keeps_to_its_limit_and_shortens_passages(stores: Stores) -> None:
    stores.hits["ada"] = [("T", "2026-01-02", "y" * 1000)] * 9
    answer = call(stores, search_past_chats, words="y", limit=2)
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
def test_invalid_search_is_refused_before_the_store_is_asked(
    stores: Stores, values: dict[str, Any], problem: str
) -> None:
    assert refusal_of(stores, search_past_chats, **values) == problem
    assert not stores.searched
