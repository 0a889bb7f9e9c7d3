"""Pinned chats stand above the others."""

from __future__ import annotations

import re

from flask import Flask

from agentapp.isolation import new_id
from agentapp.storage.chats import MOST_PINNED
from agentapp.web.parts import Parts
from tests.support.app_inspection import Page
from tests.support.plans import scans_noted
from tests.support.users import Person


def titled(ann: Person, *titles: str) -> list[str]:
    chats = []
    for title in titles:
        chat = ann.new_chat()
        ann.post(f"/chat/{chat}/rename", title=title)
        chats.append(chat)
    return chats


def pin(ann: Person, chat: str, pinned: str = "1") -> int:
    return ann.post(f"/chat/{chat}/pin", pinned=pinned).status_code


def listed(page: str) -> list[str]:
    """Headings and chats of the list beside a chat, in their order."""
    groups = page.partition('id="chat-groups"')[2].partition("</nav>")[0]
    return re.findall(r"<h2>([^<]+)</h2>|<a [^>]*data-chat[^>]*>([^<]+)</a>", groups)  # type: ignore[return-value]


def names(page: str) -> list[str]:
    return ["".join(found) for found in listed(page)]


def test_pinned_chats_come_first_and_only_once(ann: Person) -> None:
    first, second, third = titled(ann, "one", "two", "three")
    assert names(ann.get(f"/chat/{first}").text) == ["Today", "three", "two", "one"]
    assert pin(ann, first) == 303
    assert pin(ann, second) == 303
    assert names(ann.get(f"/chat/{third}").text) == ["Pinned", "two", "one", "Today", "three"]
    page = ann.get("/chat").text
    assert page.index("Pinned") < page.index(first) < page.index("All others") < page.index(third)
    assert page.count(f'href="/chat/{first}"') == 1
    assert pin(ann, first, "0") == 303
    assert names(ann.get(f"/chat/{third}").text) == ["Pinned", "two", "Today", "three", "one"]


def test_the_chat_offers_what_can_be_done(ann: Person) -> None:
    (chat,) = titled(ann, "one")
    for offered, words in (("1", "Pin to the top"), ("0", "Unpin this chat"), ("1", "Pin to the top")):
        page = ann.get(f"/chat/{chat}").text
        assert words in page
        form = Page(page).form(f"/chat/{chat}/pin")
        assert (form.method, form.fields["pinned"]) == ("post", offered)
        ann.post(form.action, pinned=form.fields["pinned"])


def test_pinned_chats_are_found_and_paged_like_all_others(ann: Person) -> None:
    chat, _ = titled(ann, "walrus", "other")
    pin(ann, chat)
    found = ann.get("/chat?q=walrus").text
    assert found.count(f'href="/chat/{chat}"') == 1
    assert 'id="pinned"' not in found
    assert "No more chats" in ann.get("/chat?page=2").text
    pin(ann, _)
    assert "No chats yet" not in ann.get("/chat").text, "though all of them are pinned"


def test_to_pin_again_changes_nothing(ann: Person) -> None:
    first, second = titled(ann, "one", "two")
    for chat in (first, second, first):
        assert pin(ann, chat) == 303
    assert names(ann.get(f"/chat/{first}").text) == ["Pinned", "two", "one"]


def test_only_so_many_can_be_pinned(ann: Person, parts: Parts) -> None:
    chats = titled(ann, *(f"chat {n}" for n in range(MOST_PINNED + 1)))
    assert [pin(ann, chat) for chat in chats] == [303] * MOST_PINNED + [400]
    assert pin(ann, chats[0]) == 303, "it is pinned already"
    assert pin(ann, chats[0], "0") == 303
    assert pin(ann, chats[-1]) == 303


def test_what_is_not_a_yes_or_no_is_refused(ann: Person) -> None:
    chat = ann.new_chat()
    for value in ("2", "", "yes"):
        assert pin(ann, chat, value) == 400


def test_nobody_pins_the_chat_of_somebody_else(ann: Person, bob: Person) -> None:
    chat = ann.new_chat()
    assert pin(bob, chat) == pin(bob, new_id()) == 404
    assert names(ann.get(f"/chat/{chat}").text)[0] == "Today"


def test_the_lists_are_read_from_indexes(app: Flask, parts: Parts, ann: Person) -> None:
    chat = ann.new_chat()
    with scans_noted(parts.db, "sessions") as scans:
        for path in ("/chat", "/chat?page=2", f"/chat/{chat}"):
            assert ann.get(path).status_code == 200
        pin(ann, chat)
    assert scans == []
