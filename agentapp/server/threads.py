"""The threads of one lane: started when there is work and none is idle, ended when there is none for long."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue

from agentapp.processors import Processors, new_thread

# After a crowd has gone, its threads are not kept for ever: each has memory of its own.
IDLE_SECONDS = 10.0

Work = Callable[[], None]


class Threads:
    """At most so many at once. The one that became idle last works next: so the others can end. They stay on
    the worker's processor, or may run ``anywhere``.

    A `ThreadPoolExecutor` gives work to all of its threads in turn, keeps them all for ever, and makes a
    `Future` of each job, which nobody asks for here.
    """

    def __init__(
        self, name: str, most: int, processors: Processors | None = None, *, anywhere: bool = False
    ) -> None:
        self._name, self._most = name, most
        self._processors, self._anywhere = processors, anywhere
        self._lock = threading.RLock()  # gunicorn calls `shutdown` in a signal handler
        self._all: set[threading.Thread] = set()
        self._idle: list[SimpleQueue[Work | None]] = []  # of each thread the queue it waits at
        self._waiting: deque[Work] = deque()  # for a thread that has told it is done, but is not idle yet
        self._is_over = False

    def __len__(self) -> int:
        return len(self._all)

    def run(self, work: Work) -> None:
        with self._lock:
            if self._idle:
                self._idle.pop().put(work)
            elif len(self._all) >= self._most:
                self._waiting.append(work)
            else:
                first = partial(self._work, [work])
                thread = new_thread(first, self._name, self._processors, anywhere=self._anywhere)
                self._all.add(thread)
                thread.start()

    def shutdown(self, wait: bool) -> None:
        """What was begun, and what waits, is done first."""
        with self._lock:
            self._is_over = True
            while self._idle:
                self._idle.pop().put(None)
            left = list(self._all)
        if wait:
            for thread in left:
                thread.join()

    def _work(self, first: list[Work]) -> None:
        """``first`` is emptied: a thread keeps nothing of a request that it has answered."""
        queue: SimpleQueue[Work | None] = SimpleQueue()
        work: Work | None = first.pop()
        while work is not None:
            work()
            work = None
            work = self._next(queue)
        with self._lock:
            self._all.discard(threading.current_thread())

    def _next(self, queue: SimpleQueue[Work | None]) -> Work | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            if self._is_over:
                return None
            self._idle.append(queue)
        try:
            return queue.get(timeout=IDLE_SECONDS)
        except Empty:
            with self._lock:
                if queue in self._idle:
                    self._idle.remove(queue)
                    return None
        return queue.get()  # it was given some at the last moment
