"""What the heartbeat does for telemetry: counts go to the database, gauges say how many there are now."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol

from agentapp.telemetry.alerts import Alert, PendingAlerts
from agentapp.telemetry.catalogue import LIVE
from agentapp.telemetry.measurements import Measurements
from agentapp.telemetry.minutes import MinuteKey
from agentapp.telemetry.violations import FoundViolation

STORE_SECONDS = 1.0
REPORT_SECONDS = 5.0


class CountStore(Protocol):
    def add(self, counts: Mapping[MinuteKey, int]) -> None: ...


class AlertRows(Protocol):
    def add(self, alerts: Sequence[Alert]) -> None: ...


class WorkerReports(Protocol):
    def report(
        self, worker: str, host: str, pid: int, started_at: datetime, numbers: Mapping[str, float]
    ) -> None: ...

    def remove(self, worker: str) -> None: ...


class ViolationStore(Protocol):
    def add(self, found: Sequence[FoundViolation]) -> None: ...


class StoreCounts:
    """Counts that could not be stored are stored with the next ones."""

    name = "store counts"

    def __init__(self, telemetry: Measurements, store: CountStore) -> None:
        self._telemetry, self._store = telemetry, store

    def run(self, now: float) -> bool:
        self._telemetry.add_up()
        counts = self._telemetry.minutes.take()
        if counts:
            try:
                self._store.add(counts)
            except BaseException:
                self._telemetry.minutes.put_back()
                raise
            self._telemetry.stored()
        return False

    def end(self) -> None:
        self.run(0.0)


class StoreAlerts:
    """Those that could not be stored are stored with the next ones."""

    name = "store alerts"

    def __init__(self, pending: PendingAlerts, store: AlertRows) -> None:
        self._pending, self._store = pending, store

    def run(self, now: float) -> bool:
        alerts = self._pending.take()
        if alerts:
            try:
                self._store.add(alerts)
            except BaseException:
                self._pending.put_back(alerts)
                raise
        return False

    def end(self) -> None:
        self.run(0.0)


class ReportWorker:  # agentapp: shared ok - changed by the heartbeat's thread alone, and after that has ended
    """How many of what there are in this process: to the metrics, and to the database for the pages."""

    name = "report worker"

    def __init__(
        self,
        telemetry: Measurements,
        store: WorkerReports,
        worker: Callable[[], str],
        numbers: Callable[[], Mapping[str, float]],
        clock: Callable[[], datetime],
    ) -> None:
        self._telemetry, self._store = telemetry, store
        self._worker, self._numbers, self._clock = worker, numbers, clock
        self._started, self._host = time.monotonic(), socket.gethostname()
        self._reported: str | None = None

    def run(self, now: float) -> bool:
        numbers, worker = self._numbers(), self._worker()
        for kind in LIVE:
            self._telemetry.gauge("live", numbers[kind], kind=kind)
        memory = {"rss_bytes": memory_in_use(), "threads": threading.active_count()}
        started_at = self._clock() - timedelta(seconds=time.monotonic() - self._started)
        self._store.report(worker, self._host, os.getpid(), started_at, {**numbers, **memory})
        self._reported = worker
        return False

    def end(self) -> None:
        """One that ends in good order is not missed by the others."""
        if self._reported == self._worker():
            self._store.remove(self._reported)


def memory_in_use() -> int:
    """Bytes that this process has in memory; where the system does not say, the most that it ever had."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class FindLeftovers:
    """Agents that outlive their turn."""

    name = "find leftovers"

    def __init__(
        self, telemetry: Measurements, take_left_over: Callable[[], Sequence[tuple[str, str]]]
    ) -> None:
        self._telemetry, self._take_left_over = telemetry, take_left_over

    def run(self, now: float) -> bool:
        for request_id, tenant_id in self._take_left_over():
            detail = "agents have outlived their turn"
            self._telemetry.violation("agent-left", detail, request_id, tenant_id=tenant_id)
        return False


class StoreViolations:
    """Each violation of isolation becomes a row of the audit log, after the request that it was found in."""

    name = "store violations"

    def __init__(self, telemetry: Measurements, store: ViolationStore) -> None:
        self._telemetry, self._store = telemetry, store

    def run(self, now: float) -> bool:
        found = self._telemetry.take_found()
        if found:
            try:
                self._store.add(found)
            except BaseException:
                self._telemetry.put_back_found(found)
                raise
        return False

    def end(self) -> None:
        self.run(0.0)
