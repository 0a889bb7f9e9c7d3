"""Server-sent events, as far as the Messages API needs them: the data of each, from bytes as they come."""

from __future__ import annotations

from collections.abc import Iterator


class EventDataDecoder:
    """Finds what the SDK's own decoder finds, but all that came together in one go."""

    def __init__(self) -> None:
        self._unfinished_line = b""
        self._ended_with_return = False  # a line feed that comes next belongs to it
        self._lines: list[str] = []

    def decode(self, received: bytes) -> Iterator[str]:
        """The data of each event that is complete now. An event without data is left out."""
        if not received:
            return
        if self._ended_with_return and received.startswith(b"\n"):
            received = received[1:]
        self._ended_with_return = received.endswith(b"\r")
        text = self._unfinished_line + received
        lines = text.splitlines()  # of bytes only at the ends of lines that the format knows
        is_finished = text.endswith((b"\n", b"\r"))
        self._unfinished_line = b"" if is_finished or not lines else lines.pop()
        for line in lines:
            if not line:
                if data := "\n".join(self._lines):
                    yield data
                self._lines.clear()
                continue
            field, _, value = line.decode().partition(":")
            if field == "data":
                self._lines.append(value.removeprefix(" "))
