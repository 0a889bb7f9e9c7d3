"""Seats in shared memory: counted over all workers, in real processes too; those of a killed one are free."""

from __future__ import annotations

import mmap
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from agentapp.guardrails.seats import (
    FOLLOWER,
    NO_KEY,
    PAGE,
    TURN,
    Layout,
    Seats,
    clear_row,
    key_of,
    make_memory,
)

ANN, BOB = key_of("user", "ann"), key_of("user", "bob")
ACME, OTHER = key_of("tenant", "acme"), key_of("tenant", "other")


def joined(memory: mmap.mmap, row: int) -> Seats:
    seats = Seats(1)
    assert seats.join(memory, row)
    return seats


@pytest.fixture
def memory() -> mmap.mmap:
    return make_memory(rows=4, width=8)


def test_seats_are_counted_by_user_tenant_and_kind() -> None:
    seats = Seats(4)
    first, second = seats.take(TURN, ANN, ACME), seats.take(FOLLOWER, ANN, ACME)
    third = seats.take(PAGE, BOB)
    assert (seats.count_user(ANN), seats.count_user(BOB), seats.count_tenant_here(ACME)) == (2, 1, 2)
    assert (seats.count_here(TURN, FOLLOWER), seats.count_here(PAGE)) == (2, 1)
    assert [seats.count_tenant_kind_here(ACME, kind) for kind in (PAGE, TURN, FOLLOWER)] == [0, 1, 1]
    assert seats.count_tenant_kind_here(OTHER, TURN) == 0
    for number in (first, second, third):
        assert number is not None
        seats.release(number)
    assert (seats.count_user(ANN), seats.count_user(BOB), seats.count_tenant_here(ACME)) == (0, 0, 0)
    assert seats.count_here(PAGE, TURN, FOLLOWER) == 0


def test_when_all_seats_of_a_row_are_taken_there_is_none() -> None:
    seats = Seats(3)
    numbers = [seats.take(PAGE, ANN) for _ in range(3)]
    assert seats.take(PAGE, BOB) is None
    seats.release(numbers[1] or 0)
    assert seats.take(PAGE, BOB) == numbers[1]


def test_workers_see_each_others_seats_and_take_only_their_own(memory: mmap.mmap) -> None:
    one, two = joined(memory, 0), joined(memory, 2)
    for _ in range(8):
        one.take(FOLLOWER, ANN, ACME)
    two.take(FOLLOWER, ANN, ACME)
    assert one.take(FOLLOWER, ANN, ACME) is None
    assert one.count_user(ANN) == two.count_user(ANN) == 9
    two.take(TURN, BOB, ACME)
    assert (one.count_tenant_here(ACME), two.count_tenant_here(ACME)) == (8, 2)
    kinds = [
        (seats.count_tenant_kind_here(ACME, TURN), seats.count_tenant_kind_here(ACME, FOLLOWER))
        for seats in (one, two)
    ]
    assert kinds == [(0, 8), (1, 1)], "also in a row that is not the first"
    assert len({seat.number for seat in two.seats_of(ANN)}) == 9


def test_the_row_of_a_worker_that_has_ended_is_empty(memory: mmap.mmap) -> None:
    one, two = joined(memory, 0), joined(memory, 1)
    one.take(TURN, ANN, ACME)
    two.take(TURN, ANN, ACME)
    two.take(PAGE, BOB)
    clear_row(memory, 1)
    assert (one.count_user(ANN), one.count_user(BOB)) == (1, 0)
    assert not one.others_want(ACME, 60)
    assert joined(memory, 1).count_here(PAGE, TURN, FOLLOWER) == 0


def test_workers_know_how_many_connections_the_one_with_the_fewest_has(memory: mmap.mmap) -> None:
    one, two = joined(memory, 0), joined(memory, 2)  # no worker has the row between them
    one.note_connections(70_000)
    two.note_connections(3)
    assert one.fewest_connections() == two.fewest_connections() == 3
    clear_row(memory, 2)
    assert one.fewest_connections() == 70_000, "that one has ended"
    joined(memory, 2)
    assert one.fewest_connections() == 0


def test_a_new_worker_begins_with_an_empty_row(memory: mmap.mmap) -> None:
    joined(memory, 1).take(TURN, ANN, ACME)
    assert joined(memory, 1).count_user(ANN) == 0


@pytest.mark.parametrize("spoil", ["mark", "row"])
def test_memory_that_cannot_be_used_is_left_alone(memory: mmap.mmap, spoil: str) -> None:
    """As when new code, after SIGHUP, finds the memory of old code; or when there are too many workers."""
    seats, row = Seats(5), 0
    if spoil == "mark":
        memory[0] ^= 1
    else:
        row = 4
    before = memory[:]
    assert not seats.join(memory, row)
    clear_row(memory, 4)
    assert memory[:] == before
    assert seats.take(PAGE, ANN) is not None
    assert seats.count_user(ANN) == 1


def test_a_seat_that_is_displaced_is_that_taking_and_no_later_one(memory: mmap.mmap) -> None:
    """The seat may be released, and taken by somebody else, before the other worker has marked it."""
    one, two = joined(memory, 0), joined(memory, 1)
    number = one.take(FOLLOWER, ANN, ACME) or 0
    opened = one.opened(number)
    (seen,) = two.seats_of(ANN)
    two.displace(seen)
    assert one.is_displaced(number, opened)
    one.release(number)
    assert one.take(FOLLOWER, BOB, OTHER) == number
    assert not one.is_displaced(number, one.opened(number))
    two.displace(seen)
    assert not one.is_displaced(number, one.opened(number))
    assert [seat.gives_way for seat in one.seats_of(BOB)] == [False]


def test_others_want_a_seat_while_they_have_one_and_a_while_after_they_asked(memory: mmap.mmap) -> None:
    one, two = joined(memory, 0), joined(memory, 1)
    assert not one.others_want(ACME, 60)
    one.note_asking(ACME)
    assert not one.others_want(ACME, 60)
    assert two.others_want(OTHER, 60)
    two.note_asking(OTHER)
    for _ in range(3):
        two.note_asking(ACME)  # does not hide that another asked before
    assert one.others_want(ACME, 60)
    assert not one.others_want(ACME, 0)
    number = two.take(TURN, BOB, OTHER) or 0
    assert one.others_want(ACME, 0)
    two.release(number)
    assert not one.others_want(ACME, 0)


def test_no_column_overlaps_another() -> None:
    for rows, width in ((1, 1), (3, 5), (16, 512)):
        layout = Layout(rows, width)
        starts = [layout.in_use, layout.asked, layout.connections, layout.opened, layout.displaced]
        starts += [layout.users, layout.tenants, layout.kinds, layout.size]
        needed = [
            rows,
            rows * 48,
            rows * 8,
            layout.seats * 8,
            layout.seats * 8,
            layout.seats * 16,
            layout.seats * 16,
        ]
        needed += [layout.seats]
        for start, end, bytes_ in zip(starts[:-1], starts[1:], needed, strict=True):
            assert end - start >= bytes_
        assert [start % 8 for start in starts[1:5]] == [0, 0, 0, 0]


def test_no_byte_of_a_key_is_that_of_a_free_seat() -> None:
    keys = {key_of(kind, str(n)) for kind in ("pages", "streams") for n in range(2000)}
    assert len(keys) == 4000
    assert not any(0 in key for key in keys)
    assert NO_KEY not in keys


@contextmanager
def forked(job: Callable[[], None]) -> Iterator[int]:
    """Another process, which does this and is killed at the end at the latest."""
    pid = os.fork()
    if pid == 0:
        try:
            job()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_the_seats_of_a_killed_process_count_until_its_row_is_cleared(memory: mmap.mmap) -> None:
    one = joined(memory, 1)
    read, write = os.pipe()

    def take() -> None:
        two = joined(memory, 0)
        for _ in range(3):
            two.take(FOLLOWER, ANN, ACME)
        os.write(write, b"x")
        threading.Event().wait(60)

    with forked(take):
        os.read(read, 1)
        assert one.count_user(ANN) == 3
    clear_row(memory, 0)
    assert one.count_user(ANN) == 0
    os.close(read)
    os.close(write)


def test_two_processes_that_take_and_count_at_once_never_have_too_many(memory: mmap.mmap) -> None:
    """Each takes a seat, counts, and keeps it only if there is no other: never may both keep one."""
    rounds = 3_000
    kept = mmap.mmap(-1, 8)  # one byte for each process: whether it keeps a seat now
    wrong = mmap.mmap(-1, 8)

    def compete(row: int) -> None:
        seats = joined(memory, row)
        for _ in range(rounds):
            number = seats.take(TURN, ANN, ACME) or row * 8
            if seats.count_user(ANN) <= 1:
                kept[row] = 1
                if kept[1 - row]:
                    wrong[0] = 1
                kept[row] = 0
            seats.release(number)

    joined(memory, 1)
    pid = os.fork()
    if pid == 0:
        compete(1)
        os._exit(0)
    compete(0)
    os.waitpid(pid, 0)
    assert not wrong[0]
