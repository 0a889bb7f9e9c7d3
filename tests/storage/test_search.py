"""The search over chats: what it finds, what it costs, and that its entries go with what they are about."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, text

from agentapp.isolation import Scope, UserScope, new_id
from agentapp.storage import search, search_index, words
from agentapp.storage.search_index import SearchIndex
from agentapp.storage.words import asked_words, indexed_words
from tests.storage.test_storage import Stores, read
from tests.support.rounds import ROUNDS

OWN_WORDS = len("12345678")


@pytest.fixture
def stores(database_url: str) -> Iterator[Stores]:
    made = Stores(database_url)
    yield made
    made.db.close()


@pytest.fixture
def ann(stores: Stores) -> UserScope:
    return stores.user("ann")


def titles(stores: Stores, user: UserScope, query: str, **page: int) -> list[str]:
    return [
        chat.title for chat in read(stores, user, lambda: stores.chats.page(user, words=query, **page))[0]
    ]


def said(stores: Stores, user: UserScope, message: str, title: str) -> Scope:
    chat = stores.chat(user)
    stores.turn(chat, message, reply="")
    stores.chats.rename(chat, title)
    return chat


def indexed(text: str) -> list[str]:
    return [word[OWN_WORDS:] for word in indexed_words("u", text).split(" ") if word]


def asked(text: str) -> list[str]:
    return [word[OWN_WORDS:] for word, _ in asked_words("u", text)]


def test_what_a_text_is_found_by_stays_as_it_was_when_the_entries_were_made() -> None:
    """If this has to change, a migration has to make all entries anew."""
    given = "We PAY 100%: snake_case, Straße, ﬁne cafe\u0301; हिन्दी! 東京タワー ไทย ❤️"
    assert indexed_words("a user", given).startswith("38649849we ")
    expected = "we pay 100 snake case strasse fine café हिन्दी 東 京 タ ワ ー 東京 京タ タワ ワー ไ ท ย ไท ทย"
    assert " ".join(indexed(given)) == expected


@given(st.text(st.characters(max_codepoint=127)))
def test_plain_ascii_takes_a_shorter_way_to_the_same_words(given: str) -> None:
    assert indexed(given) == indexed(given + " é")[:-1]


def test_what_a_query_asks_for() -> None:
    assert asked("Blue  door, BLUE") == ["blue", "door"]
    assert asked("東京タワー 京") == ["東京", "京タ", "タワ", "ワー", "京"]
    assert asked(" %_*\"'() ") == []
    assert [goes_on for _, goes_on in asked_words("u", "a by the 京")] == [False, False, True, False]


def test_words_are_bounded_whatever_the_text() -> None:
    alike = [f"abc{n}" for n in range(1_000)]
    assert indexed(" ".join(alike)) == alike[: words.MAX_WORDS_ALIKE]
    for text_ in ("x" * 10**6, "東" * 10**6, "ﷺ" * 10**5, " ".join(f"{n:05}"[::-1] for n in range(10**5))):
        found = indexed(text_)
        assert len(found) <= words.MAX_WORDS
        assert max(map(len, found)) <= words.MAX_WORD_CHARS
    assert len(asked("a b c d e f g h i j k l m n o p")) == words.MAX_QUERY_WORDS


def test_a_chat_is_found_by_the_beginnings_of_the_words_in_a_message_or_its_title(
    stores: Stores, ann: UserScope
) -> None:
    said(stores, ann, "We pay 100% in May, it's snake_case \\o/", "Money")
    said(stores, ann, "Äpfel und ÖL für die Straße", "Obst")
    said(stores, ann, "明日は東京タワーへ行く", "旅行")
    assert titles(stores, ann, "PAY 100% in") == titles(stores, ann, "may, we") == ["Money"]
    assert (
        titles(stores, ann, "snak") == titles(stores, ann, "case") == titles(stores, ann, "it's") == ["Money"]
    )
    assert titles(stores, ann, "äPF öl STRASSE") == ["Obst"]
    assert (
        titles(stores, ann, "東京タワー")
        == titles(stores, ann, "京")
        == titles(stores, ann, "旅")
        == ["旅行"]
    )
    assert titles(stores, ann, "mon") == ["Money"]
    assert titles(stores, ann, "ay") == titles(stores, ann, "ake") == [], "not in the middle of a word"
    assert titles(stores, ann, "pa") == titles(stores, ann, "w") == [], "two letters are a whole word"
    assert titles(stores, ann, "pay obst") == [], "all words in one place"
    assert titles(stores, ann, "%") == titles(stores, ann, "\\/") == [], "there is no word in it"


def test_a_new_title_replaces_the_old_one(stores: Stores, ann: UserScope) -> None:
    chat = said(stores, ann, "hello", "Walnut")
    stores.chats.rename(chat, "Pecan")
    assert (titles(stores, ann, "walnut"), titles(stores, ann, "pecan")) == ([], ["Pecan"])


def test_chats_come_newest_first_each_once_on_pages(stores: Stores, ann: UserScope) -> None:
    chats = [said(stores, ann, "a walnut", f"walnut {n}") for n in range(5)]
    stores.turn(chats[0], "and one more walnut")
    found = [titles(stores, ann, "walnut", page=page, size=2) for page in (1, 2, 3, 4)]
    assert found == [["walnut 0", "walnut 4"], ["walnut 3", "walnut 2"], ["walnut 1"], []]


def test_only_the_newest_matches_are_looked_at(
    stores: Stores, ann: UserScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "MAX_MATCHES", 4)
    for n in range(6):
        said(stores, ann, "a walnut", f"walnut {n}")
    assert titles(stores, ann, "walnut") == ["walnut 5", "walnut 4"]  # each has two places


def test_nobody_is_shown_what_an_entry_with_the_wrong_owner_points_at(stores: Stores, ann: UserScope) -> None:
    bob = stores.user("bob")
    chat = said(stores, bob, "a secret walnut", "bobs")
    forge = text(
        "UPDATE search_entries SET tenant_id = :t, user_id = :u WHERE session_id = :s"
        " AND tenant_id = :t AND user_id = :b"
    )
    with stores.db.transaction() as words:  # bob's words are now ann's too
        owner = UserScope(request_id="r", tenant_id=ann.tenant_id, user_id=ann.user_id)
        search.index_title(words, owner.within(chat.session_id), "a secret walnut")
    with stores.db.writing() as db:
        db.execute(forge, {"t": ann.tenant_id, "u": ann.user_id, "b": bob.user_id, "s": chat.session_id})
    assert titles(stores, ann, "walnut") == []
    assert read(stores, ann, lambda: stores.chats.search(ann.within("x"), "walnut", 5)) == []


@pytest.mark.parametrize("is_waiting", [False, True])
@pytest.mark.parametrize("what", ["chat", "user", "turn"])
def test_entries_go_with_what_they_are_about(
    stores: Stores, ann: UserScope, what: str, is_waiting: bool
) -> None:
    bob = stores.user("bob")
    said(stores, bob, "bobs walnut", "bobs")
    chat = said(stores, ann, "a walnut", "walnut")
    if not is_waiting:
        SearchIndex(stores.db).add_waiting()
    owner = {"t": ann.tenant_id, "u": ann.user_id}
    if what == "chat":
        stores.delete_chat(chat)
    else:
        with stores.db.writing() as db:
            if what == "user":
                db.execute(text("DELETE FROM users WHERE tenant_id = :t AND id = :u"), owner)
            else:
                db.execute(text("DELETE FROM turns WHERE tenant_id = :t AND user_id = :u"), owner)
    assert _entries(stores, ann) == (1 if what == "turn" else 0), "the title of a chat without turns stays"
    assert titles(stores, bob, "walnut") == ["bobs"]
    SearchIndex(stores.db).add_waiting()
    if stores.db.engine.dialect.name == "sqlite":
        with stores.db.engine.connect() as raw:
            kept = set(raw.scalars(text("SELECT term FROM search_terms")) if _terms(raw) else ())
        mine = indexed_words(ann.user_id, "walnut")
        assert (mine in kept) == (what == "turn")
        assert indexed_words(bob.user_id, "walnut") in kept


def waiting(stores: Stores) -> list[int]:
    if stores.db.engine.dialect.name != "sqlite":
        return []
    with stores.db.engine.connect() as raw:
        return list(raw.scalars(text("SELECT id FROM search_index_waiting")))


def test_what_waits_for_the_index_is_found_as_what_is_in_it(stores: Stores, ann: UserScope) -> None:
    bob = stores.user("bob")
    said(stores, ann, "a walnut tree", "old")
    assert not SearchIndex(stores.db).add_waiting()
    assert waiting(stores) == []
    said(stores, ann, "one more walnut", "new")
    said(stores, bob, "bobs walnut", "bobs")
    for _ in range(2):
        assert titles(stores, ann, "waln") == titles(stores, ann, "walnut") == ["new", "old"]
        assert titles(stores, ann, "walnut more") == titles(stores, ann, "new") == ["new"]
        assert titles(stores, ann, "alnut") == titles(stores, ann, "mo") == titles(stores, ann, "bobs") == []
        assert titles(stores, bob, "walnut") == ["bobs"]
        SearchIndex(stores.db).add_waiting()


def test_many_that_wait_are_put_into_the_index_a_few_at_a_time_and_the_rest_at_the_next_beat(
    stores: Stores, ann: UserScope, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_index, "MOST_AT_ONCE", 2)
    for n in range(3):
        said(stores, ann, f"walnut {n}", "tree")
    assert not SearchIndex(stores.db).add_waiting(), "all of them are there within one beat"
    assert waiting(stores) == []
    for n in range(3):
        said(stores, ann, f"walnut {n}", "tree")
    monkeypatch.setattr(search_index, "MOST_SECONDS", -1.0)
    before = waiting(stores)
    for left in range(len(before) - 2, -2, -2):
        assert SearchIndex(stores.db).add_waiting()
        assert waiting(stores) == before[len(before) - max(left, 0) :]
    assert not SearchIndex(stores.db).add_waiting()


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20 * ROUNDS
)
@given(st.lists(st.sampled_from(["say", "rename", "delete", "index"]), min_size=4, max_size=15))
def test_whatever_is_in_the_index_already_the_search_finds_the_same(stores: Stores, steps: list[str]) -> None:
    """And SQLite finds no fault with its index, in which there must be nothing but the entries."""
    user, expected, chats = stores.user(new_id()[:8].lower().strip("-_") + "x"), list[str](), list[Scope]()
    for n, step in enumerate(steps):
        if step == "index":
            SearchIndex(stores.db).add_waiting()
        elif step == "say" or not chats:
            chats.append(said(stores, user, "a walnut", f"title {n}"))
            expected.append(f"title {n}")
        elif step == "rename":
            stores.chats.rename(chats[0], f"title {n}")
            expected[0] = f"title {n}"
        else:
            stores.delete_chat(chats.pop())
            expected.pop()
        assert sorted(titles(stores, user, "walnut")) == sorted(titles(stores, user, "title"))
        assert sorted(titles(stores, user, "title")) == sorted(expected)
    SearchIndex(stores.db).add_waiting()
    if stores.db.engine.dialect.name == "sqlite":
        with stores.db.writing() as db:
            db.execute(text("INSERT INTO search_index (search_index, rank) VALUES ('integrity-check', 1)"))


def _entries(stores: Stores, owner: UserScope) -> Any:
    count = text("SELECT count(*) FROM search_entries WHERE tenant_id = :t AND user_id = :u")
    with stores.db.engine.connect() as raw:
        return raw.scalar(count, {"t": owner.tenant_id, "u": owner.user_id})


def _terms(raw: Connection) -> bool:
    """Whatever words SQLite's own index still has."""
    raw.execute(text("CREATE VIRTUAL TABLE temp.search_terms USING fts5vocab(main, search_index, row)"))
    return True


HOSTILE = (
    '"',
    "'",
    '" OR "a',
    "a' | 'b",
    "NEAR(a b)",
    "a:*",
    "!a",
    "(a",
    "\\",
    "-a",
    "^a",
    "words:a",
    "a\x00b",
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(max_size=200))
@example("\ud800 lone")
@example(" ".join(HOSTILE))
@example("ა" * 200)
def test_no_query_is_an_error_and_none_is_interpreted(stores: Stores, query: str) -> None:
    nobody = UserScope(request_id="r", tenant_id="t", user_id="u")
    assert titles(stores, nobody, query) == []
    assert read(stores, nobody, lambda: stores.chats.search(nobody.within("x"), query, 5)) == []


@pytest.mark.parametrize("query", HOSTILE)
def test_operators_are_not_interpreted(stores: Stores, ann: UserScope, query: str) -> None:
    said(stores, ann, "something else", "elsewhere")
    assert titles(stores, ann, query) == []


@settings(max_examples=40)
@given(st.text(max_size=100))
def test_a_text_is_found_by_all_of_its_own_words(given: str) -> None:
    have = indexed_words("u", given).split(" ")
    for word, goes_on in asked_words("u", given):
        assert any(one.startswith(word) if goes_on else one == word for one in have)
