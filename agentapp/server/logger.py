"""gunicorn's own log, in our form, and its access log without private words."""

from __future__ import annotations

import logging
from typing import Any

from gunicorn.glogging import Logger

from agentapp.logs import escaped
from agentapp.telemetry import log_options
from agentapp.telemetry.log_lines import LineFormatter
from agentapp.telemetry.log_setup import set_up

# What the access log must not have, in whatever format an operator asks for it: what somebody searched for,
# the token of the set-up link, a login. By gunicorn's names: `i` is a request's header, `o` an answer's, `e`
# a variable of WSGI.
HIDDEN = frozenset(("q", "{query_string}e", "{cookie}i", "{http_cookie}e", "{set-cookie}o"))


class OneLineLogger(Logger):  # type: ignore[misc]
    """Handlers that come from a logging configuration of the operator's keep the formatters named there."""

    def setup(self, cfg: Any) -> None:
        super().setup(cfg)
        set_up()
        for handler in _own_handlers(self.error_log):
            handler.setFormatter(LineFormatter(log_options.load().format))
        for handler in _own_handlers(
            self.access_log
        ):  # switched on by the operator, in a format of their own
            handler.setFormatter(_OneLine())

    def atoms(self, resp: Any, req: Any, environ: dict[str, Any], request_time: Any) -> dict[str, Any]:
        """What a line of the access log is made of. Addresses are without their query, in all headers too."""
        found = super().atoms(resp, req, environ, request_time)
        shown = {name: _without_query(value) for name, value in found.items() if name not in HIDDEN}
        line = (environ["REQUEST_METHOD"], _without_query(environ["RAW_URI"]), environ["SERVER_PROTOCOL"])
        return {**shown, "r": " ".join(line)}


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return escaped(record.getMessage())


def _own_handlers(logger: logging.Logger) -> list[logging.Handler]:
    return [handler for handler in logger.handlers if getattr(handler, "_gunicorn", False)]


def _without_query(value: Any) -> Any:
    """Nothing of an object, such as Flask's request: its text may quote the address."""
    if isinstance(value, str):
        return value.partition("?")[0]
    return value if isinstance(value, int | None) else "-"
