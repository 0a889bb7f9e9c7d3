"""Reading a model's answer on a thread of its own, for the driver that waits on another."""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue

from agentapp.agents.drivers.deadlines import SilenceTimer
from agentapp.agents.drivers.progress import usage_in
from agentapp.agents.provider import ModelCall, Provider, Reply
from agentapp.errors import ProviderGarbled
from agentapp.events import Usage


class StreamReader:
    """One model call. ``run`` is for the thread that reads, ``next_item`` for the thread that waits.

    ``spent`` is what the call has cost, as far as the provider has said: it may be ahead of ``next_item``.
    """

    def __init__(self, provider: Provider, call: ModelCall) -> None:
        self._provider, self._call = provider, call
        self.items: SimpleQueue[str | Usage | Reply | Exception] = SimpleQueue()
        self.spent = Usage()

    def run(self) -> None:
        try:
            pieces = self._provider.stream(self._call)
            try:
                for piece in pieces:
                    self._put(piece)
                    if self._call.cancellation.is_cancelled:
                        return
            finally:
                close = getattr(pieces, "close", None)
                if close is not None:
                    close()
            self._put(ProviderGarbled("The model's answer ended too early."))
        except Exception as error:
            self._put(error)
        except BaseException as error:  # an exit meant for this thread must not end the thread that waits
            self._put(ProviderGarbled(f"The model's answer ended with {type(error).__name__}."))

    def next_item(self, timer: SilenceTimer, turn_ends: float) -> str | Reply | Exception:
        """The next piece, the reply, or what the provider raised; an empty piece if there was none for a
        while. Raises when a deadline has passed.
        """
        began = time.monotonic()
        seconds = timer.next_wait(turn_ends - began)
        try:
            item = self.items.get(timeout=seconds)
        except Empty:
            timer.add(seconds)
            return ""
        if isinstance(item, Usage):
            timer.add(time.monotonic() - began)
            return ""
        timer.restart()
        return item

    def _put(self, item: str | Usage | Reply | Exception) -> None:
        self.spent = usage_in(item) or self.spent
        self.items.put(item)
