"""The application for `gunicorn wsgi:app`, which finds gunicorn.conf.py by itself, or for any WSGI server."""

from __future__ import annotations

import sys

from agentapp.app import create_app
from agentapp.errors import AgentappError
from agentapp.logs import escaped
from agentapp.telemetry.log_setup import set_up

try:
    set_up()
    app = create_app()
except AgentappError as exc:
    print(f"agentapp: {escaped(str(exc))}", file=sys.stderr, flush=True)
    sys.exit(4)  # gunicorn's APP_LOAD_ERROR: it stops instead of starting the worker again and again
