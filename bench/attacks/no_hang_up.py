"""20 clients a second that do not hang up after their answer, for 60 seconds.

python -m bench.attacks.no_hang_up
"""

from __future__ import annotations

from bench.attacks.fresh_server import run
from tests.support.attacks import no_hang_up

if __name__ == "__main__":
    run("no_hang_up: 20 a second for 60 s", no_hang_up(20, 60))
