"""A PostgreSQL that is stopped, restarted or frozen in the middle of people's answers.

What is claimed comes from the clients' own logs: what each was told, and when.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentapp.app import create_app
from agentapp.errors import StorageUnavailable
from agentapp.turns import turn
from tests.support import charging_scenarios
from tests.support.http_client import Broken, Event, Stream, Visitor
from tests.support.postgres_server import PostgresServer
from tests.support.retrying_users import (
    JSON,
    POLL_SECONDS,
    Found,
    Installation,
    Sent,
    Talk,
    examine,
    send,
    talking,
    wait_until_quiet,
    words,
)
from tests.support.server_users import Seat
from tests.support.shutdown_scenarios import wait_for_messages

SETTINGS = {name: charging_scenarios.SETTINGS[name] for name in ("prices", "budget_user_day_usd")}
SETTINGS |= {"budget_tenant_month_usd": "off", "budget_session_tokens": "off"}
HEALTHY_SECONDS = 5.0  # after the database answers again

Outage = Callable[[PostgresServer], object]


@dataclass
class Patient(Talk):
    """Of an answer that is not stored yet, some ask again until they are told; others go on with the next
    message at once. ``refused`` is when, and with which status, anything was refused.
    """

    left: list[Sent] = field(default_factory=list)
    refused: list[tuple[float, int]] = field(default_factory=list)

    def is_over(self, sent: Sent) -> bool:
        return super().is_over(sent) or sent in self.left

    def _note(self, sent: Sent, event: Event) -> None:
        error = event.data.get("error", {}) if event.kind == "turn_completed" else {}
        if error.get("code") == StorageUnavailable.code:
            sent.turns.add(event.data["turn_id"])
            self._told_later(sent)
        else:
            super()._note(sent, event)

    def _take(self, sent: Sent, answer: Stream) -> None:
        if answer.status != 200:
            self.refused.append((time.monotonic(), answer.status))
            if "turn_id" in answer.json:
                self._told_later(sent)
        super()._take(sent, answer)

    def _told_later(self, sent: Sent) -> None:
        self.trouble["told that it is stored later"] += 1
        sent.events.clear()
        if random.random() < 0.5:
            self.left.append(sent)


@dataclass
class Watch:
    """Somebody who asks all the while whether the server is ready, and whether it lives."""

    url: str
    not_ready: list[tuple[float, int]] = field(default_factory=list)
    times: dict[str, list[float]] = field(default_factory=lambda: {"/livez": [], "/readyz": []})
    wrong: list[str] = field(default_factory=list)

    def run(self, over: threading.Event) -> None:
        while not over.wait(5 * POLL_SECONDS):
            for path, times in self.times.items():
                began = time.monotonic()
                status = Visitor(self.url).get(path).status
                times.append(time.monotonic() - began)
                if path == "/livez" and status != 200:
                    self.wrong.append(f"/livez: {status}")
                elif status != 200:
                    self.not_ready.append((time.monotonic(), status))


def impatient() -> Any:
    """The application; a turn whose end cannot be stored frees its thread after a moment."""
    turn.SAVE_RETRY_SECONDS = (0.2,)
    return create_app()


def stopped_for(seconds: float, mode: str) -> Outage:
    def run(postgres: PostgresServer) -> None:
        postgres.stop("immediate" if mode == "immediate" else "fast")
        time.sleep(seconds)
        postgres.start()

    return run


def frozen_for(seconds: float) -> Outage:
    def run(postgres: PostgresServer) -> None:
        postgres.freeze()
        time.sleep(seconds)
        postgres.thaw()

    return run


def outages(
    installation: Installation,
    postgres: PostgresServer,
    these: Sequence[Outage],
    sessions: int = 16,
    longest: int = 40,
    watched: float = HEALTHY_SECONDS,
) -> Found:
    """One after the other, each in the middle of answers, and at least ``watched`` seconds after the last."""
    found, over = Found(), threading.Event()
    places = installation.seats(sessions)
    talks = [Patient(seat, installation.words, leaving=0.1, longest=longest) for seat in places]
    stopper, watch = installation.seats(1)[0], Watch(installation.running.url)
    watching = threading.Thread(target=watch.run, args=(over,))
    watching.start()
    began_at, back_at, stops = list[float](), list[float](), list[float]()
    try:
        with talking(talks) as crew:
            for outage in these:
                wait_for_messages(talks, sessions)
                time.sleep(random.uniform(0, 1))  # the moment is what is random
                began_at.append(time.monotonic())
                outage(postgres)
                back_at.append(time.monotonic())
                stops.append(begin_and_stop(found, stopper) - back_at[-1])
                time.sleep(max(0.0, back_at[-1] + watched - time.monotonic()))
            crew.hear_out()
    finally:
        over.set()
        watching.join()
    found.wrong += watch.wrong
    wait_until_quiet(found, installation.database)
    note_recovery(found, talks, watch, list(zip(began_at, back_at, strict=True)))
    found.figures["from then on until a new turn was begun and stopped"] = most(stops)
    found.claim_in_time("beginning and stopping a turn after an outage", max(stops), HEALTHY_SECONDS)
    for path, times in watch.times.items():
        found.note_times(f"{path} all the while", times)
    examine(found, installation, talks)
    found.figures["outages"] = len(these)
    charging_scenarios.compare(found, installation, tolerance=0.01)
    return found


def begin_and_stop(found: Found, seat: Seat) -> float:
    """A turn whose model is silent: when it was stopped."""
    said = words(1, "[[hang:600]]")
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        try:
            stream = send(seat, said)
            if stream.is_events and stream.upto(1).turn_id is not None:
                path = f"/chat/{seat.chat}/turns/{stream.turn_id}/stop"
                Stream(seat.visitor, path, {}, accept=JSON).leave()
                end = stream.rest().end or {}
                found.claim(end.get("status") == "stopped", f"a turn after the outage ended as {end}")
                return time.monotonic()
            stream.leave()
        except Broken:
            pass
        time.sleep(POLL_SECONDS)
    found.claim(False, "no turn could be begun after the outage")
    return time.monotonic()


def note_recovery(
    found: Found, talks: Sequence[Patient], watch: Watch, outages: Sequence[tuple[float, float]]
) -> None:
    """For how long after each outage anybody was still refused."""
    refused = [each for talk in talks for each in talk.refused]
    kinds = {
        "the last chat was free": [at for at, status in refused if status == 409],
        "the last request was not refused": [at for at, _ in refused],
        "/readyz was 200": [at for at, _ in watch.not_ready],
    }
    nexts = [*(began for began, _ in outages[1:]), float("inf")]
    for name, times in kinds.items():
        last = [
            max((at - back for at in times if back <= at < until), default=0.0)
            for (_, back), until in zip(outages, nexts, strict=True)
        ]
        found.figures[f"from the database's return until {name}"] = most(last)
        found.claim_in_time(f"after an outage, until {name},", max(last), HEALTHY_SECONDS)
    told = sum(talk.trouble["told that it is stored later"] for talk in talks)
    found.figures["answers that were not stored at once"] = told
    found.figures["of these, left by who had asked"] = sum(len(talk.left) for talk in talks)


def most(seconds: Sequence[float]) -> str:
    return f"{max(seconds):.1f} s at most, of {len(seconds)}"
