"""How the workers of one machine tell each other that SQLite's write lock is free again.

SQLite itself cannot wait for its lock, only ask again and again. The lock stays SQLite's: what is told here
is only when to ask, so nothing is lost if it is told too often, too late or to nobody.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress

ASK_AGAIN_SECONDS = 0.001  # if nobody tells anything
ASK_AGAIN_AT_LATEST_SECONDS = 0.005  # a command in another terminal tells nobody


class LockNews:  # agentapp: shared ok - joined before the first request, and then only read
    """One process's end of it. Until `join`, nobody is told."""

    def __init__(self) -> None:
        self._pipe: tuple[int, int] | None = None

    def join(self, pipe: tuple[int, int]) -> None:
        """Of `make_pipe`, by the process that has forked all workers."""
        self._pipe = pipe

    def tell(self) -> None:
        """This process has let go of the lock."""
        if self._pipe is not None:
            with suppress(BlockingIOError):  # it is full: then there is enough to hear
                os.write(self._pipe[1], b".")

    def wait(self) -> None:
        """Until the lock may be free, and never for long."""
        if self._pipe is None:
            time.sleep(ASK_AGAIN_SECONDS)
            return
        told = select.poll()
        told.register(self._pipe[0], select.POLLIN)
        if told.poll(ASK_AGAIN_AT_LATEST_SECONDS * 1000):
            with suppress(BlockingIOError):  # another process has read it
                os.read(self._pipe[0], 4096)


def make_pipe() -> tuple[int, int]:
    pipe = os.pipe()
    for end in pipe:
        os.set_blocking(end, False)
    return pipe
