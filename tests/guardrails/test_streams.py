"""Stream slots: shared out among kinds and tenants in a worker, and among a user's streams in all workers."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field

import pytest

from agentapp.errors import Busy
from agentapp.guardrails.seats import Seats, make_memory
from agentapp.guardrails.streams import StreamSlot, StreamSlots


@dataclass
class Server:
    """The slots of two workers, and everything that was taken of them."""

    total: int = 80
    per_user: int | None = 4
    workers: list[StreamSlots] = field(default_factory=list)

    def __post_init__(self) -> None:
        memory = make_memory(rows=2, width=self.total)
        for row in (0, 1):
            seats = Seats(1)
            assert seats.join(memory, row)
            self.workers.append(StreamSlots(seats, self.total, 0, self.per_user))

    def follow(self, user: str, tenant: str = "acme", worker: int = 0) -> StreamSlot:
        return self.workers[worker].take_for_follower(user, tenant)

    def send(self, user: str, tenant: str = "acme", worker: int = 0) -> StreamSlot:
        return self.workers[worker].take_for_turn(user, tenant)


def refusal_of(take: object, *args: object, **named: object) -> tuple[str, int]:
    with pytest.raises(Busy) as refusal:
        take(*args, **named)  # type: ignore[operator]
    assert refusal.value.retry_after > 0
    return refusal.value.scope, refusal.value.limit


def giving_way(slots: list[StreamSlot]) -> list[int]:
    return [place for place, slot in enumerate(slots) if slot.must_give_way]


def test_the_oldest_stream_of_a_user_gives_way_wherever_it_is_and_no_other() -> None:
    server = Server()
    others = [server.follow("bob", worker=n % 2) for n in range(4)]
    hers = [server.follow("ann", worker=n % 2) for n in range(4)]
    assert giving_way(hers) == []
    assert not any(slot.displaced_others for slot in hers)
    hers.append(server.follow("ann", worker=1))
    assert (giving_way(hers), hers[-1].displaced_others) == ([0], True)
    hers.append(server.follow("ann", worker=0))
    assert giving_way(hers) == [0, 1]
    assert giving_way(others) == []


def test_one_that_gives_way_and_has_not_ended_yet_is_not_counted() -> None:
    server = Server()
    hers = [server.follow("ann") for _ in range(5)]
    assert giving_way(hers) == [0]
    hers[0].release()
    hers.append(server.follow("ann"))
    assert giving_way(hers[1:]) == [0]


def test_who_opens_streams_faster_than_they_end_is_refused() -> None:
    server = Server()
    hers = [server.follow("ann") for _ in range(8)]
    assert refusal_of(server.follow, "ann") == ("streams", 4)
    assert len(giving_way(hers)) == 4
    hers[0].release()
    server.follow("ann")


def test_a_message_makes_a_follower_give_way_but_never_another_message() -> None:
    server = Server()
    sent = [server.send("ann") for _ in range(3)]
    follower = server.follow("ann")
    sent.append(server.send("ann", worker=1))
    assert giving_way([follower, *sent]) == [0]
    follower.release()
    assert refusal_of(server.send, "ann") == ("streams", 4)
    assert refusal_of(server.follow, "ann") == ("streams", 4)
    assert giving_way(sent) == []
    assert server.workers[0].taken() + server.workers[1].taken() == 4, "a refusal keeps nothing"


def test_a_slot_that_somebody_else_has_taken_meanwhile_does_not_give_way() -> None:
    server = Server(per_user=1)
    first = server.follow("ann")
    second = server.follow("ann", worker=1)
    assert first.must_give_way
    first.release()
    assert not server.follow("bob").must_give_way
    assert not second.must_give_way


def test_followers_take_half_and_messages_leave_an_eighth() -> None:
    server = Server(per_user=None)
    followers = [server.follow(f"user {n}", f"tenant {n}") for n in range(40)]
    assert refusal_of(server.follow, "late", "late") == ("server", 80)
    sent = [server.send(f"user {n}", f"tenant {n}") for n in range(40)]
    assert refusal_of(server.send, "late", "late") == ("server", 80)
    for slot in followers:
        slot.release()
    sent += [server.send(f"more {n}", f"tenant {n}") for n in range(30)]
    assert refusal_of(server.send, "late", "late") == ("server", 80)
    followers = [server.follow(f"user {n}", f"tenant {n}") for n in range(10)]
    assert server.workers[0].taken() == 80
    assert server.follow("late", "late", worker=1).must_give_way is False


def test_a_tenant_leaves_an_eighth_to_a_first_one_of_another_and_half_when_others_want_some() -> None:
    server = Server(per_user=None)
    held = [server.send(f"user {n}") for n in range(40)]
    held += [server.follow(f"user {n}") for n in range(30)]
    assert refusal_of(server.follow, "user") == ("tenant", 70)
    first = server.follow("first", "other")
    assert refusal_of(server.follow, "user") == ("tenant", 40)
    first.release()
    assert refusal_of(server.follow, "user") == ("tenant", 40), "it asked a moment ago"
    for slot in (*held[:20], *held[-11:]):
        slot.release()
    held.append(server.follow("user"))
    assert refusal_of(server.follow, "user") == ("tenant", 40)
    assert giving_way(held) == []


@pytest.mark.parametrize(("ask", "most"), [("follow", 20), ("send", 35)])
def test_of_each_kind_too_a_tenant_leaves_half_to_others_who_want_some(ask: str, most: int) -> None:
    """Of 80 slots 40 are for followers, as many as half of all."""
    server = Server(per_user=None)
    other = server.send("first", "other", worker=1)
    take = getattr(server, ask)
    held = [take(f"user {n}") for n in range(most)]
    assert refusal_of(take, "user") == ("tenant", most)
    held += [take(f"other {n}", "other") for n in range(most)]
    assert giving_way([other, *held]) == []


@pytest.mark.parametrize(("ask", "most"), [("follow", 35), ("send", 62)])
def test_of_each_kind_too_a_tenant_leaves_an_eighth_to_a_first_one_of_another(ask: str, most: int) -> None:
    server = Server(per_user=None)
    take = getattr(server, ask)
    held = [take(f"user {n}") for n in range(most)]
    assert refusal_of(take, "user") == ("tenant", most)
    held.append(take("first", "other"))
    assert giving_way(held) == []


def test_another_tenant_that_asks_at_another_worker_counts_too() -> None:
    server = Server(per_user=None)
    other = server.follow("first", "other", worker=1)
    held = [server.send(f"user {n}") for n in range(35)]
    assert refusal_of(server.send, "user") == ("tenant", 35)
    assert len(held) == 35
    assert not other.must_give_way


def test_a_worker_of_one_slot_serves_one_of_any_kind_and_tenant() -> None:
    server = Server(total=1)
    for tenant in ("acme", "other"):
        server.send("ann", tenant).release()
        server.follow("ann", tenant).release()
    held = server.send("ann")
    assert refusal_of(server.send, "bob", "other") == ("server", 1)
    held.release()


def test_a_slot_that_is_dropped_is_released_when_it_is_collected() -> None:
    server = Server()
    slot = server.follow("ann")
    assert server.workers[0].taken() == 1
    slot.release()
    slot.release()
    kept = server.follow("ann")
    del slot
    gc.collect()
    assert server.workers[0].taken() == 1
    del kept
    gc.collect()
    assert server.workers[0].taken() == 0
