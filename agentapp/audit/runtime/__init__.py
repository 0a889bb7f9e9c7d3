"""The run-time leak detector: finds shared objects that requests change, or in which they leave their data.

It is off unless you use it. `LeakMiddleware` wraps a WSGI app, `Watch` compares snapshots, `canary` returns a
mark for tests to send, and the pytest plugin `agentapp.audit.runtime.pytest_plugin` has a fixture. See
``docs/auditor-runtime.md``, also for what it costs.
"""

from agentapp.audit.runtime.changes import Caller, Change
from agentapp.audit.runtime.marks import HEADER, canary
from agentapp.audit.runtime.middleware import LeakMiddleware
from agentapp.audit.runtime.watch import Snapshot, Watch

__all__ = ["HEADER", "Caller", "Change", "LeakMiddleware", "Snapshot", "Watch", "canary"]
