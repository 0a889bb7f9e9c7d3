"""What readers and models do to a server, so many times: leave, come back, ask twice, say nothing, stop."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from tests.support.http_client import Event, Stream, Visitor
from tests.support.retrying_users import (
    BIG,
    EVENTS,
    JSON,
    POLL_SECONDS,
    Found,
    Installation,
    Words,
    at,
    examine_log,
    exported,
    resume,
    send,
    vanish,
    wait_until_quiet,
    words,
)
from tests.support.server_users import TIMEOUT_SECONDS, Seat, add_people, at_once, cells, rows, wait_for
from tests.support.users import PASSWORD


def resumes(installation: Installation, count: int, at_a_time: int = 8) -> Found:
    """Streams are left and taken up again, at either worker, from several places at once, and late."""
    found, readings = Found(), list[Reading]()

    def read(seat: Seat) -> None:
        while sum(reading.resumed for reading in readings) < count:
            readings.append(Reading(installation, seat, found))
            readings[-1].run()

    on_threads(read, installation.seats(at_a_time))
    asked_at = sum((reading.asked_at for reading in readings), Counter[str]())
    found.figures["turns"] = f"{len(readings):,}"
    found.figures["resumes"] = f"{sum(reading.resumed for reading in readings):,}"
    found.figures["asked at"] = dict(asked_at)
    found.claim(len(asked_at) == 2, f"all were asked at {list(asked_at)}")
    examine_log(found, installation)
    return found


class Reading:
    """One turn, read in pieces."""

    def __init__(self, installation: Installation, seat: Seat, found: Found) -> None:
        self._installation, self._seat, self._found = installation, seat, found
        self._said = words(random.randrange(10, 40), "[[slow:0.02]]")
        self._events: list[Event] = []
        self.asked_at: Counter[str] = Counter()
        self.resumed = 0

    def run(self) -> None:
        first = send(self._seat, self._said).upto(random.randrange(1, 6))
        self._worker = self._installation.running.worker_of(first.port)
        first.leave()
        self._events += first.events
        while self._events[-1].kind != "turn_completed":
            if self.resumed == 3:
                points = random.choices([event.id for event in self._events], k=3)
                at_once([partial(self._hear_out, point) for point in points])
            self._events += self._rest(self._events[-1].id, random.choice((0, 1, 2, 5, 10))).events
        self._claim(self._text() == self._said.reply, f"the joined text is {self._text()!r}")
        for point in random.choices([0, *(event.id for event in self._events[:-1])], k=2):
            self._hear_out(point)  # when all is over

    def _hear_out(self, after: int) -> None:
        """What came up to there and what comes now are the whole answer, once."""
        rest = self._rest(after)
        text, end = self._text(after) + rest.text, rest.end or {}
        told = (end.get("status"), end.get("reply"))
        self._claim(told == ("completed", self._said.reply), f"after {after} it ended as {end}")
        self._claim(text == self._said.reply, f"after {after} the text becomes {text!r}")

    def _rest(self, after: int, count: int | None = None) -> Stream:
        rest = resume(self._seat, str(self._events[0].data["turn_id"]), after)
        where = self._installation.running.worker_of(rest.port)
        if where is not None:  # a short answer may have been sent and forgotten already
            self.asked_at["the worker that answers" if where == self._worker else "another"] += 1
        rest = rest.rest() if count is None else rest.upto(count)
        rest.leave()
        self._claim(rest.status == 200, f"{rest.status} {rest.body!r}")
        wanted = list(range(after + 1, after + 1 + len(rest.ids)))
        self._claim(rest.ids == wanted, f"after {after} came {rest.ids}")
        self.resumed += 1
        return rest

    def _text(self, upto: int = 10**9) -> str:
        return "".join(
            event.data["text"] for event in self._events if event.kind == "text" and event.id <= upto
        )

    def _claim(self, holds: bool, otherwise: str) -> None:
        self._found.claim(holds, f"{self._said.mark}: {otherwise}")


def doubles(installation: Installation, count: int, at_a_time: int = 4) -> Found:
    """The same message many times at once, for a stream or for the whole result, is one turn and one call."""
    found, rounds, asked_at = Found(), iter(range(count)), Counter[int | None]()

    def submit(seat: Seat) -> None:
        for _ in rounds:
            said, key = words(random.randrange(1, 6), "[[slow:0.01]]"), secrets.token_hex(8)
            kinds = random.choices((EVENTS, JSON), k=random.randrange(2, 21))
            told = set(at_once([partial(answered, seat, said, key, kind) for kind in kinds]))
            calls, turns = installation.model.calls(said.mark), turns_about(seat, said.mark)
            found.claim(len(told) == 1, f"{said.mark}: told {told}")
            found.claim({end for _, end in told} == {("completed", said.reply)}, f"{said.mark}: told {told}")
            found.claim({turn for turn, _ in told} == set(turns), f"{said.mark}: told {told}, kept {turns}")
            found.claim((calls, len(turns)) == (1, 1), f"{said.mark}: {calls} calls, {len(turns)} turns")
            other = send(seat, words(), key, random.choice((EVENTS, JSON)))
            found.claim(other.status == 422, f"another text with this key: {other.status} {other.body!r}")
            other.leave()

    def answered(seat: Seat, said: Words, key: str, kind: str) -> tuple[str | None, tuple[str, str]]:
        answer = send(seat, said, key, kind)
        asked_at[installation.running.worker_of(answer.port)] += 1
        end = (answer.rest().end if answer.is_events else answer.json) or {}
        answer.leave()
        found.claim(answer.status == 200, f"{said.mark}: {answer.status} {answer.body!r}")
        if answer.is_events:
            found.claim(answer.text == end.get("reply"), f"{said.mark}: streamed {answer.text!r}")
            found.claim(answer.ids == list(range(1, len(answer.ids) + 1)), f"{said.mark}: {answer.ids}")
        return end.get("turn_id"), (str(end.get("status")), str(end.get("reply")))

    on_threads(submit, installation.seats(at_a_time, chats_each=1))
    found.figures["messages"] = f"{count:,}, each sent 2 to 20 times at once"
    found.figures["asked at each worker"] = sorted(times for pid, times in asked_at.items() if pid)
    found.claim(len(asked_at.keys() - {None}) == 2, f"only one worker was asked: {asked_at}")
    wait_until_quiet(found, installation.database)
    examine_log(found, installation)
    return found


def turns_about(seat: Seat, mark: str) -> list[str]:
    said = exported(seat.visitor, seat.chat)["messages"]
    return [
        message["turn_id"] for message in said if message["role"] == "user" and mark in message["content"]
    ]


def silent(installation: Installation, count: int, deadline: float) -> Found:
    """A model that says nothing: every turn ends in time, and nobody else notices."""
    found, places, open_before = (
        Found(),
        installation.seats(count, chats_each=25),
        installation.api.open_connections,
    )
    over = threading.Event()

    def wait_in_vain(seat: Seat) -> tuple[float, float]:
        sent = time.monotonic()
        stream = send(seat, words(1, "[[hang:600]]")).rest()
        end = stream.end or {}
        found.claim(end.get("status") == "failed", f"ended as {stream.status} {stream.body!r} {end}")
        return stream.events[0].at - sent, stream.events[-1].at - stream.events[0].at

    with ThreadPoolExecutor(2) as pool:
        watching = [
            pool.submit(look_around, installation, over, found),
            pool.submit(watch_transactions, installation, count, over, found),
        ]
        try:
            times = at_once([partial(wait_in_vain, seat) for seat in places])
        finally:
            over.set()
        ended = time.monotonic()
        while installation.api.open_connections > open_before and time.monotonic() < ended + 20:
            time.sleep(POLL_SECONDS)
        closed = time.monotonic() - ended
        for one in watching:
            one.result()
    found.claim_in_time("closing the connections to the model", closed, 2)
    took = [turn for _, turn in times]
    found.claim(deadline <= min(map(sum, times)), f"a turn took only {min(map(sum, times)):.1f} s")
    found.claim_in_time("a turn", max(took), deadline + 2)
    found.note_times(f"turns with {deadline:g} s for the first word", took)
    found.note_times("until such a turn was let in, all sent at once", [let_in for let_in, _ in times])
    found.figures["connections to the model closed after"] = f"{closed:.2f} s"
    wait_until_quiet(found, installation.database)
    examine_log(found, installation)
    return found


def look_around(installation: Installation, over: threading.Event, found: Found) -> None:
    """Somebody who only reads: health, sign-in, the chat page."""
    times: dict[str, list[float]] = {"/livez": [], "sign-in": [], "the chat page": []}
    name, url = f"p{secrets.token_hex(5)}", installation.running.url
    add_people(installation.database, [name])
    reader = Visitor(url)
    reader.sign_in(name, PASSWORD)
    page = f"/chat/{reader.new_chat()}"

    def timed(what: str, ask: Callable[[], Any]) -> None:
        began = time.monotonic()
        answer = ask()
        times[what].append(time.monotonic() - began)
        found.claim(answer is None or answer.status == 200, f"{what}: {answer}")

    while not over.is_set():
        timed("/livez", partial(Visitor(url).get, "/livez"))
        timed("sign-in", partial(Visitor(url).sign_in, name, PASSWORD))
        timed("the chat page", partial(reader.get, page))
        over.wait(5 * POLL_SECONDS)
    for what, seconds in times.items():
        found.note_times(f"{what} meanwhile", seconds)


def watch_transactions(installation: Installation, count: int, over: threading.Event, found: Found) -> None:
    """None may be open for long while half of so many turns wait for the model. Others may be at work."""
    if installation.database.startswith("sqlite"):
        return
    looks, most, longest = 0, 0, 0.0
    query = (
        "SELECT count(*), coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0) "
        "FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'"
    )
    while not over.wait(0.1):
        if installation.api.in_progress < count // 2:
            continue
        ((open_ones, age),) = rows(installation.database, query)
        looks, most, longest = looks + 1, max(most, open_ones), max(longest, float(age))
    found.figures["idle in transaction"] = f"at most {most}, for {longest * 1000:.0f} ms, in {looks} looks"
    found.claim_in_time("a transaction", longest, 1)


def stops(installation: Installation, count: int, at_a_time: int = 4) -> Found:
    """Stop, at either worker, while the model is silent from the beginning or from the middle on."""
    found, took, asked_at, rounds = Found(), list[float](), Counter[str](), iter(range(count))
    before = breakers(installation)

    def several(seat: Seat) -> None:
        with ThreadPoolExecutor(1) as pool:
            for number in rounds:
                stop_one(seat, pool, stalls=number % 2 == 0)

    def stop_one(seat: Seat, pool: ThreadPoolExecutor, *, stalls: bool) -> None:
        said = words(5, "[[stall:600]]" if stalls else "[[hang:600]]")
        stream = send(seat, said).upto(1)
        worker = installation.running.worker_of(stream.port)
        installation.model.wait_for(said.mark)
        while stalls and not stream.text:
            next(stream)
        reading, began = pool.submit(stream.rest), time.monotonic()
        path = f"/chat/{seat.chat}/turns/{stream.turn_id}/stop"
        answer = Stream(seat.visitor, path, {}, accept=JSON)
        where = installation.running.worker_of(answer.port)
        answer.leave()
        end = reading.result().end or {}
        took.append(stream.events[-1].at - began)
        asked_at["the worker that answers" if where == worker else "another"] += 1
        is_told = answer.status == 200 and answer.json.get("turn_id") == stream.turn_id
        found.claim(is_told, f"{said.mark}: Stop was answered {answer.status} {answer.body!r}")
        found.claim(end.get("status") == "stopped", f"{said.mark} ended as {end}")
        found.claim(end.get("reply") == stream.text, f"{said.mark}: {stream.text!r} became {end}")
        found.claim(bool(stream.text) == stalls, f"{said.mark}: said {stream.text!r}")
        found.wrong += kept_otherwise(seat, stream.turn_id, "stopped", stream.text)
        after = words(2)
        end = send(seat, after).rest().end or {}
        found.claim(end.get("reply") == after.reply, f"the turn after a stopped one ended as {end}")

    on_threads(several, installation.seats(at_a_time))
    found.note_times("from Stop to the end of the stream", took)
    found.figures["asked at"] = dict(asked_at)
    found.claim_in_time("Stop (p99)", at(took, 0.99), 1)
    found.claim(len(asked_at) == 2, f"all were asked at {list(asked_at)}")
    moved = {key: state for key, state in breakers(installation).items() if before.get(key) != state}
    found.claim(not moved, f"breakers moved: {moved}")
    wait_until_quiet(found, installation.database)
    examine_log(found, installation)
    return found


def breakers(installation: Installation) -> dict[tuple[str, str], Any]:
    """Those that have anything to tell."""
    found = {key: (cell.get("breaker"), cell["mark"]) for key, cell in cells(installation.database).items()}
    return {key: state for key, state in found.items() if any(state)}


def streams(
    installation: Installation, count: int, said: Words, meanwhile: Callable[[], None] = lambda: None
) -> Found:
    """So many slow answers at once, all of them read to the end. ``meanwhile`` runs once all have begun."""
    found, places = Found(), installation.seats(count, chats_each=25)
    # They come in quick succession. What a rush does is not asked here: some would be told to come back.
    door, begun = threading.Semaphore(32), threading.Barrier(count + 1)

    def read(seat: Seat) -> tuple[float, float]:
        with door:
            began = time.monotonic()
            stream = send(seat, said).upto(2)
            first = time.monotonic() - began
        begun.wait(TIMEOUT_SECONDS)
        end = stream.rest().end or {}
        whole = time.monotonic() - began
        told = (stream.text, end.get("reply"), end.get("status"))
        found.claim(told == (said.reply, said.reply, "completed"), f"{stream.status} {stream.body!r} {told}")
        found.claim(stream.ids == list(range(1, len(stream.ids) + 1)), f"ids {stream.ids}")
        return first, whole

    with ThreadPoolExecutor(count) as pool:
        reading = [pool.submit(read, seat) for seat in places]
        begun.wait(TIMEOUT_SECONDS)
        meanwhile()
        times = [one.result() for one in reading]
    found.note_times("the first word", [first for first, _ in times])
    found.note_times("the whole answer", [whole for _, whole in times])
    wait_until_quiet(found, installation.database)
    examine_log(found, installation)
    return found


def logins(installation: Installation) -> Found:
    """A user who signs out is told no more by any stream. All others are, and the turn is kept."""
    found, names = Found(), [f"p{secrets.token_hex(5)}" for _ in range(2)]
    add_people(installation.database, names)
    here, elsewhere, other = (Visitor(installation.running.url) for _ in range(3))
    for visitor, name in ((here, names[0]), (elsewhere, names[0]), (other, names[1])):
        visitor.sign_in(name, PASSWORD)
    mine, theirs = Seat(here, here.new_chat()), Seat(other, other.new_chat())
    said = [words(100, "[[slow:0.05]]") for _ in range(2)]
    replies = [each.reply for each in said]
    posted, others = send(mine, said[0]).upto(3), send(theirs, said[1]).upto(3)
    turn_id = str(posted.turn_id)
    fetched = resume(mine, turn_id, 0).upto(3)
    at_home = resume(Seat(elsewhere, mine.chat), turn_id, 0).upto(3)
    with ThreadPoolExecutor(4) as pool:
        reading = [pool.submit(stream.rest) for stream in (posted, fetched, at_home, others)]
        began = time.monotonic()
        out = Visitor(here.url, here.timeout, dict(here.cookies), here.csrf).post("/logout")
        found.claim(out.status == 303, f"{out.status} {out.text}")
        for name, one in zip(("POST", "GET"), reading, strict=False):
            cut = one.result()
            took = time.monotonic() - began
            found.figures[f"the stream of the {name} was cut after"] = f"{took:.1f} s"
            found.claim(cut.end is None, f"the stream of the {name} went on to the end: {cut.events[-1]}")
            found.claim_in_time(f"cutting the stream of the {name}", took, 5)
        for heard, reply in zip([one.result() for one in reading[2:]], replies, strict=True):
            told = ((heard.end or {}).get("reply"), heard.text)
            found.claim(told == (reply, reply), f"somebody else's stream ended with {heard.events[-1]}")
    again = resume(mine, turn_id, 0)
    found.claim(again.status in (303, 401) and not again.is_events, f"signed out, and told {again.status}")
    again.leave()
    found.wrong += kept_otherwise(Seat(elsewhere, mine.chat), turn_id, "completed", said[0].reply)
    wait_until_quiet(found, installation.database)
    examine_log(found, installation)
    return found


def disconnects(installation: Installation, count: int, mute: int = 3) -> Found:
    """Readers who leave in the middle, or stay and never read, hold nothing up and lose nothing."""
    found, leaving, staying, others = (
        Found(),
        installation.seats(count),
        installation.seats(mute),
        installation.seats(4),
    )
    over, times = threading.Event(), list[float]()

    def leave(seat: Seat) -> Words:
        said = words(random.randrange(5, 30), "[[slow:0.02]]")
        if random.random() < 0.2:
            vanish(seat, said)
        else:
            send(seat, said).upto(random.randrange(6)).leave()
        return said

    def go_on(seat: Seat) -> None:
        while not over.is_set():
            said, began = words(3), time.monotonic()
            end = send(seat, said).rest().end or {}
            times.append(time.monotonic() - began)
            found.claim(end.get("reply") == said.reply, f"another's turn ended as {end}")

    with ThreadPoolExecutor(len(others)) as pool:
        going_on = [pool.submit(go_on, seat) for seat in others]
        began = time.monotonic()
        stuck = [send(seat, words(0, "[[big]]"), receive_buffer=1024) for seat in staying]
        said = at_once([partial(leave, seat) for seat in leaving])
        wait_for(lambda: all(is_kept(seat) for seat in staying))
        took = time.monotonic() - began
        wait_for(lambda: all(is_kept(seat) for seat in leaving))
        over.set()
        for one in going_on:
            one.result()
    for seat, each in zip(leaving, said, strict=True):
        found.wrong += kept_otherwise(seat, None, "completed", each.reply)
    for seat, stream in zip(staying, stuck, strict=True):
        found.wrong += kept_otherwise(seat, None, "completed", "".join(BIG.pieces))
        stream.leave()
    found.figures["left in the middle"] = f"{count:,}"
    found.figures["a megabyte nobody reads is kept after"] = f"{took:.1f} s"
    found.note_times("other people's turns meanwhile", times)
    wait_until_quiet(found, installation.database)
    examine_log(found, installation)
    return found


def is_kept(seat: Seat) -> bool:
    """Whether the chat has a turn that ended."""
    statuses = seat.statuses()
    return statuses not in ([], ["running"])


def kept_otherwise(seat: Seat, turn_id: str | None, status: str, reply: str) -> Iterator[str]:
    """Says so unless the turn, or the only one, is kept like this."""
    kept = exported(seat.visitor, seat.chat)
    statuses = [turn["status"] for turn in kept["turns"] if turn_id in (None, turn["id"])]
    mine = [message for message in kept["messages"] if turn_id in (None, message["turn_id"])]
    said = [message["content"] for message in mine if message["role"] == "assistant"]
    if (statuses, said, len(mine) - len(said)) != ([status], [reply] if reply else [], 1):
        yield f"{turn_id or seat.chat} is kept as {statuses} {[text[:200] for text in said]}"


def on_threads(job: Callable[[Seat], None], places: list[Seat]) -> None:
    with ThreadPoolExecutor(len(places)) as pool:
        for done in [pool.submit(job, seat) for seat in places]:
            done.result()
