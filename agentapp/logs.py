"""What may go into the log: the kinds and places of errors, no words of people or models, and one line each.

How a record becomes a line is in `telemetry.log_lines`; how the log is set up, in `telemetry.log_setup`.
"""

from __future__ import annotations

import traceback

MAX_FRAMES = 20  # of one exception, the innermost; a recursion has a thousand


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
