"""What the tests of the commands have in common."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import Result
from sqlalchemy import text

from agentapp.storage.engines import make_engine

PASSWORD = "correct horse"

Agentapp = Callable[..., Result]

# Variables with a bad value, and how the line about them begins.
BAD_SETTINGS = [
    ({"AGENTAPP_HTTPS": "perhaps"}, "AGENTAPP_HTTPS: must be 0 or 1"),
    ({"AGENTAPP_WORKERS": "many"}, "AGENTAPP_WORKERS: must be a whole number"),
    ({"AGENTAPP_TURN_DEADLINE": "soon"}, "AGENTAPP_TURN_DEADLINE: must be a number of seconds"),
    ({"AGENTAPP_BIND": "0.0.0.0:{port}"}, "AGENTAPP_SECRET_KEY: required when serving on 0.0.0.0:"),
    (
        {"AGENTAPP_DATABASE_URL": "postgresql+psycopg://h:port/d"},
        "AGENTAPP_DATABASE_URL: is not a database URL",
    ),
]


def add_user(agentapp: Agentapp, name: str, *options: str) -> Result:
    return agentapp("user", "add", name, *options, "--password-stdin", stdin=f"{PASSWORD}\n")


def set_revision(url: str, revision: str, oldest_code: str | None = None) -> None:
    """As if the database had been migrated to it. Unless told otherwise, no code that is older fits it."""
    engine = make_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE alembic_version SET version_num = '{revision}'"))
        connection.execute(text(f"UPDATE schema_compatibility SET oldest_code = '{oldest_code or revision}'"))
    engine.dispose()
