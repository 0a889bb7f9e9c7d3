"""gunicorn's own log, with our formatter."""

from __future__ import annotations

from typing import Any

from gunicorn.glogging import Logger

from agentapp import logs


class OneLineLogger(Logger):  # type: ignore[misc]
    """Handlers that come from a logging configuration of the operator's keep the formatters named there."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        logs.set_up()
        for handler in (*self.error_log.handlers, *self.access_log.handlers):
            if getattr(handler, "_gunicorn", False):
                theirs = handler.formatter
                handler.setFormatter(logs.OneLineFormatter(theirs._fmt, theirs.datefmt))
