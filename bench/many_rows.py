"""A database as a large installation has it: so many tenants, users, chats and what is kept about them.

Rows are made by the database itself, a million of a kind with one statement.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text

from agentapp.storage.engines import make_engine

MARKED_EVERY = 1_000  # one session in so many has a breaker that is open
LIMITED_EVERY = 100  # one user in so many has limits of their own
VIOLATIONS = 1_000  # of isolation, in the audit log
WEEK = 7 * 1_440  # minutes of which there are counts
DAYS = 10  # of usage, for each user
AUDIT_SECONDS = 300 * 86_400
LABELS = ("breaker-open/session", "rate-limited/user", "budget-exhausted/tenant", "busy/server")

# Of each dialect: the numbers from 1 to :count, as ``n``.
NUMBERS = {
    "sqlite": "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :count)",
    "postgresql": "WITH numbers AS (SELECT n FROM generate_series(1, :count) AS s(n))",
}
# A time so many seconds before :now, as each dialect stores it.
BEFORE = {
    "sqlite": "strftime('%Y-%m-%d %H\\:%M\\:%S.000000', :now, '-' || ({seconds}) || ' seconds')",
    "postgresql": "(CAST(:now AS timestamptz) - make_interval(secs => {seconds}))",
}
DAY_BEFORE = {
    "sqlite": "date(:now, '-' || ({days}) || ' days')",
    "postgresql": "to_char(CAST(:now AS timestamptz) - make_interval(days => {days}), 'YYYY-MM-DD')",
}

# As the workers do for operators.
ADD_UP = (
    "INSERT INTO minute_counts (name, tenant_id, minute, label, amount)"
    " SELECT 'all\\:' || name, '', minute, label, sum(amount) FROM minute_counts GROUP BY name, minute, label"
)


def fill(url: str, *, sessions: int, users: int, tenants: int) -> None:
    """With these and, for each session, a turn, its messages, a cell and an audit row."""
    engine = make_engine(url)
    try:
        for statement, count in _inserts(engine.dialect.name, sessions, users, tenants):
            with engine.begin() as db:
                _run(db, statement, count)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as db:
            db.execute(text("ANALYZE"))
    finally:
        engine.dispose()


def _run(db: Connection, statement: str, count: int) -> None:
    query, now = text(statement), datetime.now(UTC) - timedelta(seconds=5)
    breaker = {"failures": 3, "opened": now.timestamp(), "cooldown": 900.0, "trips": 1}
    limits = {"limits": {"rate": [5, 60.0]}}
    named = {
        "count": count,
        "now": f"{now:%Y-%m-%d %H:%M:%S}",
        "open_cell": json.dumps({"breaker": breaker}),
        "limited_cell": json.dumps(limits, separators=(",", ":")),
    }
    db.execute(query, {name: named[name] for name in query.compile().params})


def _inserts(dialect: str, sessions: int, users: int, tenants: int) -> Sequence[tuple[str, int]]:
    before, numbers = BEFORE[dialect], NUMBERS[dialect]
    lately, day = before.format(seconds="n % 864000"), DAY_BEFORE[dialect].format(days=f"n % {DAYS}")
    of_session = f"'t' || (n % {users} % {tenants} + 1), 'u' || (n % {users} + 1), 's' || n"
    opened = int(datetime.now(UTC).timestamp()) - 60

    def one_of_all(letter: str, number: str) -> str:
        return f"CASE WHEN n % 10 = 3 THEN '{letter}1' ELSE '{letter}' || ({number}) END"

    yes = "1" if dialect == "sqlite" else "true"

    def insert(table: str, columns: str, values: str, where: str = yes) -> str:
        return f"INSERT INTO {table} ({columns}) {numbers} SELECT {values} FROM numbers WHERE {where}"

    return (
        (insert("tenants", "id, name, created_at", f"'t' || n, 'tenant-' || n, {lately}"), tenants),
        (
            insert(
                "users",
                "id, tenant_id, name, password_hash, role, created_at",
                f"'u' || n, 't' || ((n - 1) % {tenants} + 1), 'person-' || n, 'x', 'member', {lately}",
            ),
            users,
        ),
        (
            insert(
                "sessions",
                "tenant_id, user_id, id, title, created_at, updated_at",
                f"{of_session}, 'A chat', {lately}, {lately}",
            ),
            sessions,
        ),
        (
            insert(
                "turns",
                "tenant_id, user_id, session_id, id, request_id, number, follows, status, agent, next_agent,"
                " log, input_tokens, output_tokens, model_calls, cost_microusd, started_at, ended_at",
                f"{of_session}, 'turn' || n, 'r' || n, 1, 0, 'completed', 'triage', '', '[]', 900, 80, 1,"
                f" 4000, {lately}, {lately}",
            ),
            sessions,
        ),
        (
            insert(
                "messages",
                "tenant_id, user_id, session_id, id, turn_id, seq, role, content, created_at",
                f"{of_session}, 'm' || n, 'turn' || n, 1, 'user', 'hello', {lately}",
            ),
            sessions,
        ),
        (
            insert(
                "guardrail_cells",
                "scope, id, state, mark, updated_at",
                f"'session', 's' || n, CASE WHEN n % {MARKED_EVERY} = 0 THEN :open_cell ELSE '{{}}' END,"
                f" CASE WHEN n % {MARKED_EVERY} = 0 THEN 'open' ELSE '' END, {opened}",
            ),
            sessions,
        ),
        (
            insert(
                "guardrail_cells",
                "scope, id, state, mark, updated_at",
                f"'user', 'u' || n, CASE WHEN n % {LIMITED_EVERY} = 0 THEN :limited_cell ELSE '{{}}' END,"
                f" CASE WHEN n % {LIMITED_EVERY} = 0 THEN 'limits' ELSE '' END, {opened}",
            ),
            users,
        ),
        (
            insert(
                "audit_log",
                "at, tenant_id, action, subject, request_id, detail",
                f"{lately}, 't' || (n % {tenants} + 1), 'isolation-violated', 'foreign-event', 'v' || n,"
                " '{}'",
            ),
            VIOLATIONS,
        ),
        *(
            (
                insert(
                    "minute_counts",
                    "name, tenant_id, minute, label, amount",
                    f"'{name}', 't' || (n % {tenants} + 1),"
                    f" {opened // 60} - (n / {tenants}), '', 20 + n % 50",
                ),
                tenants * WEEK,
            )
            for name in ("isolation_checks", "isolation_requests")
        ),
        (
            insert(
                "audit_log",
                "at, tenant_id, user_id, action, subject, request_id, detail",
                # Over three hundred days, the newest last. A user of the first tenant does a tenth of all.
                f"{before.format(seconds=f'({sessions} - n) * {AUDIT_SECONDS / sessions}')},"
                f" {one_of_all('t', f'n % {users} % {tenants} + 1')}, {one_of_all('u', f'n % {users} + 1')},"
                " CASE WHEN n % 1000 = 0 THEN 'isolation-violated' WHEN n % 20 = 0 THEN 'chat-deleted'"
                " ELSE 'signed-in' END,"
                f" 'user:u' || (n % {users} + 1), 'r' || n, '{{}}'",
            ),
            sessions,
        ),
        (
            insert(
                "usage_days",
                "tenant_id, user_id, day, agent, model,"
                " turns, model_calls, input_tokens, output_tokens, cost_microusd",
                f"'t' || ((n / {DAYS}) % {users} % {tenants} + 1), 'u' || ((n / {DAYS}) % {users} + 1),"
                f" {day}, 'triage', 'claude-sonnet-4-6', 1, 1, 900, 80, 4000 + n % 1000",
            ),
            users * DAYS - 1,
        ),
        *(
            (
                insert(
                    "minute_counts",
                    "name, tenant_id, minute, label, amount",
                    f"'refusals', 't' || (n % {tenants} + 1),"
                    f" {opened // 60} - (n / {tenants}), '{label}', 1 + n % 7",
                ),
                tenants * 1_440,
            )
            for label in LABELS
        ),
        (ADD_UP, 0),
    )
