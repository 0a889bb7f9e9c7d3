"""Failed tries to sign in: counted by name and by address, in all workers together."""

from __future__ import annotations

import hashlib
import ipaddress
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

from agentapp.errors import Busy, GuardrailRefused, RateLimited, WrongPassword
from agentapp.guardrails.bucket import Rate
from agentapp.guardrails.cell import Cell, Key, Terms
from agentapp.guardrails.guard import Guardrails
from agentapp.guardrails.registry import Store
from agentapp.guardrails.wording import explained

NAME, ADDRESS = "login-name", "login-address"
# Many people may share an address: an office, a school.
NAMES_AT_AN_ADDRESS = 5
LEASE = 120.0  # a check takes far less, even in a long queue: after this its worker is dead
AT_ONCE = 2  # of each process: few enough that the tries under way leave room below any sensible limit
PATIENCE = 10.0
# While the last tries before the limit are under way elsewhere: what becomes of them is known in a moment.
PAUSE, PAUSES = 0.05, 20
SWEEP_EVERY = 100  # failed tries of this process


class SignInStore(Store[Key], Protocol):
    def forget(self, scopes: Sequence[str], before: float) -> None:
        """Remove the cells of these scopes that were not changed since then."""


class SignIns:
    """A try is let in only if, should it and all that are under way fail, the limit would still be kept.

    So however many come at once, no more passwords are checked than the limit says; and however
    many come at once with the right one, all get in, a few at a time: hashing takes a core each.
    """

    def __init__(self, guardrails: Guardrails, store: SignInStore, rate: tuple[int, float] | None) -> None:
        self._guardrails, self._store, self._rate = guardrails, store, rate
        self._gate = threading.BoundedSemaphore(AT_ONCE)
        self._failures = itertools.count()

    @contextmanager
    def counted(self, name: str, address: str) -> Iterator[None]:
        """Around the check of a password. Raises `RateLimited` before it if there were too many failures;
        whoever meets `WrongPassword` inside has failed once more.

        The name is the one the account would have. Neither is kept in clear.
        """
        if self._rate is None:
            yield
            return
        keys = (Key(NAME, _digest(name)), Key(ADDRESS, _digest(network_of(address))))
        with self._few_at_once():
            since, failed = self._enter(keys), False
            try:
                yield
            except WrongPassword:
                failed = True
                raise
            finally:
                self._leave(keys, since, failed)
                if failed:
                    self._sweep(self._rate[1])

    @contextmanager
    def _few_at_once(self) -> Iterator[None]:
        if not self._gate.acquire(timeout=PATIENCE):
            raise _told(Busy(limit=AT_ONCE, used=AT_ONCE, retry_after=1.0))
        try:
            yield
        finally:
            self._gate.release()

    def _enter(self, keys: tuple[Key, Key]) -> float:
        """The moment to leave with."""
        for _ in range(PAUSES):
            try:
                return self._try_to_enter(keys)
            except Busy:
                time.sleep(PAUSE)
        return self._try_to_enter(keys)

    def _try_to_enter(self, keys: tuple[Key, Key]) -> float:
        let_in: list[float] = []

        def change(cells: tuple[Cell, ...]) -> list[Cell]:
            let_in.append(self._guardrails.clock())  # not before the rows were there: one may have to wait
            return _entered(cells, let_in[-1])

        try:
            with self._store.transaction() as rows:
                after = self._guardrails.registry.change(rows, keys, change)
        except GuardrailRefused as refusal:
            raise _told(refusal) from None
        return after[0].room.holds.hold(0, let_in[-1]).start

    def _leave(self, keys: tuple[Key, Key], since: float, failed: bool) -> None:
        def change(cells: tuple[Cell, ...]) -> list[Cell]:
            now = self._guardrails.clock()
            return [_left(cell, since, failed, now) for cell in cells]

        with self._store.transaction() as rows:
            self._guardrails.registry.change(rows, keys, change)

    def _sweep(self, seconds: float) -> None:
        """Anybody can type any name: what is too old to count must not stay."""
        if next(self._failures) % SWEEP_EVERY == 0:
            self._store.forget((NAME, ADDRESS), time.time() - 2 * max(seconds, LEASE))


def sign_in_terms(rate: Rate | None) -> dict[str, Terms]:
    wider = Rate(rate.count * NAMES_AT_AN_ADDRESS, rate.seconds) if rate else None
    return {NAME: Terms(rate=rate, lease=LEASE), ADDRESS: Terms(rate=wider, lease=LEASE)}


def network_of(address: str) -> str:
    """What counts as one address. Of IPv6 it is the network: everybody there has billions of addresses."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((int(ip), 64), strict=False))


def _entered(cells: tuple[Cell, ...], now: float) -> list[Cell]:
    for cell in cells:
        cell.bucket.take(now)  # for its refusal only: whether this try fails is not known yet
    for cell in cells:
        under_way, rate = cell.room.holds.count(now), cell.bucket.rate
        if rate is not None and cell.bucket.used(now) + under_way >= rate.count:
            raise Busy(limit=rate.count, used=under_way, retry_after=1.0)
    return [replace(cell, room=cell.room.enter(now)) for cell in cells]


def _told(refusal: GuardrailRefused) -> GuardrailRefused:
    refusal.scope = "login"  # whether it is the name or the address is nobody's business
    refusal.args = (explained(refusal),)
    return refusal


def _left(cell: Cell, since: float, failed: bool, now: float) -> Cell:
    room = cell.room.leave(since, now)
    try:
        return replace(cell, room=room, bucket=cell.bucket.take(now) if failed else cell.bucket)
    except RateLimited:  # others failed more often since, because this took longer than its lease
        return replace(cell, room=room)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
