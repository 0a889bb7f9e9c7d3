"""The application; a transaction of a tenant goes by the name of that tenant in pg_stat_activity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from agentapp.storage.db import Database


def app() -> Any:
    from agentapp.app import create_app

    begun = Database.transaction

    @contextmanager
    def named(self: Database, tenant: str | None = None, *, urgent: bool = False) -> Iterator[Any]:
        with begun(self, tenant, urgent=urgent) as connection:
            if tenant:
                connection.run_text("SELECT set_config('application_name', %s, true)", (tenant,))
            yield connection

    Database.transaction = named  # type: ignore[method-assign, assignment]
    return create_app()
