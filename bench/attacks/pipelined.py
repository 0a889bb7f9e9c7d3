"""3,000 connections that each send a hundred whole requests at once.

python -m bench.attacks.pipelined
"""

from __future__ import annotations

from bench.attacks.fresh_server import run
from tests.support.attacks import pipelined

# Strangers come faster than they can be refused: for about as long as the attack itself everybody waits.
LIVE_P99_SECONDS = 1.5

if __name__ == "__main__":
    run("pipelined: 3,000 connections, 100 requests each", pipelined(3_000, 100), LIVE_P99_SECONDS)
