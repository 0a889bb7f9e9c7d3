"""Whether there is room for more: in the quotas of the user and the tenant, and on the disk."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, func, select

from agentapp.guardrails.storage_quota import StorageQuota, StorageStanding, StoredBytes
from agentapp.isolation import UserScope
from agentapp.storage.db import Database
from agentapp.storage.models import User

OF_USER = select(User.stored_bytes).where(User.id == bindparam("user"), User.tenant_id == bindparam("tenant"))
OF_TENANT = select(func.sum(User.stored_bytes)).where(User.tenant_id == bindparam("tenant"))


class Room:
    def __init__(self, db: Database, quota: StorageQuota | None = None) -> None:
        self._db, self._quota = db, quota or StorageQuota()

    def require(self, db: Connection, scope: UserScope, stored_bytes: int) -> None:
        """Part of a write transaction, which has locked the user and so knows what the user keeps.

        Raises `StorageFull` or `DiskFull`.
        """
        self._db.disk.require_reserve()
        self._quota.check(self._stored(db, scope, stored_bytes))

    def standing(self, scope: UserScope) -> StorageStanding:
        """The decision that the next message would get, and how much of each quota is used."""
        if self._quota == StorageQuota():
            return StorageStanding()
        with self._db.reading() as reading:
            db = reading.connection()
            mine = db.execute(OF_USER, {"user": scope.user_id, "tenant": scope.tenant_id}).scalar()
            return self._quota.standing(self._stored(db, scope, mine or 0))

    def _stored(self, db: Connection, scope: UserScope, stored_bytes: int) -> StoredBytes:
        """What all users of the tenant keep is added up. A row for the sum would be one that they all wait
        for.
        """
        if self._quota.tenant is None:
            return StoredBytes(stored_bytes)
        return StoredBytes(
            stored_bytes, int(db.execute(OF_TENANT, {"tenant": scope.tenant_id}).scalar() or 0)
        )
