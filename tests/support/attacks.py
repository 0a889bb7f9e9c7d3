"""Clients that mean harm, and a person who works meanwhile. Only ever against a server on 127.0.0.1.

The suite does these with few connections, ``bench/attacks/`` with many, and the same code.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.client import HTTPConnection, HTTPException
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from tests.support.http_client import Visitor
from tests.support.retrying_users import Found, at
from tests.support.server import Server
from tests.support.users import PASSWORD, csrf_of

GONE_WITHIN_SECONDS = 35.0
LEAST_SECONDS = 10.0  # for a person to send a few messages
PROBE_SECONDS = 0.05
PROBES_AT_ONCE = 50
PAGE_SECONDS = 0.25
TURN_SECONDS = 3.2  # between two: a chat takes 20 a minute
SMALL_WINDOW = 2048
SIGN_IN_SECONDS = 0.25  # between two people who sign in while others attack
STATIC = b"GET /static/app.js HTTP/1.1\r\nHost: a\r\n\r\n"

OPEN_STATES = ("01", "08")  # in /proc/net/tcp: established, and closed by the client alone

Attack = Callable[[tuple[str, int]], list[socket.socket]]


def half_headers(count: int) -> Attack:
    """One byte of a request, and nothing more."""
    return lambda where: [connected(where, b"G") for _ in range(count)]


def half_bodies(count: int) -> Attack:
    """A request whose body never comes."""
    request = b"POST /login HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\na="
    return lambda where: [connected(where, request) for _ in range(count)]


def unread_answers(count: int, each: int = 1) -> Attack:
    """Nobody reads the answers. Half of the clients have next to no room to receive them in."""
    return lambda where: [
        connected(where, STATIC * each, SMALL_WINDOW if number % 2 else None) for number in range(count)
    ]


def no_hang_up(a_second: int, seconds: float) -> Attack:
    """Requests that are answered; then the client stays. Every other one would use the connection again."""

    def attack(where: tuple[str, int]) -> list[socket.socket]:
        started, opened = time.monotonic(), []
        for number in range(int(a_second * seconds)):
            opened.append(connected(where, _answered_request(number)))
            time.sleep(max(0.0, started + number / a_second - time.monotonic()))
        return opened

    return attack


def no_hang_up_at_once(count: int) -> Attack:
    return lambda where: [connected(where, _answered_request(number)) for number in range(count)]


def pipelined(count: int, each: int) -> Attack:
    """Whole requests, many at once on each connection, and the answers are not read."""
    return lambda where: [connected(where, _answered_request(0) * each) for _ in range(count)]


def _answered_request(number: int) -> bytes:
    close = b"Connection: close\r\n" if number % 2 else b""
    return b"GET /login HTTP/1.1\r\nHost: a\r\n" + close + b"\r\n"


def connected(where: tuple[str, int], data: bytes, window: int | None = None) -> socket.socket:
    sock = socket.socket()
    if window is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    sock.settimeout(30)
    sock.connect(where)
    with suppress(OSError):  # it may be closed already
        sock.sendall(data)
    sock.setblocking(False)
    return sock


@dataclass
class Person:
    """Somebody who loads pages and sends messages all the time, and a health check beside."""

    url: str
    visitor: Visitor
    chat: str
    live: list[float] = field(default_factory=list)
    pages: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def working(self) -> Iterator[None]:
        jobs: Sequence[tuple[float, list[float], Callable[[], int]]] = (
            (PROBE_SECONDS, self.live, lambda: Visitor(self.url).get("/livez").status),
            (PAGE_SECONDS, self.pages, lambda: self._copy().get(f"/chat/{self.chat}").status),
            (TURN_SECONDS, self.turns, lambda: self._copy().send(self.chat, "hello").status),
        )
        with ThreadPoolExecutor(PROBES_AT_ONCE) as pool:
            clocks = [threading.Thread(target=self._repeat, args=(pool, *job)) for job in jobs]
            for clock in clocks:
                clock.start()
            try:
                yield
            finally:
                self._over.set()
                for clock in clocks:
                    clock.join()

    def _copy(self) -> Visitor:
        return replace(self.visitor, cookies=dict(self.visitor.cookies))

    def _repeat(
        self, pool: ThreadPoolExecutor, every: float, times: list[float], ask: Callable[[], int]
    ) -> None:
        """Begun by the clock, whether or not the one before has been answered: else the slowest moments
        would be asked about the least.
        """
        due = time.monotonic()
        while not self._over.wait(max(0.0, due - time.monotonic())):
            pool.submit(self._ask, due, times, ask)
            due += every

    def _ask(self, due: float, times: list[float], ask: Callable[[], int]) -> None:
        try:
            status = ask()
        except Exception as error:
            self.wrong.append(f"{error!r} instead of an answer")
        else:
            if status != 200:
                self.wrong.append(f"{status} instead of 200")
        times.append(time.monotonic() - due)


def person_at(url: str, name: str) -> Person:
    visitor = Visitor(url)
    visitor.sign_in(name, PASSWORD)
    return Person(url, visitor, visitor.new_chat())


def attacked(
    running: Server,
    name: str,
    attack: Attack,
    *,
    gone_within: float = GONE_WITHIN_SECONDS,
    live_p99: float | None = None,
) -> Found:
    """The attack, and what it does to a person of this name and to the server. ``live_p99`` is how long a
    health check may take; on a machine that does other things besides, nothing can be said about that.
    """
    found, workers = Found(), running.children()
    person = person_at(running.url, name)
    parts = urlsplit(running.url)
    with person.working():
        began = time.monotonic()
        strangers = attack((parts.hostname or "", parts.port or 0))
        found.figures["connections"] = f"{len(strangers):,} within {time.monotonic() - began:.1f} s"
        ended = time.monotonic()
        left = wait_until_gone(strangers, ended + gone_within)
        found.figures["strangers left"] = f"{left:,} after {time.monotonic() - ended:.1f} s"
        time.sleep(max(1.0, began + LEAST_SECONDS - time.monotonic()))
    for sock in strangers:
        sock.close()
    found.claim(not left, f"{left:,} strangers are still there after {gone_within:g} s")
    found.claim(running.children() == workers, "a worker was replaced")
    found.claim("Traceback" not in running.output(), "a traceback in the log")
    found.claim(len(person.turns) >= 2, "the person could not send")
    found.wrong += person.wrong[:10]
    if live_p99 is not None and at(person.live, 0.99) > live_p99:
        found.slow.append(f"/livez took more than {live_p99 * 1000:g} ms at p99")
    for what, times in (("/livez", person.live), ("page", person.pages), ("turn", person.turns)):
        found.note_times(what, times)
    return found


def wait_until_gone(strangers: Sequence[socket.socket], until: float) -> int:
    """How many of the connections the server has not ended by then. Nothing is read from them: a client that
    does not read is not told that the server has hung up, so the server's side is asked.
    """
    server = strangers[0].getpeername()[1]
    clients = {sock.getsockname()[1] for sock in strangers}
    while (left := clients & _connected_to(server)) and time.monotonic() < until:
        time.sleep(0.2)
    return len(left)


def _connected_to(server: int) -> set[int]:
    """The ports of the clients to which this port is connected: accepted or not, but not closed."""
    clients = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote = (int(fields[n].rpartition(":")[2], 16) for n in (1, 2))
        if local == server and (fields[3] in OPEN_STATES or fields[9] != "0"):
            clients.add(remote)
    return clients


def sign_ins_attacked(
    url: str,
    names: Sequence[str],
    password: str,
    people: Sequence[str],
    *,
    connections: int,
    seconds: float,
    p99: float | None = None,
) -> Found:
    """So many connections sign in with these names and this password as fast as they can, while other people
    sign in from the same address. ``p99`` is how long those people may take; each of them has to get in.
    """
    found = Found()
    calm = _sign_ins_of(people, url, seconds)
    # From a process of its own: here it would slow down the clock that measures.
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(time.monotonic).result()
        attack = pool.submit(sign_in_again_and_again, url, names, password, connections, seconds + 1)
        time.sleep(1.0)
        attacked = _sign_ins_of(people, url, seconds)
        answers = attack.result()
    for what, tried in (("calm", calm), ("attacked", attacked)):
        found.note_times(f"another person's sign-in, {what}", tried.times)
        found.wrong += tried.wrong[:10]
    found.figures["ratio of p50, of p99"] = ", ".join(
        f"{at(attacked.times, share) / at(calm.times, share):.1f}" for share in (0.5, 0.99)
    )
    found.figures["answers to the attackers"] = dict(sorted(answers.items()))
    if p99 is not None and at(attacked.times, 0.99) > p99:
        found.slow.append(f"another person's sign-in took more than {p99:g} s at p99")
    return found


@dataclass
class TimedSignIns:
    times: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def _sign_ins_of(people: Sequence[str], url: str, seconds: float) -> TimedSignIns:
    """One after the other, by the clock, each with a browser that has never been here."""
    found, began = TimedSignIns(), time.monotonic()
    with ThreadPoolExecutor(PROBES_AT_ONCE) as pool:
        for number in range(int(seconds / SIGN_IN_SECONDS)):
            due = began + number * SIGN_IN_SECONDS
            time.sleep(max(0.0, due - time.monotonic()))
            pool.submit(_sign_in_once, url, people[number % len(people)], due, found)
    return found


def _sign_in_once(url: str, name: str, due: float, found: TimedSignIns) -> None:
    try:
        Visitor(url).sign_in(name, PASSWORD)
    except Exception as error:
        found.wrong.append(f"{error!r:.200}")
    found.times.append(time.monotonic() - due)


def sign_in_again_and_again(
    url: str, names: Sequence[str], password: str, connections: int, seconds: float
) -> Counter[int]:
    """How often each status came; 0 stands for a connection that broke."""
    over = time.monotonic() + seconds
    with ThreadPoolExecutor(connections) as pool:
        jobs = [
            pool.submit(_sign_in_until, over, url, names[number % len(names)], password)
            for number in range(connections)
        ]
        return sum((job.result() for job in jobs), Counter[int]())


def _sign_in_until(over: float, url: str, name: str, password: str) -> Counter[int]:
    """With the cookie that it got as a stranger each time, so that it stays a stranger to the server."""
    answers: Counter[int] = Counter()
    visitor, where = Visitor(url), urlsplit(url)
    visitor.csrf = csrf_of(visitor.get("/login").text)
    body = urlencode({"csrf_token": visitor.csrf, "username": name, "password": password})
    headers = {
        "Accept": "application/json",
        "Content-Type": "application/x-www-form-urlencoded",
        "Cookie": "; ".join(f"{key}={value}" for key, value in visitor.cookies.items()),
    }
    connection = HTTPConnection(where.hostname or "", where.port, timeout=30)
    while time.monotonic() < over:
        try:
            connection.request("POST", "/login", body, headers)
            answer = connection.getresponse()
            answer.read()
            answers[answer.status] += 1
        except (OSError, HTTPException):
            answers[0] += 1
            connection.close()
    connection.close()
    return answers
