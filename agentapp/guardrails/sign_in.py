"""Attempts to sign in: counted by name, by browser and by address, in all workers together."""

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
from agentapp.guardrails.cell import Cell, CellPolicy, Key
from agentapp.guardrails.guard import Guardrails
from agentapp.guardrails.registry import Store
from agentapp.guardrails.wording import stamp_refusal

# Failures of a name, of a browser that has signed in with that name before, and of an address.
NAME, BROWSER, ADDRESS = "login-name", "login-browser", "login-address"
# All attempts of a name, right or wrong: each costs a hash.
ATTEMPTS = "login-attempts"
# A refusal does not say which limit it was: that is nobody's business.
SCOPE = "login"
# Many people may share an address: an office, a school.
NAMES_PER_ADDRESS = 5
# Enough for a script that signs in for each of its runs. Nobody can guess by it: failures have their limit.
ATTEMPTS_PER_FAILURE = 6
# A check takes far less than this, even in a long queue: after it, the worker must have died.
CHECK_LEASE_SECONDS = 120.0
# Of each process. So few that the attempts under way stay below any sensible limit.
CHECKS_AT_ONCE = 2
GATE_WAIT_SECONDS = 10.0
# If the last attempts below the limit are being checked elsewhere, their outcome is known in a moment.
PAUSE_SECONDS, PAUSES = 0.05, 20
SWEEP_EVERY = 100  # attempts in this process


Keys = tuple[Key, Key, Key]


class SignInStore(Store[Key], Protocol):
    def release(self) -> None:
        """Give back the connection that looking took: a long wait may follow."""

    def forget(self, scopes: Sequence[str], before: float) -> None:
        """Remove the cells of these scopes that were not changed since then."""


class SignIns:
    """An attempt is let in only if the limit is kept even if this attempt and all that are under way fail.

    So however many come at once, no more passwords are checked than the limit allows. And however
    many come at once with the right password, all get in, up to the limit on a name's attempts of either
    kind. A few are checked at a time, because each hash takes a whole core.
    """

    def __init__(self, guardrails: Guardrails, store: SignInStore, rate: tuple[int, float] | None) -> None:
        self._guardrails, self._store, self._rate = guardrails, store, rate
        self._gate = threading.BoundedSemaphore(CHECKS_AT_ONCE)
        self._attempts = itertools.count(1)

    @contextmanager
    def counted(self, name: str, address: str, browser: str | None = None) -> Iterator[None]:
        """Goes around the check of a password. Raises `RateLimited` before the check if there were too many
        attempts or failures. A `WrongPassword` that is raised inside counts as one more failure.

        The name is the one that the account would have. ``browser`` stands for a browser that has signed in
        with this name before: then its failures are counted instead of the name's, so that the wrong guesses
        of others do not lock the owner out. Nothing of it is stored in clear.
        """
        if self._rate is None:
            yield
            return
        guesses = Key(NAME, _digest(name)) if browser is None else Key(BROWSER, _digest(browser))
        keys = (guesses, Key(ADDRESS, _digest(network_of(address))), Key(ATTEMPTS, _digest(name)))
        self._refuse_early(keys)
        with self._few_at_once():
            since, failed = self._enter(keys), False
            try:
                yield
            except WrongPassword:
                failed = True
                raise
            finally:
                self._leave(keys, since, failed)
                self._sweep(self._rate[1])

    def _refuse_early(self, keys: Keys) -> None:
        """Without a lock and without waiting, because those who are refused may come by the thousand."""
        now = self._guardrails.clock()
        try:
            for cell in self._guardrails.registry.look(keys):
                cell.bucket.take(now)
        except RateLimited as refusal:
            raise stamp_refusal(refusal, SCOPE) from None
        self._store.release()

    @contextmanager
    def _few_at_once(self) -> Iterator[None]:
        if not self._gate.acquire(timeout=GATE_WAIT_SECONDS):
            raise stamp_refusal(Busy(limit=CHECKS_AT_ONCE, used=CHECKS_AT_ONCE, retry_after=1.0), SCOPE)
        try:
            yield
        finally:
            self._gate.release()

    def _enter(self, keys: Keys) -> float:
        """The time to pass to `_leave`."""
        for _ in range(PAUSES):
            try:
                return self._try_to_enter(keys)
            except Busy:
                time.sleep(PAUSE_SECONDS)
        return self._try_to_enter(keys)

    def _try_to_enter(self, keys: Keys) -> float:
        entered_at: list[float] = []

        def change(cells: tuple[Cell, ...]) -> list[Cell]:
            entered_at.append(self._guardrails.clock())  # only now, because waiting for the rows takes time
            return _entered(cells, entered_at[-1])

        try:
            with self._store.transaction() as rows:
                after = self._guardrails.registry.change(rows, keys, change)
        except GuardrailRefused as refusal:
            raise stamp_refusal(refusal, SCOPE) from None
        return after[0].bulkhead.holds.hold(0, entered_at[-1]).start

    def _leave(self, keys: Keys, since: float, failed: bool) -> None:
        def change(cells: tuple[Cell, ...]) -> list[Cell]:
            now = self._guardrails.clock()
            *guarded, attempts = cells
            return [*(_left(cell, since, failed, now) for cell in guarded), attempts]

        with self._store.transaction() as rows:
            self._guardrails.registry.change(rows, keys, change)

    def _sweep(self, seconds: float) -> None:
        """Anybody can type any name, so rows that are too old to count must not stay."""
        if next(self._attempts) % SWEEP_EVERY == 0:
            before = self._guardrails.clock() - 2 * max(seconds, CHECK_LEASE_SECONDS)
            self._store.forget((NAME, BROWSER, ADDRESS, ATTEMPTS), before)


def sign_in_policies(rate: Rate | None) -> dict[str, CellPolicy]:
    def policy(times: int) -> CellPolicy:
        wider = Rate(rate.count * times, rate.seconds) if rate else None
        return CellPolicy(rate=wider, lease=CHECK_LEASE_SECONDS)

    return {
        NAME: policy(1),
        BROWSER: policy(1),
        ADDRESS: policy(NAMES_PER_ADDRESS),
        ATTEMPTS: policy(ATTEMPTS_PER_FAILURE),
    }


def keys_of_name(name: str) -> tuple[Key, ...]:
    """The cells of attempts to sign in with this name. Those of its browsers cannot be found by anybody who
    has not the browser's cookie; those of addresses belong to everybody there.
    """
    return Key(NAME, _digest(name)), Key(ATTEMPTS, _digest(name))


def network_of(address: str) -> str:
    """What counts as one address. For IPv6 it is the network, because each one has billions of addresses."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((int(ip), 64), strict=False))


def _entered(cells: tuple[Cell, ...], now: float) -> list[Cell]:
    *guarded, attempts = cells
    for cell in guarded:
        cell.bucket.take(now)  # Only for its refusal: whether this attempt fails is not known yet.
    attempts = replace(attempts, bucket=attempts.bucket.take(now))
    for cell in guarded:
        under_way, rate = cell.bulkhead.holds.count(now), cell.bucket.rate
        if rate is not None and cell.bucket.used(now) + under_way >= rate.count:
            raise Busy(limit=rate.count, used=under_way, retry_after=1.0)
    return [*(replace(cell, bulkhead=cell.bulkhead.enter(now)) for cell in guarded), attempts]


def _left(cell: Cell, since: float, failed: bool, now: float) -> Cell:
    cell = replace(cell, bulkhead=cell.bulkhead.leave(since, now))
    try:
        return replace(cell, bucket=cell.bucket.take(now)) if failed else cell
    except RateLimited:  # This check took longer than its lease, and others failed in the meantime.
        return cell


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
