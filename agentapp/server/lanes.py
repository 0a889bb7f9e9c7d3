"""Who gets a thread next. Requests of one kind are a lane with threads of its own; users take turns in it.

Everything here happens in the worker's main loop, so nothing is locked.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote_plus

# A page takes a processor for milliseconds and hardly ever waits. With more threads at once each would only
# take longer.
PAGE_THREADS = 16
STRANGER_THREADS = 2
SIGN_IN_THREADS = 2
HEALTH_PATHS = ("/livez", "/readyz")
# What takes long: the thread streams, or waits for the answer.
LONG_PATHS = ("/messages", "/retry", "/events")
SIGN_IN_PATH = "/login"
USERNAME = re.compile(rb'(?:^|&)username=([^&]*)|"username"\s*:\s*"([^"]*)"')
UNREAD_NAME = "?"

Job = Callable[[], None]


class Lane:
    """Has ``threads``; of one key, such as a user, at most ``each`` requests are at work at once.

    The others wait, without a thread, in a queue of that key. A thread that is free takes from the
    queues in turn: so a key that sends a thousand at once delays its own and nobody else's.

    In a lane that ``is_patient`` nothing begins before `start` is called.
    """

    def __init__(self, name: str, threads: int, each: int, *, is_patient: bool = False) -> None:
        self._is_patient = is_patient
        self._pool = ThreadPoolExecutor(threads, f"agentapp-{name}")
        self.each, self._free = each, threads
        self._at_work: Counter[str] = Counter()
        self._queues: dict[str, _Queue] = {}
        self._next: dict[str, None] = {}  # the keys that may go on, whose turn it is first

    @property
    def is_full(self) -> bool:
        return not self._free

    @property
    def can_start(self) -> bool:
        return bool(self._free and self._next)

    def in_flight(self, key: str) -> int:
        queue = self._queues.get(key)
        return self._at_work[key] + (queue.waiting if queue else 0)

    def add(self, key: str, job: Job, part: str = "") -> None:
        """Run the job in a thread when it is its turn. After it, `done` must be called.

        Within a key, its parts take turns, and of a part that has a name one job is at work at once.
        """
        self._queues.setdefault(key, _Queue()).add(part, job)
        self._let_take_turns(key)
        if not self._is_patient:
            self.start()

    def done(self, key: str, part: str = "") -> None:
        self._free += 1
        self._at_work[key] -= 1
        self._queues[key].done(part)
        if not self._at_work[key]:
            del self._at_work[key]
            if not self._queues[key].waiting:
                del self._queues[key]
        self._let_take_turns(key)
        if not self._is_patient:
            self.start()

    def shutdown(self, wait: bool) -> None:
        self._pool.shutdown(wait)

    def _let_take_turns(self, key: str) -> None:
        queue = self._queues.get(key)
        if queue is not None and queue.can_start and self._at_work[key] < self.each:
            self._next.setdefault(key)

    def start(self) -> None:
        """As many jobs as there are threads for."""
        while self._free and self._next:
            key = next(iter(self._next))
            del self._next[key]
            job = self._queues[key].take()
            self._free -= 1
            self._at_work[key] += 1
            self._let_take_turns(key)
            self._pool.submit(job)


class _Queue:
    """The jobs of one key that wait, and which named parts of it are at work."""

    def __init__(self) -> None:
        self._parts: dict[str, deque[Job]] = {}  # whose turn it is first
        self._at_work: set[str] = set()
        self.waiting = 0

    @property
    def can_start(self) -> bool:
        return any(part not in self._at_work for part in self._parts)

    def add(self, part: str, job: Job) -> None:
        self._parts.setdefault(part, deque()).append(job)
        self.waiting += 1

    def take(self) -> Job:
        part = next(part for part in self._parts if part not in self._at_work)
        jobs = self._parts.pop(part)
        job = jobs.popleft()
        if jobs:
            self._parts[part] = jobs
        if part:
            self._at_work.add(part)
        self.waiting -= 1
        return job

    def done(self, part: str) -> None:
        self._at_work.discard(part)


class Lanes:
    """Health checks, sign-ins, strangers, pages and turns never wait for each other."""

    def __init__(self, threads: int) -> None:
        self._long = Lane("long", threads, threads)
        self.pages = Lane("page", PAGE_THREADS, PAGE_THREADS // 4)
        self.strangers = Lane("stranger", STRANGER_THREADS, STRANGER_THREADS, is_patient=True)
        # Each takes a processor for a tenth of a second: nobody's page waits for that.
        self._sign_ins = Lane("sign-in", SIGN_IN_THREADS, SIGN_IN_THREADS, is_patient=True)
        self._health = {path: Lane(path[1:], 1, 1) for path in HEALTH_PATHS}

    def limit_long(self, each: int) -> None:
        """How many long requests of one user may be at work at once."""
        self._long.each = each

    @property
    def are_full(self) -> bool:
        """Whether a request of somebody who has signed in may have to wait here for a thread."""
        return self._long.is_full or self.pages.is_full

    def lane_for(self, request: Any, user: str | None) -> Lane:
        """``request`` is None if it could not be read."""
        if request is not None and request.path in self._health:
            return self._health[request.path]
        if request is not None and is_sign_in(request):
            return self._sign_ins
        if user is None or request is None:
            return self.strangers
        return self._long if request.path.endswith(LONG_PATHS) else self.pages

    @property
    def can_start_strangers(self) -> bool:
        return self.strangers.can_start or self._sign_ins.can_start

    def start_strangers(self) -> None:
        """And sign-ins. To be called when the main loop has nothing else to do. Threads at work slow it down;
        while many strangers come at once, it must first see who else is among them.
        """
        self.strangers.start()
        self._sign_ins.start()

    def shutdown(self, wait: bool) -> None:
        """By this name because gunicorn calls it."""
        for lane in (self._long, self.pages, self.strangers, self._sign_ins, *self._health.values()):
            lane.shutdown(wait)


def is_sign_in(request: Any) -> bool:
    return bool(request.method == "POST" and request.path == SIGN_IN_PATH)


def name_signed_in_with(body: bytes) -> str:
    """By which sign-ins from one address take turns: otherwise who sends two hundred of them for one name
    would make everybody else there wait. What cannot be read here, such as a multipart form, is one name.
    """
    found = USERNAME.search(body)
    name = unquote_plus((found[1] or found[2] or b"").decode(errors="replace")) if found else ""
    return name.strip().casefold() or UNREAD_NAME
