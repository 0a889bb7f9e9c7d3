"""Odd requests sent to a running server over many connections, and what must hold of every answer."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from agentapp.app import create_app
from agentapp.config import Settings
from tests.support.http_client import Visitor
from tests.support.odd_requests import Actor, Ids, OddRequest, OddRequests
from tests.support.retrying_users import Found
from tests.support.server import Server
from tests.support.server_users import PASSWORD, add_people, rows

HUNG_SECONDS = 10.0
STREAM_BYTES = 1500  # of an event stream, which then is cut off
SETTLE_SECONDS = 30.0
# What the server may answer although nothing is wrong with it. They are counted.
PROMISED_5XX = (b'"code": "busy"', b'"code":"busy"', b"<h1>Busy</h1>")
# What would do away with all that could be found.
TOO_THOROUGH = {"/account/delete-chats": {"POST"}}
# Limits that many requests of few people would meet all the time: then there would be no other answers.
RATES_OFF = {f"AGENTAPP_{name}": "off" for name in ("RATE_SESSION", "RATE_USER", "RATE_TENANT", "RATE_CHATS")}


class Hung(Exception):
    """There was no answer in time."""


@dataclass
class Fuzzed:
    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    promised: Counter[str] = field(default_factory=Counter)
    own_marks: int = 0
    wrong: list[str] = field(default_factory=list)

    def table(self) -> str:
        columns = sorted({status for _, status in self.statuses})
        width = max(len(route) for route, _ in self.statuses)
        lines = [" ".join([" " * width, *(f"{column:>7}" for column in columns)])]
        for route in sorted({route for route, _ in self.statuses}):
            counts = (self.statuses[route, column] or "" for column in columns)
            lines.append(" ".join([f"{route:{width}}", *(f"{count:>7}" for count in counts)]))
        return "\n".join(lines)


def routes(settings: Settings) -> list[tuple[str, frozenset[str]]]:
    rules = create_app(settings).url_map.iter_rules()
    found = [
        (rule.rule, frozenset(rule.methods or ()) - TOO_THOROUGH.get(rule.rule, set())) for rule in rules
    ]
    return [*found, ("/nowhere", frozenset({"GET", "POST"}))]


def people(url: str, database: str) -> list[Actor]:
    """Two users of two tenants, each with a mark of their own in all of their data; and a stranger."""
    actors = []
    for name in ("ann", "bob"):
        add_people(database, [name], tenant=f"tenant-of-{name}")
        actor = Actor(name, f"mark-of-{name}-5f3a9c")
        visitor = Visitor(url)
        visitor.sign_in(name, PASSWORD)
        for _ in range(5):
            chat = visitor.new_chat()
            told = visitor.send(chat, f"remember the {actor.mark}")
            assert told.status == 200, told.text
            actor.chats.append(chat)
            actor.turns.append((chat, str(re.findall(r'"turn_id": ?"([\w-]+)"', told.text)[0])))
            visitor.post(f"/chat/{chat}/rename", title=f"about {actor.mark}")
            actor.spare_chats.append(visitor.new_chat())
        actor.cookie = "; ".join(f"{key}={value}" for key, value in visitor.cookies.items())
        actor.csrf = visitor.csrf
        actors.append(actor)
    stranger = Visitor(url)
    page = stranger.get("/login").text
    cookie = "; ".join(f"{key}={value}" for key, value in stranger.cookies.items())
    token = re.findall(r'<meta name="csrf-token" content="([^"]+)"', page)[0]
    return [*actors, Actor("stranger", "", cookie, token), Actor("nobody", "")]


def fuzz(
    running: Server, database: str, settings: Settings, *, requests: int, seed: int, connections: int = 12
) -> tuple[Fuzzed, Found]:
    actors = people(running.url, database)
    workers = set(running.children())
    found, fuzzed, lock, ids = Found(), Fuzzed(), threading.Lock(), Ids()
    where, known_routes = urlsplit(running.url), routes(settings)
    began = time.monotonic()

    def send_share(number: int) -> None:
        made = OddRequests(f"{seed}-{number}", known_routes, actors)
        connection = Connection((where.hostname or "", where.port or 0))
        for _ in range(requests // connections):
            request = made.make()
            try:
                status, head, body = connection.ask(request)
            except Hung:
                status, head, body = "hung", b"", b""
            ids.learn(request, head, body)
            with lock:
                judge(request, status, head + body, actors, fuzzed)
        connection.close()

    threads = [threading.Thread(target=send_share, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.figures["requests"] = sum(fuzzed.statuses.values())
    found.figures["seconds"] = round(time.monotonic() - began)
    found.figures["answers with an own mark in them"] = fuzzed.own_marks
    found.figures["promised 5xx"] = dict(fuzzed.promised)
    found.wrong.extend(fuzzed.wrong)
    check_server(running, database, workers, actors, found)
    return fuzzed, found


def judge(request: OddRequest, status: str, answer: bytes, actors: Sequence[Actor], fuzzed: Fuzzed) -> None:
    fuzzed.statuses[request.route, status] += 1
    asked = f"{request.method} {request.route} of {request.actor.name}: {request.raw[:300]!r}"
    if status == "closed" and not request.is_last:
        fuzzed.wrong.append(f"no answer: {asked}")
    if status == "hung":
        fuzzed.wrong.append(f"no answer within {HUNG_SECONDS:g} s: {asked}")
    if status.startswith("5"):
        if status == "503" and any(words in answer for words in PROMISED_5XX):
            fuzzed.promised[f"{status} busy"] += 1
        else:
            fuzzed.wrong.append(f"{status}: {asked}: {answer[-300:]!r}")
    for actor in actors:
        if actor.mark and actor.mark.encode() in answer:
            if actor is request.actor:
                fuzzed.own_marks += 1
            else:
                fuzzed.wrong.append(f"the mark of {actor.name} in an answer: {asked}")


def check_server(
    running: Server, database: str, workers: set[int], actors: Sequence[Actor], found: Found
) -> None:
    """It is alive, nothing is left running, and its owners' data is still there."""
    ends = time.monotonic() + SETTLE_SECONDS
    left = "SELECT (SELECT count(*) FROM turns WHERE status = 'running') + (SELECT count(*) FROM live_turns)"
    while (count := rows(database, left)[0][0]) and time.monotonic() < ends:
        time.sleep(0.1)
    found.claim(count == 0, f"{count} turns are still running")
    found.claim(Visitor(running.url).get("/readyz").status == 200, "the server does not answer any more")
    found.claim(set(running.children()) == workers, "a worker has ended")
    log = running.output()
    said = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    wrong = {f"{line['logger']}: {line['event']}" for line in said if line["level"] == "error"}
    wrong |= {line for line in log.splitlines() if line.startswith("Traceback")}
    found.wrong.extend(f"in the log: {line}" for line in sorted(wrong))
    found.figures["lines in the log"] = log.count("\n")
    for actor in actors:
        found.claim(actor.mark not in log or not actor.mark, f"the mark of {actor.name} is in the log")
        if actor.mark:
            visitor = Visitor(running.url)
            visitor.sign_in(actor.name, PASSWORD)
            shown = visitor.get(f"/chat/{actor.chats[0]}").text
            found.claim(actor.mark in shown, f"the data of {actor.name} is gone")


class Connection:
    """One that is kept for as many requests as the server lets it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._sock: socket.socket | None = None
        self._received = b""

    def ask(self, request: OddRequest) -> tuple[str, bytes, bytes]:
        """Status, head and body; the status is "closed" if the server hung up instead."""
        is_kept = self._sock is not None
        try:
            return self._ask(request)
        except TimeoutError:
            self.close()
            raise Hung from None
        except (OSError, EOFError):
            self.close()
            if not is_kept:
                return "closed", b"", b""
        return self.ask(request)  # the server may hang up between two requests

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._sock, self._received = None, b""

    def _ask(self, request: OddRequest) -> tuple[str, bytes, bytes]:
        if self._sock is None:
            self._sock = socket.create_connection(self._address, HUNG_SECONDS)
            self._sock.settimeout(HUNG_SECONDS)
        with suppress(BrokenPipeError, ConnectionResetError):  # it may answer before it has read everything
            self._sock.sendall(request.raw)
        if request.is_last:
            with suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
        head = self._until(b"\r\n\r\n")
        while head.startswith(b"HTTP/1.1 100"):
            head = self._until(b"\r\n\r\n")
        status = head.split(b" ", 2)[1].decode()
        body, is_whole = self._body(request, status, head)
        if request.is_last or not is_whole or re.search(rb"\r\nConnection: close\r\n", head, re.I):
            self.close()
        return status, head, body

    def _body(self, request: OddRequest, status: str, head: bytes) -> tuple[bytes, bool]:
        """As much of it as is wanted, and whether that is all."""
        length = re.search(rb"\r\nContent-Length: (\d+)\r\n", head, re.I)
        if request.method == "HEAD" or status in ("204", "304"):
            return b"", True
        if b"text/event-stream" in head:
            with suppress(EOFError):
                return self._exactly(STREAM_BYTES), False
            return self._received, False
        if length:
            return self._exactly(int(length[1])), True
        if b"chunked" in head.lower():
            return self._until(b"\r\n0\r\n\r\n"), True
        with suppress(EOFError):
            self._exactly(10**9)
        return self._received, False

    def _until(self, end: bytes) -> bytes:
        while end not in self._received:
            self._receive()
        found, _, self._received = self._received.partition(end)
        return found + end

    def _exactly(self, count: int) -> bytes:
        while len(self._received) < count:
            self._receive()
        found, self._received = self._received[:count], self._received[count:]
        return found

    def _receive(self) -> None:
        assert self._sock is not None
        piece = self._sock.recv(65536)
        if not piece:
            raise EOFError if self._received else ConnectionResetError
        self._received += piece
