"""Frames of a WebSocket (RFC 6455) at the least cost: text of any length, never in parts."""

from __future__ import annotations

TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
# What a client sends has to be masked. With this mask it stays as it is.
MASKED, MASK = 0x80, bytes(4)
FINAL, LENGTH, SHORT, MEDIUM = 0x80, 0x7F, 126, 1 << 16


def framed(payload: bytes, kind: int = TEXT) -> bytes:
    """What a client sends."""
    size = len(payload)
    if size < SHORT:
        head = bytes((FINAL | kind, MASKED | size))
    elif size < MEDIUM:
        head = bytes((FINAL | kind, MASKED | SHORT)) + size.to_bytes(2)
    else:
        head = bytes((FINAL | kind, MASKED | SHORT + 1)) + size.to_bytes(8)
    return head + MASK + payload


class Frames:
    """What a server sends, in whatever pieces it comes."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """The frames that are complete now: their kinds and payloads."""
        self._rest += data
        found = []
        while len(self._rest) >= 2:
            begin, end = _payload(self._rest)
            if len(self._rest) < end:
                break
            found.append((self._rest[0] & 0x0F, self._rest[begin:end]))
            self._rest = self._rest[end:]
        return found


def _payload(frame: bytes) -> tuple[int, int]:
    """Where it begins and ends, if the frame's head is complete; if not, it ends after what there is."""
    size, begin = frame[1] & LENGTH, 2
    if size >= SHORT:
        begin = 4 if size == SHORT else 10
        size = int.from_bytes(frame[2:begin])
    return begin, begin + size
