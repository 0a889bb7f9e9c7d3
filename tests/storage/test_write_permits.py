"""Who may write next."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from agentapp.errors import StorageUnavailable
from agentapp.storage.write_permits import Shares, WritePermits
from tests.support.server_users import wait_for


def test_who_is_urgent_goes_before_all_who_wait() -> None:
    permits, order = WritePermits(1), list[str]()

    def write(name: str, urgent: bool) -> None:
        with permits.held(20, urgent=urgent):
            order.append(name)

    threads = [threading.Thread(target=write, args=(f"{n}", False)) for n in range(8)]
    last = threading.Thread(target=write, args=("urgent", True))
    with permits.held(1):
        for thread in threads:
            thread.start()
        wait_for(lambda: waiting(permits) == len(threads))
        last.start()
        wait_for(lambda: waiting(permits) == len(threads) + 1)
    for thread in (*threads, last):
        thread.join(20)
    assert order[0] == "urgent"
    assert sorted(order[1:]) == [f"{n}" for n in range(8)], "and nobody is forgotten"


def waiting(permits: WritePermits) -> int:
    conditions: tuple[Any, ...] = (permits._changed, permits._changed_for_urgent)
    return sum(len(condition._waiters) for condition in conditions)


@pytest.mark.parametrize("urgent", [True, False])
def test_who_waited_in_vain_is_told_so_and_holds_up_nobody(urgent: bool) -> None:
    permits = WritePermits(2)
    held = permits.held(1), permits.held(1, urgent=True)
    with held[0], held[1], pytest.raises(StorageUnavailable), permits.held(0.01, urgent=urgent):
        pass
    for _ in range(3):
        with permits.held(0, urgent=urgent), permits.held(0):
            pass


def test_a_permit_is_free_again_after_an_error() -> None:
    permits = WritePermits(1)
    with pytest.raises(ZeroDivisionError), permits.held(0):
        raise ZeroDivisionError
    with permits.held(0):
        pass


def test_who_has_all_of_a_share_keeps_out_only_more_of_the_same() -> None:
    shares = Shares(2)
    with shares.held("a", 1), shares.held("a", 1):
        with pytest.raises(StorageUnavailable), shares.held("a", 0.01):
            pass
        with shares.held("b", 0):
            assert len(shares) == 2
    with pytest.raises(ZeroDivisionError), shares.held("a", 0):
        raise ZeroDivisionError
    with shares.held("a", 0), shares.held("a", 0):
        pass
    assert len(shares) == 0, "and nothing is kept of those who have gone"
