"""What may go into the log, and in which form: no words of people or models, and one line a record."""

from __future__ import annotations

import copy
import logging
import os
import threading
import traceback
from typing import Any

FORMAT = "%(asctime)s [%(process)d] [%(levelname)s] %(message)s"
DATE_FORMAT = "[%Y-%m-%d %H:%M:%S %z]"
MAX_FRAMES = 20  # of one exception, the innermost; a recursion has a thousand

# The SDK and its HTTP client, which write out whole requests and answers at the level DEBUG.
TALKATIVE = ("anthropic", "httpx2", "httpcore2")

log = logging.getLogger(__name__)


def described(error: BaseException | None) -> str:
    """Of what kind an error and its causes are, and where they were raised. Never what they say.

    The words of an exception may be what a person or a model wrote: the input that a validator refused, the
    row that a constraint refused, the body of a provider's answer.
    """
    parts: list[str] = []
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        frames = traceback.extract_tb(error.__traceback__)[-MAX_FRAMES:]
        places = " < ".join(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in reversed(frames))
        parts.append(f"{type(error).__name__} at {places}" if places else type(error).__name__)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "; because of ".join(parts)


def escaped(text: str) -> str:
    """Without line ends, escape sequences and anything else that a terminal or a reader of lines obeys."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class OneLineFormatter(logging.Formatter):
    """Each record is one line, whatever is in it, and an exception in it is `described`."""

    def format(self, record: logging.LogRecord) -> str:
        record = copy.copy(record)
        if record.exc_info:
            record.msg, record.args = f"{record.getMessage()}: {described(record.exc_info[1])}", None
        record.exc_info = record.exc_text = None
        return escaped(super().format(record))


def set_up() -> None:
    """For a process that is ours: whatever nobody else handles goes to standard error, line by line.

    Where somebody has set up logging already, theirs stays.
    """
    if not logging.root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(OneLineFormatter(FORMAT, DATE_FORMAT))
        logging.root.addHandler(handler)
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _log_end_of_thread  # agentapp: shared ok - once, before there are threads
    _quieten_libraries()


def _quieten_libraries() -> None:
    """Whatever level the environment or an operator's own set-up gives them."""
    # The SDK reads it when it is imported, which may be later, and then sets the levels anew.
    os.environ.pop("ANTHROPIC_LOG", None)  # agentapp: shared ok - once, before there are threads
    for name in TALKATIVE:
        library = logging.getLogger(name)
        library.setLevel(max(library.level, logging.WARNING))


def _log_end_of_thread(ended: Any) -> None:
    if ended.exc_type is not SystemExit:
        name = ended.thread.name if ended.thread is not None else "?"
        log.error("thread %s ended with %s", name, described(ended.exc_value))
