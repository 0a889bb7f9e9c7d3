"""Setting up the log of a process that is ours. Importing this changes nothing; `set_up` does."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

from agentapp.logs import described
from agentapp.telemetry import log_options
from agentapp.telemetry.bound_records import make_records
from agentapp.telemetry.log_lines import LineFormatter

# The SDK and its HTTP client, which write out whole requests and answers at the level DEBUG, and SQLAlchemy,
# which writes statements with their values.
TALKATIVE = ("anthropic", "httpx2", "httpcore2", "sqlalchemy")

log = logging.getLogger(__name__)


def set_up() -> None:
    """Whatever nobody else handles goes to standard error, line by line. A bad setting is a `SettingError`.

    Where somebody has set up logging already, theirs stays.
    """
    options = log_options.load()
    make_records()
    if not logging.root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(LineFormatter(options.format))
        logging.root.addHandler(handler)
        logging.root.setLevel(options.level_of_libraries.upper())
        logging.getLogger("agentapp").setLevel(options.level.upper())
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _log_end_of_thread  # agentapp: shared ok - once, before there are threads
    _quieten_libraries(options.level_of_libraries)


def _quieten_libraries(level: str) -> None:
    """Whatever level the environment or an operator's own set-up gives them."""
    # The SDK reads it when it is imported, which may be later, and then sets the levels anew.
    os.environ.pop("ANTHROPIC_LOG", None)  # agentapp: shared ok - once, before there are threads
    for name in TALKATIVE:
        library = logging.getLogger(name)
        library.setLevel(max(library.level, logging.getLevelNamesMapping()[level.upper()]))


def _log_end_of_thread(ended: Any) -> None:
    if ended.exc_type is not SystemExit:
        name = ended.thread.name if ended.thread is not None else "?"
        log.error("thread %s ended with %s", name, described(ended.exc_value))
