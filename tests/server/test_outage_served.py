"""A real server of two workers whose PostgreSQL goes away: `bench/survive.py` does the same for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import outage_scenarios
from tests.support.outage_scenarios import frozen_for, stopped_for
from tests.support.postgres_server import postgres_server
from tests.support.retrying_users import installation
from tests.support.rounds import ROUNDS
from tests.support.server import SCRIPTS

ROOT = Path(__file__).parent.parent.parent
IMPATIENT = "tests.support.outage_scenarios:impatient()"
COMMAND = (SCRIPTS / "gunicorn", "-c", ROOT / "gunicorn.conf.py", "--pythonpath", ROOT, IMPATIENT)


@pytest.mark.timeout(240 + 60 * ROUNDS)
def test_outages_of_the_database_lose_nothing_and_leave_no_chat_locked(tmp_path: Path) -> None:
    """Stopped, and restarted as after a crash, in the middle of answers; in the long version frozen too."""
    these = [stopped_for(1.2, "fast"), stopped_for(0, "immediate")]
    these += [stopped_for(3, "immediate"), frozen_for(3), *these] * (ROUNDS - 1)
    with (
        postgres_server() as postgres,
        installation(
            tmp_path, postgres.url, command=COMMAND, word_seconds=0.08, **outage_scenarios.SETTINGS
        ) as running,
    ):
        found = outage_scenarios.outages(running, postgres, these, sessions=6, longest=14, watched=0.5)
    assert found.wrong == [], found.wrong[:10]
    assert found.figures["answers that were not stored at once"]
