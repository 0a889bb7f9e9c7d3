"""Who gets a thread next. Requests of one kind are a lane with threads of its own; users take turns in it.

Everything here happens in the worker's main loop, so nothing is locked.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_plus

from agentapp.processors import Processors
from agentapp.server.threads import Threads

# A page takes a processor for milliseconds and hardly ever waits. With more threads at once each would only
# take longer.
PAGE_THREADS = 16
STRANGER_THREADS = 2
SIGN_IN_THREADS = 2
STOP_THREADS = 8
# How many requests may wait in each lane. Together with those at work they must be fewer than the connections
# of a worker, or what waits would take the place of everything else.
STRANGERS_WAITING = 1024
SIGN_INS_WAITING = 128
PAGES_WAITING = 256
TURNS_WAITING = 768  # at most; mostly fewer: see `Shedding`
FOLLOWERS_WAITING = 128
LONG_WAITING_EACH = 64  # of one user
# Turns that have a thread and have not begun yet. With more at once each would only take longer, and so would
# everything else.
TURNS_BEGINNING = 4
STOPS_WAITING = 64
HEALTH_WAITING = 256
HEALTH_PATHS = ("/livez", "/readyz", "/metrics")
# What takes long: the thread streams, or waits for the answer.
TURN_PATHS = ("/messages", "/retry")
FOLLOWER_PATH = "/events"
STOP_PATH = "/stop"  # the thread waits for the turn to end
STATIC_PATH = "/static/"
SIGN_IN_PATH = "/login"
SIGN_IN_BYTES = 16 * 1024  # of the body: the name is looked for there
NAME_BYTES = 256
USERNAME = re.compile(rb'(?:^|&)username=([^&]*)|"username"\s*:\s*"([^"]*)"')
UNREAD_NAME = "?"


class Job(NamedTuple):
    """Exactly one of the two is called, once: ``run`` in a thread, or ``refuse`` if too many wait. ``came``
    is when it came, if that matters.
    """

    run: Callable[[], None]
    refuse: Callable[[], None]
    came: float = 0.0


class Lane:
    """Has ``threads``; of one key, such as a user, at most ``each`` requests are at work at once.

    The others wait, without a thread, in a queue of that key. A thread that is free takes from the
    queues in turn: so a key that sends a thousand at once delays its own and nobody else's.

    In a lane that ``is_patient`` nothing begins before `start` is called. If more than ``most_waiting`` wait,
    the newest of the key with the most in flight is refused, in the group with the most in flight. Of one key
    at most ``each_waiting`` wait. Of those at work at most ``beginning`` have not said yet that they have
    `begun`. What takes a processor for long may run ``anywhere``.
    """

    def __init__(
        self,
        name: str,
        threads: int,
        each: int,
        most_waiting: int,
        each_waiting: int | None = None,
        *,
        is_patient: bool = False,
        beginning: int | None = None,
        processors: Processors | None = None,
        anywhere: bool = False,
    ) -> None:
        self._is_patient = is_patient
        self._beginning, self._most_beginning = 0, beginning or threads
        self._most_waiting, self._each_waiting = most_waiting, each_waiting or most_waiting
        self.waiting = 0
        self._threads = Threads(f"agentapp-{name}", threads, processors, anywhere=anywhere)
        self.each, self._most_threads, self._free = each, threads, threads
        self._at_work: Counter[str] = Counter()
        self._queues: dict[str, _Queue] = {}
        self._groups: dict[str, str] = {}  # of the same keys
        self._of_group: Counter[str] = Counter()  # in flight
        self._next: dict[str, None] = {}  # the keys that may go on, whose turn it is first

    @property
    def has_no_thread(self) -> bool:
        return not self._free

    @property
    def at_work(self) -> int:
        return self._most_threads - self._free

    @property
    def is_full(self) -> bool:
        return not self._free or self._beginning >= self._most_beginning

    @property
    def can_start(self) -> bool:
        return bool(not self.is_full and self._next)

    def in_flight(self, key: str) -> int:
        queue = self._queues.get(key)
        return self._at_work[key] + (queue.waiting if queue else 0)

    def add(self, key: str, job: Job, part: str = "", group: str | None = None) -> None:
        """Run the job in a thread when it is its turn. After it, `done` must be called.

        Within a key, its parts take turns, and of a part that has a name one job is at work at once. A key
        without a group, such as a tenant, is one of its own.
        """
        self._queues.setdefault(key, _Queue()).add(part, job)
        self._of_group[self._groups.setdefault(key, group or key)] += 1
        self.waiting += 1
        self._let_take_turns(key)
        if not self._is_patient:
            self.start()
        if self._queues[key].waiting > self._each_waiting:
            self._refuse_newest(key)
        else:
            self.let_wait(self._most_waiting)

    def let_wait(self, most: int, came_after: float = 0.0) -> None:
        """Not more than so many, unless they came before that time: who has waited for long is not refused
        any more.
        """
        while self.waiting > most and (key := self._greediest(came_after)) is not None:
            self._refuse_newest(key)

    def begun(self) -> None:
        """One of those at work has begun: the next may."""
        self._beginning -= 1
        if not self._is_patient:
            self.start()

    def done(self, key: str, part: str = "", *, has_begun: bool = False) -> None:
        self._free += 1
        self._beginning -= not has_begun
        self._leave_group(key)
        self._at_work[key] -= 1
        self._queues[key].done(part)
        self._forget_if_empty(key)
        self._let_take_turns(key)
        if not self._is_patient:
            self.start()

    def shutdown(self, wait: bool) -> None:
        self._threads.shutdown(wait)

    def _let_take_turns(self, key: str) -> None:
        queue = self._queues.get(key)
        if queue is not None and queue.can_start and self._at_work[key] < self.each:
            self._next.setdefault(key)

    def start(self) -> None:
        """As many jobs as there are threads for."""
        while self.can_start:
            key = next(iter(self._next))
            del self._next[key]
            job = self._queues[key].take()
            self.waiting -= 1
            self._free -= 1
            self._beginning += 1
            self._at_work[key] += 1
            self._let_take_turns(key)
            self._threads.run(job.run)

    def _greediest(self, came_after: float) -> str | None:
        """Of the keys that have something waiting that came after that time. Among equals, who came last."""
        waiting = [key for key, queue in reversed(self._queues.items()) if queue.has_newer(came_after)]
        by_size = lambda key: (self._of_group[self._groups[key]], self.in_flight(key))  # noqa: E731
        return max(waiting, key=by_size, default=None)

    def _leave_group(self, key: str) -> None:
        group = self._groups[key]
        self._of_group[group] -= 1
        if not self._of_group[group]:
            del self._of_group[group]

    def _refuse_newest(self, key: str) -> None:
        job = self._queues[key].take_newest()
        self.waiting -= 1
        self._leave_group(key)
        if not self._queues[key].can_start:
            self._next.pop(key, None)
        self._forget_if_empty(key)
        job.refuse()

    def _forget_if_empty(self, key: str) -> None:
        if not self._at_work[key]:
            del self._at_work[key]
            if not self._queues[key].waiting:
                del self._queues[key]
                del self._groups[key]


class _Queue:
    """The jobs of one key that wait, and which named parts of it are at work."""

    def __init__(self) -> None:
        self._parts: dict[str, deque[Job]] = {}  # whose turn it is first
        self._at_work: set[str] = set()
        self.waiting = 0

    @property
    def can_start(self) -> bool:
        return any(part not in self._at_work for part in self._parts)

    def has_newer(self, than: float) -> bool:
        return any(jobs[-1].came >= than for jobs in self._parts.values())

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

    def take_newest(self) -> Job:
        """Of the part that has the most."""
        part = max(self._parts, key=lambda each: len(self._parts[each]))
        job = self._parts[part].pop()
        if not self._parts[part]:
            del self._parts[part]
        self.waiting -= 1
        return job

    def done(self, part: str) -> None:
        self._at_work.discard(part)


class Lanes:
    """Health checks, sign-ins, strangers, pages, stops and turns never wait for each other."""

    def __init__(self, threads: int, processors: Processors | None = None) -> None:
        lane = partial(Lane, processors=processors)
        self.turns = lane(
            "turn", threads, threads, TURNS_WAITING, LONG_WAITING_EACH, beginning=TURNS_BEGINNING
        )
        self._followers = lane("follow", threads, threads, FOLLOWERS_WAITING, LONG_WAITING_EACH)
        self._stops = lane("stop", STOP_THREADS, STOP_THREADS // 4, STOPS_WAITING)
        self.pages = lane("page", PAGE_THREADS, PAGE_THREADS // 4, PAGES_WAITING)
        self.strangers = lane(
            "stranger", STRANGER_THREADS, STRANGER_THREADS, STRANGERS_WAITING, is_patient=True, anywhere=True
        )
        # Each takes a processor for a tenth of a second: nobody's page waits for that.
        self._sign_ins = lane(
            "sign-in", SIGN_IN_THREADS, SIGN_IN_THREADS, SIGN_INS_WAITING, is_patient=True, anywhere=True
        )
        self._health = {path: lane(path[1:], 1, 1, HEALTH_WAITING) for path in HEALTH_PATHS}

    def limit_long(self, each: int) -> None:
        """How many turns, and how many streams that follow one, of one user may be at work at once."""
        self.turns.each = self._followers.each = each

    @property
    def are_full(self) -> bool:
        """Whether a request of somebody who has signed in may have to wait here for a thread."""
        return self.turns.is_full or self._followers.is_full or self.pages.is_full

    @property
    def has_no_thread(self) -> bool:
        """Whether all threads of a kind are taken, so that it may take long until one is free."""
        return any(lane.has_no_thread for lane in (self.turns, self._followers, self.pages))

    def lane_for(self, request: Any, user: str | None) -> Lane:
        """``request`` is None if it could not be read."""
        path = "" if request is None else path_of(request)
        if path in self._health:
            return self._health[path]
        if request is not None and is_sign_in(request):
            return self._sign_ins
        if user is None or request is None:
            return self.strangers
        if path.endswith(STOP_PATH):
            return self._stops
        if path.endswith(FOLLOWER_PATH):
            return self._followers
        return self.turns if path.endswith(TURN_PATHS) else self.pages

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
        lanes = (self.turns, self._followers, self._stops, self.pages, self.strangers, self._sign_ins)
        for lane in (*lanes, *self._health.values()):
            lane.shutdown(wait)


def path_of(request: Any) -> str:
    """As the application will see it: ``/event%73`` is the same as ``/events`` there."""
    return unquote(request.path)


def is_sign_in(request: Any) -> bool:
    return bool(request.method == "POST" and path_of(request) == SIGN_IN_PATH)


def is_static(request: Any) -> bool:
    return path_of(request).startswith(STATIC_PATH)


def name_signed_in_with(body: bytes) -> str:
    """By which sign-ins from one address take turns: otherwise who sends two hundred of them for one name
    would make everybody else there wait. What cannot be read here, such as a multipart form, is one name.
    """
    found = USERNAME.search(body[:SIGN_IN_BYTES])
    raw = (found[1] or found[2] or b"")[:NAME_BYTES] if found else b""
    name = unquote_plus(raw.decode(errors="replace"))
    return name.strip().casefold() or UNREAD_NAME
