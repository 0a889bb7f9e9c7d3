"""What is said in a measurement: a message that tells the model how to answer, and that answer."""

from __future__ import annotations

import re
from dataclasses import dataclass

ASKED = re.compile(rb"Say (\d+) words, one each ([0-9.]+) s\.")


@dataclass(frozen=True)
class Talk:
    """So many words, with so many seconds between two of them."""

    words: int
    pace: float

    @property
    def message(self) -> str:
        return f"Say {self.words} words, one each {self.pace:g} s."

    @property
    def pieces(self) -> list[str]:
        return [f"word{n}" + (" " if n < self.words else "") for n in range(1, self.words + 1)]

    @property
    def reply(self) -> str:
        return "".join(self.pieces)

    @property
    def seconds(self) -> float:
        """How long it takes to say it if nothing is late."""
        return (self.words - 1) * self.pace


PLAIN = Talk(20, 0)
STREAMED = Talk(40, 0.25)


def asked_for(body: bytes) -> Talk:
    """What the newest message in a request to the model asks for."""
    found = ASKED.match(body, body.rfind(b"Say "))
    return Talk(int(found[1]), float(found[2])) if found else PLAIN
