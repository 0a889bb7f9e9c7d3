"""How much a user and a tenant may keep: the limits in bytes, and the refusal when one is reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from agentapp.errors import StorageFull
from agentapp.guardrails.guard import Meter
from agentapp.guardrails.wording import stamp_refusal


class StoredBytes(NamedTuple):
    """What is kept now. The tenant's is counted only if it has a limit, because its users are added up."""

    user: int
    tenant: int = 0


@dataclass(frozen=True, slots=True)
class StorageStanding:
    """Why the next message would be refused, if it would, and how much of each quota is used."""

    refusal: StorageFull | None = None
    meters: tuple[Meter, ...] = ()


@dataclass(frozen=True, slots=True)
class StorageQuota:
    """In bytes. None is no limit.

    Only what is kept already counts, not what is about to be written: how long an answer will be is not known
    before it is paid for. So a quota is exceeded by at most what the turns write that were let in below it.
    """

    user: int | None = None
    tenant: int | None = None

    def check(self, stored: StoredBytes) -> None:
        if (refusal := self.standing(stored).refusal) is not None:
            raise refusal

    def standing(self, stored: StoredBytes) -> StorageStanding:
        limits = (("user", self.user, stored.user), ("tenant", self.tenant, stored.tenant))
        meters = [Meter(scope, used, limit, None) for scope, limit, used in limits if limit is not None]
        full = [
            stamp_refusal(StorageFull(limit=meter.limit, used=meter.used), meter.scope)
            for meter in meters
            if meter.used >= meter.limit
        ]
        return StorageStanding(full[0] if full else None, tuple(meters))
