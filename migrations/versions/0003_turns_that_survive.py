"""Running turns and their events, versions of turns, and what is needed to tell an ended turn again."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

ID = sa.String(64)
TIME = sa.DateTime(timezone=True)
BATCH = 1000

turns = sa.table(
    "turns",
    sa.column("id", ID),
    sa.column("tenant_id", ID),
    sa.column("user_id", ID),
    sa.column("session_id", ID),
    sa.column("status", sa.String(16)),
    sa.column("number", sa.Integer()),
    sa.column("activity", sa.JSON()),
    sa.column("log", sa.JSON()),
)
messages = sa.table(
    "messages",
    sa.column("turn_id", ID),
    sa.column("role", sa.String(16)),
    sa.column("content", sa.Text()),
)
live_turns = sa.table(
    "live_turns",
    sa.column("turn_id", ID),
    sa.column("tenant_id", ID),
    sa.column("user_id", ID),
    sa.column("session_id", ID),
    sa.column("worker", ID),
    sa.column("lease_until", TIME),
    sa.column("stop_asked", sa.Boolean()),
)


def upgrade() -> None:
    _add_columns()
    _number_turns()
    _write_logs()
    _finish_columns()
    _make_tables()
    _give_up_running()


def _add_columns() -> None:
    op.add_column("turns", sa.Column("number", sa.Integer(), nullable=True))
    op.add_column("turns", sa.Column("follows", sa.Integer(), nullable=True))
    op.add_column("turns", sa.Column("next_agent", sa.String(64), nullable=True))
    op.add_column("turns", sa.Column("log", sa.JSON(), nullable=True))


def _number_turns() -> None:
    """Until now there were no versions: each turn follows the one before it."""
    op.execute(
        "UPDATE turns SET number = place.number, follows = place.number - 1,"
        " next_agent = CASE WHEN place.from_end = 1 THEN place.agent ELSE '' END"
        " FROM (SELECT turns.id, sessions.agent,"
        " ROW_NUMBER() OVER (PARTITION BY session_id ORDER BY started_at, turns.id) AS number,"
        " ROW_NUMBER() OVER (PARTITION BY session_id ORDER BY started_at DESC, turns.id DESC) AS from_end"
        " FROM turns JOIN sessions ON sessions.id = turns.session_id) AS place WHERE place.id = turns.id"
    )


def _write_logs() -> None:
    connection = op.get_bind()
    said = sa.select(messages.c.turn_id, sa.func.length(messages.c.content).label("length"))
    said_by_agent = said.where(messages.c.role == "assistant").subquery()
    rows = sa.select(turns.c.id, turns.c.session_id, turns.c.activity, said_by_agent.c.length)
    rows = rows.select_from(turns.outerjoin(said_by_agent, said_by_agent.c.turn_id == turns.c.id))
    written = sa.update(turns).where(turns.c.id == sa.bindparam("turn")).values(log=sa.bindparam("events"))
    last = ""
    while found := connection.execute(rows.where(turns.c.id > last).order_by(turns.c.id).limit(BATCH)).all():
        values = [{"turn": row.id, "events": _log(row)} for row in found]
        connection.execute(written, values)
        last = found[-1].id


def _log(row: Any) -> list[Any]:
    started = {"turn_id": row.id, "session_id": row.session_id}
    steps = [event for at, step in enumerate(row.activity, 1) for event in _events(step, f"call-{at}")]
    return [["turn_started", started], *steps, *([row.length] if row.length else [])]


def _events(step: dict[str, Any], call_id: str) -> list[Any]:
    """What an ended turn kept of its steps, as the events that they once were."""
    if step["kind"] == "handed_over":
        given = {name: step[name] for name in ("from", "to", "task")}
        return [["handed_over", {**given, "parameters": {}}]]
    call = {"call_id": call_id, "name": step["name"]}
    ended = {name: step[name] for name in ("output", "failed")} | {"limited": step.get("limited", False)}
    given = {**call, "input": _read(step["input"])}
    return [["tool_executing", given], ["tool_completed", {**call, **ended}]]


def _read(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_json)
    except ValueError:
        return text  # it was cut, or is something that only Python reads


def _no_json(name: str) -> None:
    raise ValueError(name)


def _finish_columns() -> None:
    op.drop_index("ix_turns_session", "turns")
    with op.batch_alter_table("turns") as batch:
        for name, kind in (("number", sa.Integer()), ("follows", sa.Integer()), ("log", sa.JSON())):
            batch.alter_column(name, existing_type=kind, nullable=False)
        batch.alter_column("next_agent", existing_type=sa.String(64), nullable=False)
        batch.drop_column("activity")
        batch.drop_column("lease_until")
        batch.create_unique_constraint("uq_turns_number", ["session_id", "number"])
    with op.batch_alter_table("sessions") as batch:
        batch.drop_column("agent")


def _make_tables() -> None:
    op.create_table(
        "live_turns",
        sa.Column("turn_id", ID, nullable=False),
        sa.Column("worker", ID, nullable=False),
        sa.Column("lease_until", TIME, nullable=False),
        sa.Column("stop_asked", sa.Boolean(), nullable=False),
        *_owner(),
        sa.PrimaryKeyConstraint("turn_id", name="pk_live_turns"),
        sa.ForeignKeyConstraint(["turn_id"], ["turns.id"], name="fk_live_turns_turn_id", ondelete="CASCADE"),
    )
    op.create_index("ix_live_turns_worker", "live_turns", ["worker"])
    op.create_table(
        "turn_events",
        sa.Column("turn_id", ID, nullable=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("events", sa.JSON(), nullable=False),
        *_owner(),
        sa.PrimaryKeyConstraint("turn_id", "first", name="pk_turn_events"),
        sa.ForeignKeyConstraint(
            ["turn_id"], ["live_turns.turn_id"], name="fk_turn_events_turn_id", ondelete="CASCADE"
        ),
    )


def _give_up_running() -> None:
    """Whoever played them is gone: the first worker to look finds their lease over."""
    running = sa.select(
        turns.c.id,
        turns.c.tenant_id,
        turns.c.user_id,
        turns.c.session_id,
        sa.literal("before"),
        sa.literal(datetime(2000, 1, 1, tzinfo=UTC), TIME),
        sa.false(),
    ).where(turns.c.status == "running")
    names = ["turn_id", "tenant_id", "user_id", "session_id", "worker", "lease_until", "stop_asked"]
    op.execute(live_turns.insert().from_select(names, running))


def _owner() -> list[sa.Column[str]]:
    """Without references of their own: the rows go with their turn."""
    return [sa.Column(name, ID, nullable=False) for name in ("tenant_id", "user_id", "session_id")]
