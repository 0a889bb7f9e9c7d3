"""200 clients at once that do not hang up after their answer.

python -m bench.attacks.no_hang_up_at_once
"""

from __future__ import annotations

from bench.attacks.fresh_server import run
from tests.support.attacks import no_hang_up_at_once

if __name__ == "__main__":
    run("no_hang_up_at_once: 200 connections", no_hang_up_at_once(200))
