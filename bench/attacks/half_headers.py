"""1,300 connections that send one byte of a request and nothing more.

python -m bench.attacks.half_headers
"""

from __future__ import annotations

from bench.attacks.fresh_server import run
from tests.support.attacks import half_headers

if __name__ == "__main__":
    run("half_headers: 1,300 connections", half_headers(1_300))
