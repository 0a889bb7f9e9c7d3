"""Failed attempts to sign in: counted by name and by address, in all workers together."""

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

NAME, ADDRESS = "login-name", "login-address"
# A refusal does not say whether it was for the name or for the address: that is nobody's business.
SCOPE = "login"
# Many people may share an address: an office, a school.
NAMES_PER_ADDRESS = 5
# A check takes far less than this, even in a long queue: after it, the worker must have died.
CHECK_LEASE_SECONDS = 120.0
# Of each process. So few that the attempts under way stay below any sensible limit.
CHECKS_AT_ONCE = 2
GATE_WAIT_SECONDS = 10.0
# If the last attempts below the limit are being checked elsewhere, their outcome is known in a moment.
PAUSE_SECONDS, PAUSES = 0.05, 20
SWEEP_EVERY = 100  # failed attempts in this process


class SignInStore(Store[Key], Protocol):
    def forget(self, scopes: Sequence[str], before: float) -> None:
        """Remove the cells of these scopes that were not changed since then."""


class SignIns:
    """An attempt is let in only if the limit is kept even if this attempt and all that are under way fail.

    So however many come at once, no more passwords are checked than the limit allows. And however
    many come at once with the right password, all get in. A few are checked at a time, because each
    hash takes a whole core.
    """

    def __init__(self, guardrails: Guardrails, store: SignInStore, rate: tuple[int, float] | None) -> None:
        self._guardrails, self._store, self._rate = guardrails, store, rate
        self._gate = threading.BoundedSemaphore(CHECKS_AT_ONCE)
        self._failures = itertools.count()

    @contextmanager
    def counted(self, name: str, address: str) -> Iterator[None]:
        """Goes around the check of a password. Raises `RateLimited` before the check if there were too many
        failures. A `WrongPassword` that is raised inside counts as one more failure.

        The name is the one that the account would have. Neither name nor address is stored in clear.
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
        if not self._gate.acquire(timeout=GATE_WAIT_SECONDS):
            raise stamp_refusal(Busy(limit=CHECKS_AT_ONCE, used=CHECKS_AT_ONCE, retry_after=1.0), SCOPE)
        try:
            yield
        finally:
            self._gate.release()

    def _enter(self, keys: tuple[Key, Key]) -> float:
        """The time to pass to `_leave`."""
        for _ in range(PAUSES):
            try:
                return self._try_to_enter(keys)
            except Busy:
                time.sleep(PAUSE_SECONDS)
        return self._try_to_enter(keys)

    def _try_to_enter(self, keys: tuple[Key, Key]) -> float:
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

    def _leave(self, keys: tuple[Key, Key], since: float, failed: bool) -> None:
        def change(cells: tuple[Cell, ...]) -> list[Cell]:
            now = self._guardrails.clock()
            return [_left(cell, since, failed, now) for cell in cells]

        with self._store.transaction() as rows:
            self._guardrails.registry.change(rows, keys, change)

    def _sweep(self, seconds: float) -> None:
        """Anybody can type any name, so rows that are too old to count must not stay."""
        if next(self._failures) % SWEEP_EVERY == 0:
            before = time.time() - 2 * max(seconds, CHECK_LEASE_SECONDS)
            self._store.forget((NAME, ADDRESS), before)


def sign_in_policies(rate: Rate | None) -> dict[str, CellPolicy]:
    wider = Rate(rate.count * NAMES_PER_ADDRESS, rate.seconds) if rate else None
    return {
        NAME: CellPolicy(rate=rate, lease=CHECK_LEASE_SECONDS),
        ADDRESS: CellPolicy(rate=wider, lease=CHECK_LEASE_SECONDS),
    }


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
    for cell in cells:
        cell.bucket.take(now)  # Only for its refusal: whether this attempt fails is not known yet.
    for cell in cells:
        under_way, rate = cell.bulkhead.holds.count(now), cell.bucket.rate
        if rate is not None and cell.bucket.used(now) + under_way >= rate.count:
            raise Busy(limit=rate.count, used=under_way, retry_after=1.0)
    return [replace(cell, bulkhead=cell.bulkhead.enter(now)) for cell in cells]


def _left(cell: Cell, since: float, failed: bool, now: float) -> Cell:
    cell = replace(cell, bulkhead=cell.bulkhead.leave(since, now))
    try:
        return replace(cell, bucket=cell.bucket.take(now)) if failed else cell
    except RateLimited:  # This check took longer than its lease, and others failed in the meantime.
        return cell


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
