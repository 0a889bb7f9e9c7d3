"""The token that one of a machine's workers has while it writes to SQLite: a byte in a pipe of theirs.

SQLite cannot wait for its lock, only be asked for it again and again, and each try that fails costs as much
as a statement. The lock stays SQLite's own. The token only says when it is worth trying, so no harm is done
if it is lost with a worker that was killed, or if there are two of it for a moment.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress

TRY_AGAIN_SECONDS = 0.001  # for a process that has no pipe
# Whoever waits that long for the token tries without it: it may be lost, or a command in another terminal
# writes, which knows nothing of it.
LONGEST_WAIT_SECONDS = 0.005
MOST_TOKENS = 4096


class WriteToken:  # agentapp: shared ok - joined before the first request, and then only read
    """One process's end of it. Until `join`, there is none to wait for."""

    def __init__(self) -> None:
        self._pipe: tuple[int, int] | None = None

    def join(self, pipe: tuple[int, int]) -> None:
        """Of `make_pipe`, by the process that has forked all workers."""
        self._pipe = pipe

    def take(self) -> None:
        """Before the first try."""
        if self._pipe is not None and not self._took(self._pipe[0]):
            self.wait()

    def wait(self) -> None:
        """Until the lock may be free, and never for long. Before each other try."""
        if self._pipe is None:
            time.sleep(TRY_AGAIN_SECONDS)
            return
        given_back = select.poll()
        given_back.register(self._pipe[0], select.POLLIN)
        if given_back.poll(LONGEST_WAIT_SECONDS * 1000):
            self._took(self._pipe[0])  # unless another process is quicker

    def give_back(self) -> None:
        """Also by who has none: then it is lost, or another process will have two and give back one."""
        if self._pipe is not None:
            with suppress(BlockingIOError):
                os.write(self._pipe[1], b".")

    @staticmethod
    def _took(end: int) -> bool:
        try:
            return bool(os.read(end, MOST_TOKENS))
        except BlockingIOError:
            return False


def make_pipe() -> tuple[int, int]:
    """With the token in it."""
    pipe = os.pipe()
    for end in pipe:
        os.set_blocking(end, False)
    os.write(pipe[1], b".")
    return pipe
