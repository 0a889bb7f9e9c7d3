"""A pool that gives back what nobody has used for a while."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import QueuePool
from sqlalchemy.pool import ConnectionPoolEntry

IDLE_SECONDS = 60.0
LOOK_SECONDS = 5.0


class IdlePool(QueuePool):
    """SQLAlchemy's would keep as many as were ever needed at once. With ``use_lifo``, a few connections do
    all the work and the others are at the far end of its queue.

    It looks whenever one comes back: a worker's heartbeat takes one every few seconds.
    """

    __module__ = "sqlalchemy.pool"  # by which SQLAlchemy finds the logger: it tells of every connection
    _looked_at = 0.0

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        now = time.monotonic()
        record.info["returned_at"] = now
        super()._do_return_conn(record)
        if now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self.close_idle(now - IDLE_SECONDS)

    def close_idle(self, before: float) -> None:
        """Close those that came back before then."""
        while (record := self._take_idle(before)) is not None:
            try:
                record.close()
            finally:
                self._dec_overflow()

    def _take_idle(self, before: float) -> Any:
        waiting: Any = self._pool
        with waiting.mutex:
            if waiting.queue and waiting.queue[0].info.get("returned_at", before) < before:
                return waiting.queue.popleft()
        return None
