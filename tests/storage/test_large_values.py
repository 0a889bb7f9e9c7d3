"""Values larger than what fits into a socket, among statements that go to PostgreSQL together."""

from __future__ import annotations

import pytest

from agentapp.config import Settings
from agentapp.isolation import RequestScope, ThreadBinder
from agentapp.storage.db import Database
from agentapp.storage.postgres_options import PostgresOptions
from tests.support.databases import only_postgresql

LARGE = "a" * 8_000_000


@only_postgresql
@pytest.mark.parametrize("asks", [True, False], ids=["asks for a result after it", "ends after it"])
def test_the_server_gets_all_of_it(settings: Settings, database_url: str, asks: bool) -> None:
    binder = ThreadBinder()
    db = Database(database_url, binder, postgres=PostgresOptions(statement_seconds=2.0))
    with binder.bound(RequestScope(request_id="r")):
        with db.transaction() as connection:
            connection.run_text("CREATE TABLE large (value text)")
            connection.run_text("INSERT INTO large VALUES (%s)", (LARGE,))
            if asks:
                assert connection.run_text("SELECT count(*) FROM large").fetchall() == [(1,)]
                connection.run_text("INSERT INTO large VALUES (%s)", (LARGE,))
        with db.looking() as connection:
            ((found,),) = connection.run_text("SELECT sum(length(value)) FROM large").fetchall()
    assert found == (1 + asks) * len(LARGE)
    db.close()
