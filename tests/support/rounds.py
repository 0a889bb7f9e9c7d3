"""How long the tests take that try something many times: ``AGENTAPP_ROUNDS=10`` is the long version."""

from __future__ import annotations

import os

ROUNDS = int(os.environ.get("AGENTAPP_ROUNDS", "1"))
