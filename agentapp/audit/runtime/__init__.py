"""A detector of shared state that changes, at run time: which request did it, and whose data was left there.

Nothing is on unless you use it. `LeakMiddleware` wraps a WSGI app, `Watch` compares by hand, `canary` gives
tests a mark to send, and the pytest plugin `agentapp.audit.runtime.pytest_plugin` has a fixture. What it
costs is in ``docs/auditor-runtime.md``.
"""

from agentapp.audit.runtime.changes import Caller, Change
from agentapp.audit.runtime.marks import HEADER, canary
from agentapp.audit.runtime.middleware import LeakMiddleware
from agentapp.audit.runtime.watch import Snapshot, Watch

__all__ = ["HEADER", "Caller", "Change", "LeakMiddleware", "Snapshot", "Watch", "canary"]
