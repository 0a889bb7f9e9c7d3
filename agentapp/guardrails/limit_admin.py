"""The limits of users and tenants as an admin sees and changes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from agentapp.errors import BadRequest, Forbidden, NotFound
from agentapp.guardrails.cell import Cell, Cells, Key
from agentapp.guardrails.limit_changes import (
    LIMITS,
    LimitInForce,
    changed_limits,
    limit_problems,
    limits_in_force,
)
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

    A ``tenant_id`` that is not None is that of an admin. An admin sees the limits of the own tenant and
    changes those of its users: docs/guardrails.md says why not more.
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

    def problems(
        self, scope: str, name: str, wanted: Mapping[str, str], tenant_id: str | None
    ) -> dict[str, str]:
        """Why these limits cannot be set, by their names."""
        owner = self._owner(scope, name, tenant_id)
        return limit_problems(scope, self._cell(owner).limits, wanted, self._most(owner, tenant_id))

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
        if tenant_id is not None and scope == "tenant":
            raise Forbidden("Only an operator can change the limits of a whole organisation.")
        most = self._most(owner, tenant_id)
        changes: list[LimitChange] = []

        def changed(values: tuple[Cell, ...]) -> Sequence[Cell]:
            (cell,) = values
            for problem in limit_problems(scope, cell.limits, wanted, most).values():
                raise BadRequest(problem)
            limits = changed_limits(scope, cell.limits, wanted)
            changes[:] = _differences(owner, dict(cell.limits), dict(limits))
            return (self._cells.with_limits(owner.key, cell, limits) if changes else cell,)

        with self._store.transaction() as rows:
            self._registry.change(rows, (owner.key,), changed)
            for change in changes:
                rows.record(change, by)
        return changes

    def _most(self, owner: LimitOwner, tenant_id: str | None) -> dict[str, Any]:
        """What an admin may give a user at most. Where the tenant has a limit that one holds whatever the
        user may; where it has none, only the server's limit for users is left.
        """
        scope = owner.key.scope
        if tenant_id is None or scope != "user":
            return {}
        tenant = self._cell(self._owner("tenant", owner.tenant_id, None))
        of_tenant = self._cells.policy("tenant").changed_by(tenant.limits)
        of_users = self._cells.policy("user")
        return {
            limit.name: limit.of_policy(of_users)
            for limit in LIMITS[scope]
            if limit.of_policy(of_tenant) is None
        }

    def _owner(self, scope: str, name: str, tenant_id: str | None) -> LimitOwner:
        if scope not in LIMITS:
            raise BadRequest(f"Limits can be changed of a {' or a '.join(LIMITS)}, not of a {scope!r}.")
        owner = self._store.owner(scope, name, tenant_id) if name else None
        if owner is None:
            raise NotFound(f"There is no {scope} of that name.")
        return owner

    def _row(self, owner: LimitOwner) -> LimitRow:
        scope, cell = owner.key.scope, self._cell(owner)
        in_force = limits_in_force(scope, self._cells.policy(scope), cell)
        return LimitRow(owner.key, owner.name, owner.tenant_id, in_force)

    def _cell(self, owner: LimitOwner) -> Cell:
        key = owner.key
        return self._cells.load(key, owner.state) if owner.state else self._cells.fresh(key)


def _differences(owner: LimitOwner, before: dict[str, object], after: dict[str, object]) -> list[LimitChange]:
    def written(name: str, values: dict[str, object]) -> str:
        limit = next(each for each in LIMITS[owner.key.scope] if each.name == name)
        return limit.written(values[name]) if name in values else AS_SET_BY_SERVER

    return [
        LimitChange(owner, limit.name, written(limit.name, before), written(limit.name, after))
        for limit in LIMITS[owner.key.scope]
        if (limit.name in before, before.get(limit.name)) != (limit.name in after, after.get(limit.name))
    ]
