"""The limits of users and tenants as an admin sees and changes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from agentapp.errors import BadRequest, NotFound
from agentapp.guardrails.cell import Cell, Cells, Key
from agentapp.guardrails.limit_changes import LIMITS, LimitInForce, changed_limits, limits_in_force
from agentapp.guardrails.registry import Registry, Rows, Store
from agentapp.isolation import RequestScope

AS_SET_BY_SERVER = "server"  # in the audit log: as the settings say


@dataclass(frozen=True, slots=True)
class LimitOwner:
    """A user or a tenant that has limits, and the state of its cell; empty if it has none yet."""

    key: Key
    name: str
    tenant_id: str
    state: str = ""


class LimitChange(NamedTuple):
    """``was`` and ``now`` are as an admin would write them; "server" is what the settings say."""

    owner: LimitOwner
    limit: str
    was: str
    now: str


class LimitRows(Rows[Key], Protocol):
    def record(self, change: LimitChange, by: RequestScope) -> None:
        """Write it into the audit log, as part of the transaction."""


class LimitStore(Store[Key], Protocol):
    """``tenant_id`` is whose owners are to be found; None is everybody's."""

    def transaction(self) -> AbstractContextManager[LimitRows]: ...

    def owner(self, scope: str, name: str, tenant_id: str | None) -> LimitOwner | None:
        """The user or tenant with this id or name."""

    def limited_users(self, tenant_id: str | None, after: str, count: int) -> Sequence[LimitOwner]:
        """Users with changed limits, by name, beginning after that name."""

    def tenants(self, tenant_id: str | None, after: str, count: int) -> Sequence[LimitOwner]: ...


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One user or tenant with the limits that are in force."""

    key: Key
    name: str
    tenant_id: str
    limits: tuple[LimitInForce, ...]


class LimitAdmin:
    """Shows and changes limits. They are in the cells, which every message reads under their locks: so a
    change is in force with the next message, in every worker.
    """

    def __init__(self, cells: Cells, store: LimitStore) -> None:
        self._cells, self._store = cells, store
        self._registry: Registry[Key, Cell] = Registry(cells, store)

    def limited_users(self, tenant_id: str | None, after: str, count: int) -> list[LimitRow]:
        return [self._row(each) for each in self._store.limited_users(tenant_id, after, count)]

    def tenants(self, tenant_id: str | None, after: str, count: int) -> list[LimitRow]:
        return [self._row(each) for each in self._store.tenants(tenant_id, after, count)]

    def find(self, scope: str, name: str, tenant_id: str | None) -> LimitRow:
        return self._row(self._owner(scope, name, tenant_id))

    def change(
        self,
        scope: str,
        name: str,
        wanted: Mapping[str, str],
        tenant_id: str | None,
        by: RequestScope,
    ) -> list[LimitChange]:
        """``wanted`` are texts by the names of limits: as in the settings, or empty for what those say.
        Each limit that is changed by it is in the audit log, in the same transaction.
        """
        owner = self._owner(scope, name, tenant_id)
        changes: list[LimitChange] = []

        def changed(values: tuple[Cell, ...]) -> Sequence[Cell]:
            (cell,) = values
            limits = changed_limits(scope, cell.limits, wanted)
            changes[:] = _differences(owner, dict(cell.limits), dict(limits))
            return (self._cells.with_limits(owner.key, cell, limits) if changes else cell,)

        with self._store.transaction() as rows:
            self._registry.change(rows, (owner.key,), changed)
            for change in changes:
                rows.record(change, by)
        return changes

    def _owner(self, scope: str, name: str, tenant_id: str | None) -> LimitOwner:
        if scope not in LIMITS:
            raise BadRequest(f"Limits can be changed of a {' or a '.join(LIMITS)}, not of a {scope!r}.")
        owner = self._store.owner(scope, name, tenant_id) if name else None
        if owner is None:
            raise NotFound(f"There is no {scope} of that name.")
        return owner

    def _row(self, owner: LimitOwner) -> LimitRow:
        key = owner.key
        cell = self._cells.load(key, owner.state) if owner.state else self._cells.fresh(key)
        in_force = limits_in_force(key.scope, self._cells.policy(key.scope), cell)
        return LimitRow(key, owner.name, owner.tenant_id, in_force)


def _differences(owner: LimitOwner, before: dict[str, object], after: dict[str, object]) -> list[LimitChange]:
    def written(name: str, values: dict[str, object]) -> str:
        limit = next(each for each in LIMITS[owner.key.scope] if each.name == name)
        return limit.written(values[name]) if name in values else AS_SET_BY_SERVER

    return [
        LimitChange(owner, limit.name, written(limit.name, before), written(limit.name, after))
        for limit in LIMITS[owner.key.scope]
        if (limit.name in before, before.get(limit.name)) != (limit.name in after, after.get(limit.name))
    ]
