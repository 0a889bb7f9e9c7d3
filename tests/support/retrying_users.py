"""Users who send again until they are told how a turn ended, and what must hold after whatever has happened
to the server meanwhile. The scenarios are in client_scenarios.py and shutdown_scenarios.py.
"""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from agentapp.agents.providers.demo.rules import INTRODUCTION
from tests.support.http_client import Broken, Event, Stream, Visitor
from tests.support.messages_api import MessagesApi, Script
from tests.support.server import Server
from tests.support.server_users import (
    TIMEOUT_SECONDS,
    Seat,
    add_people,
    cells,
    obey_the_last,
    reserved,
    rows,
    seats,
    served,
    wait_for,
)

EVENTS, JSON = "text/event-stream", "application/json"
MARK = re.compile(r"mark-[0-9a-f]{16}")
TOLERATED_SECONDS = 10.0  # seconds more than promised that are still no error on a busy machine
SECONDS_PER_WORD = 0.03
COUNTED_WITHIN_SECONDS = 10.0
POLL_SECONDS = 0.02  # between two looks at something that takes its time
BIG = Script(pieces=("0123456789 " * 2000,) * 100, output_tokens=100)  # more than a socket holds

# Everything is counted, nobody is refused: what is reserved must be seen to be given back.
LIMITS_NOBODY_REACHES: Mapping[str, object] = {
    "breaker_failures": 1_000,
    "breaker_user_failures": 100_000,
    "provider_breaker_users": 200,
    "budget_session_tokens": 10**12,
    "budget_user_day_usd": 1_000_000,
    "budget_tenant_month_usd": 1_000_000,
}


@dataclass(frozen=True, slots=True)
class Words:
    """A message nobody else ever sends, and what the model says to it."""

    mark: str
    text: str
    reply: str


def words(count: int = 8, told: str = "") -> Words:
    mark = f"mark-{secrets.token_hex(8)}"
    said = " ".join([mark, *(f"word{n}" for n in range(count))])
    return Words(mark, f"{said} {told}".strip(), f"You said: {said}")


class CountingModel:
    """A model that answers as told by the last text alone, and knows how often it was asked what.

    ``[[big]]`` makes it say more than a megabyte.
    """

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._changed = threading.Condition()

    def __call__(self, request: Any) -> Script:
        marks = MARK.findall(json.dumps(request["messages"][-1]))
        with self._changed:
            self._asked.update(marks[-1:])
            self._changed.notify_all()
        script = obey_the_last(request)
        return BIG if "[[big]]" in json.dumps(request["messages"][-1]["content"][-1:]) else script

    def calls(self, mark: str) -> int:
        with self._changed:
            return self._asked[mark]

    def wait_for(self, mark: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._asked[mark] > 0, TIMEOUT_SECONDS), (
                "the model was not asked"
            )


@dataclass
class Found:
    """What a run has shown: figures to print, and every claim that did not hold."""

    figures: dict[str, object] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)  # what a busy machine may be to blame for

    def claim(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)

    def claim_in_time(self, what: str, seconds: float, limit: float) -> None:
        if seconds > limit:
            late = f"{what} took {seconds:.1f} s, more than {limit:g}"
            (self.wrong if seconds > limit + TOLERATED_SECONDS else self.slow).append(late)

    def note_times(self, name: str, seconds: Sequence[float]) -> None:
        shown = (f"{at(seconds, share) * 1000:,.0f}" for share in (0.5, 0.99, 1.0))
        self.figures[name] = "p50 {} ms, p99 {} ms, most {} ms".format(*shown) + f" of {len(seconds):,}"


def at(figures: Sequence[float], share: float) -> float:
    return sorted(figures)[min(len(figures) - 1, int(len(figures) * share))] if figures else float("nan")


@dataclass
class Installation:
    """A running server with the database below it and the model behind it."""

    database: str
    running: Server
    api: MessagesApi
    model: CountingModel
    is_demo: bool
    word_seconds: float

    def words(self, count: int) -> Words:
        """For an answer that comes word by word, ``word_seconds`` seconds each."""
        if not self.is_demo:
            return words(count, f"[[slow:{self.word_seconds}]]")
        plain = words(count)
        return replace(plain, reply=f"{INTRODUCTION}\n\nYou said: {plain.text}")

    def seats(self, count: int, chats_each: int = 10) -> list[Seat]:
        """So many chats of people who were not there before."""
        people = -(-count // chats_each)
        names = [f"p{secrets.token_hex(5)}" for _ in range(people)]
        add_people(self.database, names, tenant=f"t{secrets.token_hex(3)}")
        return seats(self.running.url, names, min(count, chats_each))[:count]


@contextmanager
def installation(
    directory: Path,
    database: str,
    *,
    demo: bool = False,
    model: CountingModel | None = None,
    word_seconds: float = SECONDS_PER_WORD,
    **settings: Any,
) -> Iterator[Installation]:
    """Open on that database, with a model of its own, or with the demo: workers start faster without the SDK.
    Everything else is as in `served`.
    """
    heard = model or CountingModel()
    with MessagesApi(responder=heard) as api:
        chosen = {"demo_delay": word_seconds, **LIMITS_NOBODY_REACHES, **settings}
        with served(directory, database, None if demo else api, **chosen) as running:
            yield Installation(database, running, api, heard, demo, word_seconds)


def form(said: Words, key: str) -> dict[str, str]:
    return {"message": said.text, "idempotency_key": key}


def send(seat: Seat, said: Words, key: str | None = None, accept: str = EVENTS, **more: Any) -> Stream:
    path = f"/chat/{seat.chat}/messages"
    return Stream(seat.visitor, path, form(said, key or secrets.token_hex(8)), accept=accept, **more)


def vanish(seat: Seat, said: Words) -> None:
    """Send, and be gone before anything can come back."""
    where = urlsplit(seat.visitor.url)
    body = urlencode({"csrf_token": seat.visitor.csrf, **form(said, secrets.token_hex(8))})
    cookies = "; ".join(f"{name}={value}" for name, value in seat.visitor.cookies.items())
    head = (
        f"POST /chat/{seat.chat}/messages HTTP/1.1\r\nHost: {where.netloc}\r\nAccept: {EVENTS}\r\n"
        f"Cookie: {cookies}\r\nContent-Type: application/x-www-form-urlencoded\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((where.hostname, where.port)) as connection:
        connection.sendall((head + body).encode())


def resume(seat: Seat, turn_id: str, after: int) -> Stream:
    """The rest of a turn, asked for in one of the two ways."""
    path = f"/chat/{seat.chat}/turns/{turn_id}/events"
    if random.random() < 0.5:
        return Stream(seat.visitor, path, after=after)
    return Stream(seat.visitor, f"{path}?after={after}")


@dataclass
class Sent:
    """One message and everything that was ever said about it."""

    words: Words
    key: str
    accept: str
    turns: set[str] = field(default_factory=set)
    events: list[Event] = field(default_factory=list)
    status: str = ""
    reply: str = ""
    acknowledged: bool = False


@dataclass
class Talk:
    """Somebody in a chat who asks again, with the same key, until told how it ended.

    ``leaving`` is how often they leave a stream in the middle, on purpose, and come back for the rest.
    """

    seat: Seat
    next_words: Callable[[int], Words]
    longest: int = 15  # words in a message
    leaving: float = 0.0
    sent: list[Sent] = field(default_factory=list)
    trouble: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def run(self, until: threading.Event) -> None:
        while not until.is_set():
            length = random.randrange(self.longest // 2, self.longest)
            self.say(self.next_words(length), random.choice((EVENTS, EVENTS, JSON)))

    def say(self, said: Words, accept: str = EVENTS) -> Sent:
        sent = Sent(said, secrets.token_hex(8), accept)
        self.sent.append(sent)
        ends = time.monotonic() + TIMEOUT_SECONDS
        while not self.is_over(sent):
            if time.monotonic() > ends:
                self.wrong.append(f"{said.mark}: nobody told how it ended")
                break
            try:
                self._try(sent)
            except Broken:
                self.trouble["broken connections"] += 1
                time.sleep(5 * POLL_SECONDS)  # a browser waits longer
        return sent

    def is_over(self, sent: Sent) -> bool:
        """Whether nothing more is asked about that message."""
        return bool(sent.status)

    def _try(self, sent: Sent) -> None:
        if sent.accept == EVENTS and sent.events and random.random() < 0.5:
            self._read(sent, resume(self.seat, min(sent.turns), sent.events[-1].id))
        else:
            sent.events.clear()
            self._read(sent, send(self.seat, sent.words, sent.key, sent.accept))

    def _read(self, sent: Sent, answer: Stream) -> None:
        sent.acknowledged = sent.acknowledged or answer.status == 200
        if not answer.is_events:
            self._take(sent, answer)
            return
        if answer.status != 200:
            self.trouble[f"status {answer.status}"] += 1
            return
        leaves = random.randrange(1, 8) if random.random() < self.leaving else None
        try:
            for event in answer:
                self._note(sent, event)
                if leaves is not None and len(answer.events) >= leaves:
                    answer.leave()
                    return
        finally:
            answer.leave()
        if answer.end is None:
            self.trouble["streams that ended early"] += 1

    def _note(self, sent: Sent, event: Event) -> None:
        expected = sent.events[-1].id + 1 if sent.events else 1
        if event.id != expected:
            self.wrong.append(f"{sent.words.mark}: event {event.id} came where {expected} should")
        sent.events.append(event)
        if event.kind in ("turn_started", "turn_completed"):
            sent.turns.add(event.data["turn_id"])
        if event.kind == "turn_completed":
            sent.status, sent.reply = event.data["status"], event.data["reply"]
            text = "".join(each.data["text"] for each in sent.events if each.kind == "text")
            if sent.status == "completed" and text != sent.reply:
                self.wrong.append(f"{sent.words.mark}: streamed {text!r}, told {sent.reply!r}")

    def _take(self, sent: Sent, answer: Stream) -> None:
        """The whole result at once, or a refusal."""
        answer.leave()
        body = answer.json
        if answer.status != 200:
            self.trouble[f"{answer.status} {body.get('code')}"] += 1
            time.sleep(5 * POLL_SECONDS)
            return
        sent.turns.add(body["turn_id"])
        sent.status, sent.reply = body["status"], body["reply"]


@dataclass
class Crew:
    """Those who talk, each on a thread."""

    hush: threading.Event
    jobs: list[Future[None]]

    def hear_out(self) -> None:
        """Nobody begins anything new, and everybody is told how the last one ended."""
        self.hush.set()
        for job in self.jobs:
            job.result()


@contextmanager
def talking(talks: Sequence[Talk]) -> Iterator[Crew]:
    """They talk while the body runs, unless it hushes them before."""
    hush = threading.Event()
    with ThreadPoolExecutor(len(talks)) as pool:
        crew = Crew(hush, [pool.submit(talk.run, hush) for talk in talks])
        try:
            yield crew
        finally:
            hush.set()
        crew.hear_out()


def wait_until_quiet(found: Found, url: str, patience: float = 20.0) -> None:
    """Until nothing runs and nothing is kept for anything that runs."""
    began = time.monotonic()
    while (left := leftovers(url)) and time.monotonic() < began + patience + TOLERATED_SECONDS:
        time.sleep(5 * POLL_SECONDS)
    took = time.monotonic() - began
    found.claim(not left, f"left over after {took:.1f} s: {left}")
    found.claim_in_time("giving everything back", took, patience)
    found.figures["until nothing was left running"] = f"{took:.1f} s"


def examine(found: Found, installation: Installation, talks: Sequence[Talk]) -> None:
    """Whether all agrees that was told and that is kept, and whether every chat still works."""
    for talk in talks:
        found.wrong += talk.wrong
        found.wrong += [f"{talk.seat.chat}: {wrong}" for wrong in contradictions(talk)]
        for sent in talk.sent:
            calls = installation.model.calls(sent.words.mark)
            found.claim(calls <= 1, f"{sent.words.mark}: the model was asked {calls} times")
    with ThreadPoolExecutor(8) as pool:
        for last in pool.map(
            lambda talk: Talk(talk.seat, installation.words).say(installation.words(2)), talks
        ):
            found.claim(last.status == "completed", f"a chat is of no use any more: {last}")
    found.figures["messages"] = f"{sum(len(talk.sent) for talk in talks):,}"
    found.figures["how they ended"] = dict(Counter(sent.status for talk in talks for sent in talk.sent))
    found.figures["what the clients met with"] = dict(sum((talk.trouble for talk in talks), Counter()))
    examine_log(found, installation)


def turns_counted(installation: Installation) -> Counter[str]:
    """By status, as the metrics of all workers tell."""
    text = Visitor(installation.running.url).get("/metrics").text
    found = re.findall(r'^agentapp_turns_total\{status="(\w+)"\} (\S+)', text, re.M)
    return Counter({status: int(float(count)) for status, count in found if float(count)})


def examine_counts(
    found: Found, installation: Installation, talks: Sequence[Talk], before: Counter[str]
) -> None:
    """The metrics say of how many turns there were what the people say, and the database. ``before`` is what
    was counted before they came. A worker that takes a killed one's place needs a moment for what that left.
    `examine` has had one more turn of each of them.
    """
    told = Counter(sent.status for talk in talks for sent in talk.sent) + Counter(completed=len(talks))
    with suppress(AssertionError):
        wait_for(lambda: turns_counted(installation) - before == told, COUNTED_WITHIN_SECONDS)
    counted = turns_counted(installation)
    stored = Counter(dict(rows(installation.database, "SELECT status, count(*) FROM turns GROUP BY status")))
    found.claim(counted - before == told, f"people were told {told}, counted were {counted - before}")
    found.claim(counted == stored, f"stored are {stored}, counted were {counted}")
    found.figures["turns counted"] = f"{sum(told.values()):,}: {dict(told)}"


def leftovers(url: str) -> dict[Any, Any]:
    """What is there only while turns run: their rows, and if there are none, what is reserved."""
    query = (
        "SELECT (SELECT count(*) FROM turns WHERE status = 'running'), (SELECT count(*) FROM live_turns), "
        "(SELECT count(*) FROM turn_events)"
    )
    counts = dict(zip(("running", "live_turns", "turn_events"), rows(url, query)[0], strict=True))
    return {name: count for name, count in counts.items() if count} or reserved(cells(url))


def examine_log(found: Found, installation: Installation) -> None:
    log = installation.running.output()
    for bad in ("Traceback", "QueuePool", "isolation violation"):
        if bad in log:
            near = log.index(bad)
            found.claim(False, f"{bad} in the log: ...{log[max(0, near - 300) : near + 1500]}")


def exported(visitor: Visitor, chat: str) -> dict[str, Any]:
    answer = visitor.get(f"/chat/{chat}/export.json")
    assert answer.status == 200, answer.text
    found: dict[str, Any] = json.loads(answer.body)
    return found


def contradictions(talk: Talk) -> Iterator[str]:
    """Between what somebody was told and what is kept."""
    kept = exported(talk.seat.visitor, talk.seat.chat)
    messages, statuses = kept["messages"], {turn["id"]: turn["status"] for turn in kept["turns"]}
    if [message["seq"] for message in messages] != list(range(1, len(messages) + 1)):
        yield f"the sequence has gaps: {[message['seq'] for message in messages]}"
    if len(statuses) != len(kept["turns"]):
        yield "a turn is there twice"
    if doubled := _doubled((message["turn_id"], message["role"]) for message in messages):
        yield f"said twice in one turn: {doubled}"
    asked = [(message["content"], message["turn_id"]) for message in messages if message["role"] == "user"]
    answers = {message["turn_id"]: message["content"] for message in messages if message["role"] != "user"}
    if doubled := _doubled(text for text, _ in asked):
        yield f"asked twice: {doubled}"
    turn_of = dict(asked)
    if strangers := turn_of.keys() - {sent.words.text for sent in talk.sent}:
        yield f"never sent: {strangers}"
    told = [sent.words.text for sent in talk.sent if sent.acknowledged]
    if [text for text, _ in asked if text in set(told)] != told:
        yield f"lost or out of order: {set(told) - turn_of.keys()}"
    for sent in talk.sent:
        if turn_id := turn_of.get(sent.words.text):
            yield from _contradictions(sent, turn_id, statuses.get(turn_id), answers.get(turn_id, ""))


def _contradictions(sent: Sent, turn_id: str, status: str | None, answer: str) -> Iterator[str]:
    mark = sent.words.mark
    if sent.turns - {turn_id}:
        yield f"{mark}: kept as turn {turn_id}, told {sent.turns}"
    if sent.status and (status, answer) != (sent.status, sent.reply):
        yield f"{mark}: kept {(status, answer)!r}, told {(sent.status, sent.reply)!r}"
    if status not in ("completed", "interrupted"):
        yield f"{mark}: is {status}"
    elif status == "completed" and answer != sent.words.reply:
        yield f"{mark}: answered {answer!r}"
    elif not sent.words.reply.startswith(answer):
        yield f"{mark}: {answer!r} is not how the answer begins"


def _doubled(things: Iterable[object]) -> list[object]:
    return [thing for thing, count in Counter(things).items() if count > 1]


def memory(running: Server) -> int:
    """Resident bytes of all workers."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page for pid in running.children())
