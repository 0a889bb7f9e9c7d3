"""Whether there is room for more: in the quotas of the user and the tenant, and on the disk."""

from __future__ import annotations

from sqlalchemy import bindparam, func, select

from agentapp.guardrails.storage_quota import StorageQuota, StorageStanding, StoredBytes
from agentapp.isolation import UserScope
from agentapp.storage.db import Database
from agentapp.storage.models import User
from agentapp.storage.statements import DriverConnection, Statement

OF_TENANT = Statement(select(func.sum(User.stored_bytes)).where(User.tenant_id == bindparam("tenant")))
OF_USER = Statement(
    select(User.stored_bytes).where(User.id == bindparam("user"), User.tenant_id == bindparam("tenant"))
)


class Room:
    def __init__(self, db: Database, quota: StorageQuota | None = None) -> None:
        self._db, self._quota = db, quota or StorageQuota()

    def require(self, db: DriverConnection, scope: UserScope, stored_bytes: int) -> None:
        """Part of a write transaction, which has locked the user and so knows what the user keeps.

        Raises `StorageFull` or `DiskFull`.
        """
        self._db.disk.require_reserve()
        of_tenant = 0
        if self._quota.tenant is not None:
            of_tenant = _added_up(db.run(OF_TENANT, {"tenant": scope.tenant_id}).scalar())
        self._quota.check(StoredBytes(stored_bytes, of_tenant))

    def standing(self, scope: UserScope) -> StorageStanding:
        """The decision that the next message would get, and how much of each quota is used."""
        if self._quota == StorageQuota():
            return StorageStanding()
        owner = {"user": scope.user_id, "tenant": scope.tenant_id}
        of_user, of_tenant = self._db.look(OF_USER, owner), 0
        if self._quota.tenant is not None:
            of_tenant = _added_up(self._db.look(OF_TENANT, owner)[0][0])
        return self._quota.standing(StoredBytes(of_user[0][0] if of_user else 0, of_tenant))


def _added_up(stored_bytes: int | None) -> int:
    """What all users of the tenant keep is added up: they would all wait for a row that had the sum."""
    return int(stored_bytes or 0)
