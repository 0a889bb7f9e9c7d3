"""Pages of the branches of a chat, compared with a model that looks at all of its turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentapp.errors import NotFound
from agentapp.isolation import ThreadBinder, UserScope, new_id
from agentapp.storage import branches as subject
from agentapp.storage.accounts import Accounts
from agentapp.storage.branches import PAGE_TURNS, Branches
from agentapp.storage.chats import Chats
from agentapp.storage.db import Database
from agentapp.storage.values import BranchPage
from tests.support.long_chats import add_turns, branch, straight, versions


class Chat:
    """A user's chat with these turns."""

    def __init__(self, db: Database, binder: ThreadBinder, scope: UserScope, follows: list[int]) -> None:
        self.scope = scope.within(Chats(db).create(scope).id)
        self.ids, self.follows = add_turns(db, self.scope, follows), follows
        self._binder, self._branches = binder, Branches(db)

    def newest(self) -> BranchPage:
        with self._binder.bound(self.scope):
            return self._branches.newest(self.scope)

    def through(self, number: int) -> BranchPage:
        with self._binder.bound(self.scope):
            return self._branches.through(self.scope, self.ids[number - 1])

    def before(self, number: int, version: int | None = None) -> BranchPage:
        with self._binder.bound(self.scope):
            chosen = self.ids[version - 1] if version else None
            return self._branches.before(self.scope, self.ids[number - 1], chosen)


class ChatMaker:
    """Makes chats in one database, all of one user."""

    def __init__(self, url: str) -> None:
        self.binder = ThreadBinder()
        self.db = Database(url, self.binder)
        user = Accounts(self.db).add("uma", "a long enough password")
        self.scope = UserScope(request_id="r", tenant_id=user.tenant_id, user_id=user.id)

    def chat(self, follows: list[int]) -> Chat:
        return Chat(self.db, self.binder, replace(self.scope, request_id=new_id()), follows)


@pytest.fixture
def chats(database_url: str) -> Iterator[ChatMaker]:
    made = ChatMaker(database_url)
    yield made
    made.db.close()


def numbers(page: BranchPage) -> list[int]:
    return [turn.number for turn in page.turns]


def assert_shows(chat: Chat, page: BranchPage, whole: list[int], end: int) -> None:
    """The page is a piece of that branch, and says all that is to be said about it."""
    shown = numbers(page)
    at = whole.index(shown[0])
    assert shown == whole[at : at + PAGE_TURNS]
    assert page.has_earlier == (at > 0)
    assert page.end == chat.ids[end - 1]
    known = versions(chat.follows, chat.ids)
    assert page.versions == {turn.id: known[turn.id] for turn in page.turns if turn.id in known}
    said = [(message.turn_id, message.role) for message in page.messages]
    assert said == [(turn.id, role) for turn in page.turns for role in ("user", "assistant")]


# Mostly each turn follows the one before it. Now and then one follows an older one.
TREES = st.lists(st.integers(0, 500), min_size=1, max_size=90).map(
    lambda drawn: [min(number, before) for number, before in enumerate(drawn)]
)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(TREES)
@example([0, 1, 2, 1, 4, 0])
@example([0, *range(1, 70), 5, 71, 0])
@example([*range(31)])
@example([*range(70)])
def test_pages_are_those_of_a_model_that_looks_at_all_turns(chats: ChatMaker, follows: list[int]) -> None:
    chat = chats.chat(follows)
    newest = branch(follows, len(follows))
    page = chat.newest()
    assert_shows(chat, page, newest, newest[-1])
    assert numbers(page)[-1] == newest[-1]
    seen = numbers(page)
    while page.has_earlier:
        first = page.turns[0]
        page = chat.before(first.number, newest[-1])
        assert_shows(chat, page, newest[: newest.index(first.number)], newest[-1])
        assert page.following == first.id
        seen = numbers(page) + seen
    assert seen == newest
    for number in range(1, len(follows) + 1, 1 + len(follows) // 6):
        assert_shows_turn(chat, number)


def assert_shows_turn(chat: Chat, number: int) -> None:
    """The page with this turn is the last one of its branch, or begins with it."""
    whole = branch(chat.follows, number)
    page = chat.through(number)
    assert_shows(chat, page, whole, whole[-1])
    shown, at = numbers(page), whole.index(number)
    if len(whole) - at > PAGE_TURNS:
        assert shown[0] == number
        assert page.following == chat.ids[whole[at + PAGE_TURNS] - 1]
    else:
        assert (number in shown, shown[-1], page.following) == (True, whole[-1], None)


def test_an_empty_chat_has_an_empty_page(chats: ChatMaker) -> None:
    assert chats.chat([]).newest() == BranchPage()


def test_there_is_nothing_before_a_first_turn_nor_by_the_turn_of_another_chat(chats: ChatMaker) -> None:
    chat, other = chats.chat([0, 1, 0]), chats.chat([0, 1])
    for number in (1, 3):
        with pytest.raises(NotFound):
            chat.before(number)
    other.scope = chat.scope
    for look in (lambda: other.through(1), lambda: other.before(2), lambda: other.before(2, 1)):
        with pytest.raises(NotFound):
            look()
    chat.ids.append(other.ids[1])
    with pytest.raises(NotFound):
        chat.before(2, version=4)


def test_an_end_that_is_too_far_away_is_not_looked_for(
    chats: ChatMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "MAX_STEPS_TO_END", 40)
    monkeypatch.setattr(subject, "WAY_TO_END", subject._way_to_end(subject.bindparam("first")))
    chat = chats.chat([*straight(60)])
    assert chat.through(22).end == chat.ids[-1]
    page = chat.through(21)
    assert (page.end, numbers(page)) == (None, [*range(21, 51)])
    assert page.following == chat.ids[50]
    assert chat.before(60, version=1).end is None
