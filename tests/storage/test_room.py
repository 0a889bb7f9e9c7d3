"""What a user keeps is counted to the byte and given back; who keeps too much, or a full disk, is refused."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text

from agentapp.errors import DiskFull, NotFound, StorageFull, StorageUnavailable
from agentapp.events import Rendered, Text, TurnResult
from agentapp.guardrails.storage_quota import StorageQuota
from agentapp.isolation import Scope, UserScope
from agentapp.storage.branches import Branches
from agentapp.storage.chats import Chats
from agentapp.storage.notes import Notes
from agentapp.storage.room import Room
from agentapp.storage.turns import SqlTurnStore
from agentapp.turns.abandoned import interrupt_abandoned
from agentapp.turns.leases import Leases
from agentapp.turns.turn import Turn
from agentapp.turns.values import NewMessage
from tests.storage.test_storage import LEASE, OVER, Stores, read, settle, stores
from tests.support.databases import only_postgresql, only_sqlite
from tests.support.full_disks import full_postgresql, full_sqlite
from tests.support.rounds import ROUNDS
from tests.support.stored_bytes import counted, kept
from tests.support.turns import store_end

__all__ = ["stores"]  # a fixture

OPERATIONS = 200 * ROUNDS
LETTERS = "aé漢🙂 \n'\"\\"


class People:
    """Users who do at random all that changes what they keep, each time something that is possible."""

    def __init__(self, stores: Stores, seed: int) -> None:
        self.stores, self.random = stores, random.Random(seed)
        self.branches = Branches(stores.db)
        self.users = [stores.user(f"user{n}-{seed}") for n in range(3)]
        self.chats: list[Scope] = [stores.chat(user) for user in self.users]
        self.turns: list[tuple[Scope, str]] = []
        self.done: dict[str, int] = {}

    def act(self) -> None:
        operations = [
            *[self.send] * 2,
            self.stop,
            self.fail,
            self.retry,
            self.edit,
            *[self.rename] * 2,
            *[self.note] * 3,
            *[self.remove_note] * 2,
            *[self.new_chat] * 2,
            self.delete_chat,
            *[self.render_again] * 2,
            self.interrupted,
            self.interrupted_and_saved_after_all,
            self.interrupted_by_the_next,
            self.refused,
        ]
        operation = self.random.choice(operations)
        if self.random.random() < 0.003:
            operation = self.delete_user
        operation()
        self.done[operation.__name__] = self.done.get(operation.__name__, 0) + 1

    def words(self, most: int = 300) -> str:
        return "x" + "".join(self.random.choices(LETTERS, k=self.random.randrange(most)))

    def chat(self) -> Scope:
        return self.random.choice(self.chats)

    def begin(self, chat: Scope, message: NewMessage, lease: Any = LEASE) -> Any:
        turn = Turn.begin(self.stores.kit(lease), chat, message)
        assert isinstance(turn, Turn)
        self.turns.append((chat, turn.id))
        turn.feed.add(Text(self.words()))
        return turn

    def send(self) -> None:
        turn = self.begin(self.chat(), NewMessage(self.words()))
        assert store_end(turn, TurnResult("completed", self.words(), "triage", rendered=self.rendered()))

    def stop(self) -> None:
        turn = self.begin(self.chat(), NewMessage(self.words()))
        assert store_end(turn, TurnResult("stopped", self.random.choice(["", self.words()]), "triage"))

    def fail(self) -> None:
        turn = self.begin(self.chat(), NewMessage(self.words()))
        failed = TurnResult("failed", "", "triage", error_code="turn-failed", error_message=self.words())
        assert store_end(turn, failed)

    def retry(self) -> None:
        if self.turns:
            chat, turn_id = self.random.choice(self.turns)
            assert settle(self.begin(chat, NewMessage(None, replaces=turn_id)))

    def edit(self) -> None:
        if self.turns:
            chat, turn_id = self.random.choice(self.turns)
            assert settle(self.begin(chat, NewMessage(self.words(), replaces=turn_id)))

    def rename(self) -> None:
        self.stores.chats.rename(self.chat(), self.words(190))

    def note(self) -> None:
        self.stores.notes.add(self.chat(), self.words())

    def remove_note(self) -> None:
        self.stores.notes.remove(self.chat(), self.random.randrange(1, 5))

    def new_chat(self) -> None:
        self.chats.append(self.stores.chat(self.random.choice(self.users)))

    def delete_chat(self) -> None:
        chat = self.chat()
        if self.random.random() < 0.5:
            self.begin(chat, NewMessage("deleted while it is answered"))
        self.stores.delete_chat(chat)
        self.forget(lambda each: each == chat)

    def render_again(self) -> None:
        self.branches.keep_html(self.chat(), {seq: self.rendered() for seq in (2, 4, 6)})

    def interrupted(self) -> None:
        chat = self.chat()
        self.begin(chat, NewMessage(self.words()), OVER)
        interrupt_abandoned(self.stores.turns, self.stores.kit().ends, chat, Leases())

    def interrupted_and_saved_after_all(self) -> None:
        chat = self.chat()
        late = self.begin(chat, NewMessage(self.words()), OVER)
        interrupt_abandoned(self.stores.turns, self.stores.kit().ends, chat, Leases())
        assert settle(late)

    def interrupted_by_the_next(self) -> None:
        chat = self.chat()
        late = self.begin(chat, NewMessage(self.words()), OVER)
        assert settle(self.begin(chat, NewMessage(self.words())))
        assert not settle(late), "it was interrupted"

    def refused(self) -> None:
        with pytest.raises(NotFound):
            self.begin(self.chat(), NewMessage(self.words(), after="no such turn"))

    def delete_user(self) -> None:
        user = self.users.pop(0)
        with self.stores.db.writing() as db:
            db.execute(text("DELETE FROM users WHERE id = :id"), {"id": user.user_id})
        self.forget(lambda each: each.user_id == user.user_id)
        self.users.append(self.stores.user(f"user{self.random.getrandbits(40)}"))
        self.new_chat()

    def forget(self, gone: Callable[[Scope], bool]) -> None:
        self.chats = [chat for chat in self.chats if not gone(chat)]
        self.turns = [(chat, turn_id) for chat, turn_id in self.turns if not gone(chat)]
        if not self.chats:
            self.new_chat()

    def rendered(self) -> Rendered | None:
        return Rendered(f"<p>{self.words()}</p>", "test")


def test_the_count_is_exact_after_many_random_operations(stores: Stores) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    people = People(stores, seed)
    most = 0
    for _ in range(OPERATIONS // 50):
        for _ in range(50):
            people.act()
        assert counted(stores.db.engine) == kept(stores.db.engine), f"seed {seed}, after {people.done}"
        most = max(most, *counted(stores.db.engine).values())
    assert most > 20_000
    assert len(people.done) >= (15 if ROUNDS > 1 else 12), f"nothing much happened: {people.done}"
    for chat in people.chats:
        stores.delete_chat(chat)
    assert counted(stores.db.engine) == {}, "all of it was given back"


def test_many_at_once_are_counted_exactly_and_never_wait_for_each_other_for_ever(stores: Stores) -> None:
    """One user's chats, in which everything happens at the same time. PostgreSQL ends a transaction that
    waits for one which waits for it, with an error.
    """
    ann, branches = stores.user("ann"), Branches(stores.db)
    chats = [stores.chat(ann) for _ in range(4)]

    def work(number: int) -> None:
        mine = chats[number % len(chats)]
        for each in range(6):
            chat = stores.chat(ann)
            stores.turn(chat, f"m{each}")
            stores.notes.add(chat, "a note")
            with ThreadPoolExecutor(3) as pool:
                jobs = [
                    pool.submit(branches.keep_html, chat, {2: Rendered("<p>again</p>", "test")}),
                    pool.submit(stores.notes.remove, chat, 1),
                    pool.submit(stores.delete_chat, chat),
                ]
            for job in jobs:
                job.result()
            stores.notes.add(mine, "a note")
            stores.chats.rename(mine, f"title {each}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert counted(stores.db.engine) == kept(stores.db.engine)


class Limited:
    """The stores with quotas, and enough to begin turns."""

    def __init__(self, stores: Stores, quota: StorageQuota) -> None:
        self.room = Room(stores.db, quota)
        self.chats, self.notes = Chats(stores.db, self.room), Notes(stores.db, self.room)
        stores.turns = SqlTurnStore(stores.db, stores.cells, self.room)
        stores.chats, stores.notes = self.chats, self.notes


def fill(stores: Stores, user: UserScope, size: int) -> Scope:
    """A chat of the user with that many bytes in it."""
    chat = stores.chat(user)
    stores.turn(chat, "x" * size)
    return chat


def test_a_full_quota_refuses_what_would_be_kept_and_nothing_else(stores: Stores) -> None:
    Limited(stores, StorageQuota(user=20_000))
    ann, bob = stores.user("ann"), stores.user("bob")
    full = fill(stores, ann, 30_000)
    calls = counted(stores.db.engine)
    for kept_more in (
        lambda: stores.begin(full, "more"),
        lambda: stores.chat(ann),
        lambda: stores.notes.add(full, "a note"),
        lambda: stores.chats.rename(full, "another title"),
    ):
        with pytest.raises(StorageFull, match=r"Your chats take 0 MB, and 0 MB is the limit\."):
            kept_more()
    assert counted(stores.db.engine) == calls, "nothing was written"
    assert stores.held(full)["user"] == (0, 0), "nothing was reserved"
    assert not stores.notes.remove(full, 1)
    read(stores, full, lambda: stores.chats.transcript(full))
    fill(stores, bob, 10)  # somebody else
    stores.delete_chat(full)
    fill(stores, ann, 10)  # there is room again


def test_a_message_sent_again_is_answered_though_the_quota_is_full_by_now(stores: Stores) -> None:
    Limited(stores, StorageQuota(user=20_000))
    chat = stores.chat(stores.user("ann"))
    turn = stores.begin(chat, "x" * 30_000, "key")
    assert settle(turn, "y" * 30_000), "an answer that is paid for is stored whole"
    assert stores.begin(chat, "x" * 30_000, "key").turn_id == turn.id


def test_a_full_tenant_refuses_all_its_users_and_nobody_elses(stores: Stores) -> None:
    Limited(stores, StorageQuota(tenant=20_000))
    ann, bob = stores.user("ann", "acme"), stores.user("bob", "acme")
    eve = stores.user("eve", "elsewhere")
    full = fill(stores, ann, 30_000)
    with pytest.raises(StorageFull, match="The chats of your organisation take") as refusal:
        stores.chat(bob)
    assert (refusal.value.scope, refusal.value.limit) == ("tenant", 20_000)
    assert refusal.value.used == kept(stores.db.engine)[ann.user_id]
    fill(stores, eve, 10)
    stores.delete_chat(full)
    fill(stores, bob, 10)


@only_sqlite
def test_a_nearly_full_disk_refuses_what_is_new_and_says_so_once(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    chat = fill(stores, stores.user("ann"), 10)
    running = stores.begin(chat, "before")
    monkeypatch.setattr(stores.db.disk, "_reserve", 64_000_000)
    monkeypatch.setattr(os, "statvfs", lambda file: SimpleNamespace(f_bavail=15_624, f_frsize=4096))
    other = chat.within(chat.session_id)
    with caplog.at_level(logging.ERROR):
        for refused in (
            lambda: stores.chat(chat),
            lambda: stores.notes.add(other, "a note"),
            lambda: stores.chats.rename(other, "another title"),
            lambda: Branches(stores.db).keep_html(other, {2: Rendered("<p></p>", "test")}),
        ):
            with pytest.raises(DiskFull):
                refused()
    assert [record.message for record in caplog.records] == [
        "the disk of the database is full, nothing new is begun:"
        " 63,995,904 bytes are free, and 64,000,000 are kept in reserve"
    ]
    assert settle(running), "what has begun is stored"
    with pytest.raises(StorageUnavailable):
        stores.begin(chat, "after")
    monkeypatch.setattr(os, "statvfs", lambda file: SimpleNamespace(f_bavail=15_625, f_frsize=4096))
    stores.turn(chat, "there is room again")
    stores.delete_chat(chat)


@only_sqlite
def test_sqlite_without_room_is_a_full_disk_and_a_rolled_back_transaction(stores: Stores) -> None:
    chat = fill(stores, stores.user("ann"), 10)
    before = kept(stores.db.engine)
    with full_sqlite(stores.db), pytest.raises(DiskFull):
        stores.begin(chat, "x" * 100_000)
    assert kept(stores.db.engine) == counted(stores.db.engine) == before
    stores.turn(chat, "x" * 100_000)


@only_postgresql
def test_postgresql_without_room_is_a_full_disk_too(stores: Stores) -> None:
    chat = fill(stores, stores.user("ann"), 10)
    before = kept(stores.db.engine)
    with full_postgresql(stores.db), pytest.raises(DiskFull):
        stores.begin(chat, "hello")
    assert kept(stores.db.engine) == counted(stores.db.engine) == before
    stores.turn(chat, "hello")
