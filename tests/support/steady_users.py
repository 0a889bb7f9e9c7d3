"""People who try everything once: each page, message and form of theirs must succeed at the first try."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from agentapp.agents.providers.demo.rules import INTRODUCTION
from tests.support.http_client import Broken, Stream
from tests.support.server_users import Seat, add_people, rows, seats

EVENTS, JSON = "text/event-stream", "application/json"


@dataclass
class Tried:
    """What all of them did, and every time that it did not go well. Each thread has one of its own."""

    done: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # of what should be quick: pages and forms
    sent: dict[str, str] = field(default_factory=dict)  # the text of each message, and its chat

    def note(self, what: str, wrong: object) -> None:
        self.done[what] += 1
        if wrong:
            self.failed.append(f"{what}: {wrong}"[:600])


def send(seat: Seat, tried: Tried) -> None:
    """A message without a key: whoever sends it again sends another one."""
    text = " ".join([f"mark-{secrets.token_hex(8)}", *("word" for _ in range(random.randrange(2, 20)))])
    reply = f"{INTRODUCTION}\n\nYou said: {text}"
    kind = random.choice((EVENTS, JSON))
    tried.sent[text] = seat.chat
    try:
        answer = Stream(seat.visitor, f"/chat/{seat.chat}/messages", {"message": text}, accept=kind)
        if kind == EVENTS:
            end = answer.rest().end or {}
            told = (answer.status, end.get("status"), end.get("reply"), answer.text)
            wanted = (200, "completed", reply, reply)
            in_order = answer.ids == list(range(1, len(answer.ids) + 1))
            wrong = not (told == wanted and in_order) and (told, answer.ids, answer.body)
        else:
            answer.leave()
            wrong = (answer.status != 200 or answer.json.get("reply") != reply) and (
                answer.status,
                answer.body,
            )
    except (Broken, TimeoutError) as error:
        wrong = repr(error)
    tried.note(f"message as {kind}", wrong)


def look(seat: Seat, tried: Tried) -> None:
    path = random.choice((f"/chat/{seat.chat}", "/chat", "/account"))
    _quick(
        f"GET {path}" if path == "/account" else "GET a chat",
        200,
        lambda: seat.visitor.get(path).status,
        tried,
    )


def choose_theme(seat: Seat, tried: Tried) -> None:
    """The quickest form there is: what comes at a bad moment is mostly one of these."""
    theme = random.choice(("dark", "light"))
    _quick("POST", 303, lambda: seat.visitor.post("/theme", theme=theme, next="/chat").status, tried)


def _quick(what: str, wanted: int, ask: Callable[[], int], tried: Tried) -> None:
    began = time.monotonic()
    try:
        status = ask()
    except OSError as error:
        tried.note(what, repr(error))
    else:
        tried.note(what, status != wanted and status)
    tried.seconds.append(time.monotonic() - began)


@dataclass
class Crowd:
    """Those who are at it. ``tried`` is whole when the block has ended."""

    each: list[Tried]

    @property
    def tried(self) -> Tried:
        together = Tried()
        for one in self.each:
            together.done += one.done
            together.failed += one.failed
            together.seconds += one.seconds
            together.sent |= one.sent
        return together

    @property
    def messages(self) -> int:
        return sum(len(one.sent) for one in self.each)


@contextmanager
def at_it(url: str, database: str, *, senders: int, readers: int, clickers: int) -> Iterator[Crowd]:
    """They go on while the body runs, and bring to an end what they are at."""
    doing: Sequence[Callable[[Seat, Tried], None]] = (
        *[send] * senders,
        *[look] * readers,
        *[choose_theme] * clickers,
    )
    names = [f"p{secrets.token_hex(5)}" for _ in doing]
    add_people(database, names, tenant=f"t{secrets.token_hex(3)}")
    places, crowd, over = seats(url, names), Crowd([Tried() for _ in doing]), threading.Event()

    def go_on(act: Callable[[Seat, Tried], None], seat: Seat, tried: Tried) -> None:
        while not over.is_set():
            act(seat, tried)

    with ThreadPoolExecutor(len(doing)) as pool:
        jobs = [pool.submit(go_on, *each) for each in zip(doing, places, crowd.each, strict=True)]
        try:
            yield crowd
        finally:
            over.set()
        for job in jobs:
            job.result()


def kept_otherwise(database: str, tried: Tried) -> list[str]:
    """Messages that are not kept exactly once, with exactly one answer."""
    query = (
        "SELECT content, session_id, count(*) FROM messages WHERE role = 'user' GROUP BY content, session_id"
    )
    kept = {(text, chat): count for text, chat, count in rows(database, query) if text.startswith("mark-")}
    wrong = [
        f"kept {kept.get((text, chat), 0)} times: {text[:21]}"
        for text, chat in tried.sent.items()
        if kept.get((text, chat)) != 1
    ]
    statuses = dict(rows(database, "SELECT status, count(*) FROM turns GROUP BY status"))
    return wrong + [f"turns ended as {statuses}"] * bool(statuses.keys() - {"completed"})
