"""A migration that takes something away waits until nobody needs it any more."""

from __future__ import annotations

from sqlalchemy import Connection, func, inspect, or_, select

from agentapp.errors import StartError
from agentapp.storage.clock import utc_now_at
from agentapp.storage.operator_models import WorkerRow
from agentapp.telemetry.conditions import SILENT_AFTER


def refuse_if_older_workers_run(connection: Connection, oldest_code: str) -> None:
    """Raises a `StartError` that names the hosts with workers that do not know this revision."""
    hosts = inspect(connection)
    if not hosts.has_table("workers"):
        return
    query = (
        select(WorkerRow.host, func.count())
        .where(WorkerRow.seen_at > utc_now_at(connection) - SILENT_AFTER)
        .group_by(WorkerRow.host)
        .order_by(WorkerRow.host)
    )
    if "knows_revision" in {column["name"] for column in hosts.get_columns("workers")}:
        known = WorkerRow.knows_revision
        query = query.where(or_(known.is_(None), known < oldest_code))
    found = [f"{count} on {host}" for host, count in connection.execute(query)]
    if found:
        raise StartError(
            f"cannot migrate the database: the new schema shuts out workers that do not know revision "
            f"{oldest_code}, and such workers run: {', '.join(found)}. Update or stop them first; one that "
            f"was killed counts for {SILENT_AFTER.total_seconds():.0f} s"
        )
