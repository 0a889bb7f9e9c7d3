"""1,300 connections whose answers nobody reads.

python -m bench.attacks.unread_answers
"""

from __future__ import annotations

from bench.attacks.fresh_server import run
from tests.support.attacks import unread_answers

if __name__ == "__main__":
    run("unread_answers: 1,300 connections", unread_answers(1_300))
