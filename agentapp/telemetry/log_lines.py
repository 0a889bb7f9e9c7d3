"""How a record of the standard library's logging becomes one line: as JSON, or in words for people.

All of our code logs by ``logging.getLogger(__name__)``, with what belongs to a line as ``extra``. To add a
field, add its name to `FIELDS` and its row to docs/observability.md.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from agentapp.logs import described, escaped
from agentapp.telemetry.bound_records import BOUND_SCOPE

if TYPE_CHECKING:
    from structlog.typing import Processor

# The ids of the scope for which a thread worked when it wrote a line.
IDS = ("request_id", "tenant_id", "user_id", "session_id", "turn_id")
# What else a line may have. Nothing else that a record brings along is written: a library may have put
# anything there.
FIELDS = (
    "method",
    "route",
    "status",
    "turn_status",
    "ms",
    "code",
    "agent",
    "model",
    "input_tokens",
    "output_tokens",
    "cost_usd",
    "provider_status",
    "provider_error",
    "provider_request_id",
    "count",
    "job",
)
COLUMN = 24  # where the fields begin, in a line for people


class LineFormatter(logging.Formatter):
    """Each record is one line, whatever is in it, and an exception in it is `described`.

    structlog is imported with the first line: most commands write none. Its own formatter for such records
    copies each of them, which would take as long as all of the rest.
    """

    def __init__(self, line_format: str) -> None:
        super().__init__()
        self._line_format = line_format

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        return escaped(str(self._render(None, level, _fields(record, level))))

    @cached_property
    def _render(self) -> Processor:
        from structlog.dev import ConsoleRenderer
        from structlog.processors import JSONRenderer

        if self._line_format == "json":
            write = json.JSONEncoder(default=repr).encode  # made once
            return JSONRenderer(lambda fields, **_: write(fields))
        # Without colours: a line gives no orders to the terminal.
        return ConsoleRenderer(colors=False, pad_event_to=COLUMN, sort_keys=False)


def _fields(record: logging.LogRecord, level: str) -> dict[str, object]:
    """What a line has, in this order."""
    found: dict[str, object] = {
        "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": level,
        "event": record.getMessage(),
    }
    given = record.__dict__
    for name in FIELDS:
        if (value := given.get(name)) is not None:
            found[name] = value
    scope = given.get(BOUND_SCOPE)
    for name in IDS:  # what is given comes first, also if it is empty
        if value := given.get(name, getattr(scope, name, None)):
            found[name] = value
    if record.exc_info:
        found["error"] = described(record.exc_info[1])
    found["logger"], found["pid"] = record.name, record.process
    return found
