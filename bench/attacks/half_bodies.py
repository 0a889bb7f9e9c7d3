"""1,300 connections that send a request whose body never comes.

python -m bench.attacks.half_bodies
"""

from __future__ import annotations

from bench.attacks.fresh_server import run
from tests.support.attacks import half_bodies

if __name__ == "__main__":
    run("half_bodies: 1,300 connections", half_bodies(1_300))
