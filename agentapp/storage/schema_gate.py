"""Whether a worker uses the database at all: only while its schema is one that this code can work with."""

from __future__ import annotations

import logging
from contextlib import suppress

from sqlalchemy import Engine

from agentapp.errors import StartError, StorageUnavailable
from agentapp.storage.disk import Disk
from agentapp.storage.schema import find_problem
from agentapp.storage.translated_errors import translating_errors

LOOK_SECONDS = 2.0
NOT_SEEN_YET = "the database has not been reached yet"

log = logging.getLogger(__name__)


class SchemaGate:  # agentapp: shared ok - one value, which any thread may replace by what it has just seen
    """To a worker whose code does not fit the schema the database is away: it answers 503, changes nothing,
    and goes on by itself when the schema fits, because it was migrated or restored.

    The gate is open, and nobody looks, until `watch` is called: commands have checked the schema themselves.
    """

    def __init__(self, engine: Engine, disk: Disk) -> None:
        self._engine, self._disk = engine, disk
        self._problem: str | None = None

    def watch(self) -> None:
        """From now on the gate is shut unless the schema was seen to fit."""
        self._problem = NOT_SEEN_YET
        with suppress(StorageUnavailable):  # the heartbeat tries again, and tells it
            self.look()

    def require(self) -> None:
        """Raises `StorageUnavailable` while the gate is shut."""
        problem = self._problem
        if problem is not None:
            said = "This server and its database do not fit together right now. Nothing was lost."
            raise StorageUnavailable(said) from StartError(problem)

    def look(self) -> str | None:
        """What is wrong with the schema now. If the database cannot be reached, nothing changes."""
        with translating_errors(self._disk):
            problem = find_problem(self._engine)
        self.saw(problem)
        return problem

    def saw(self, problem: str | None) -> None:
        """This is wrong with the schema now, or nothing is."""
        before, self._problem = self._problem, problem
        if problem not in (None, before):
            log.error("schema: %s", problem)
        elif problem is None and before not in (None, NOT_SEEN_YET):
            log.warning("schema: fits again")


class LookAtSchema:
    """The job of the heartbeat that opens and shuts the gate."""

    name = "look at the schema"

    def __init__(self, gate: SchemaGate) -> None:
        self._gate = gate

    def run(self, now: float) -> bool:
        self._gate.look()
        return False
