"""Alerts arrive at a webhook: signed, once if nothing goes wrong, later if something does."""

from __future__ import annotations

import base64
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import update

from agentapp.config import Settings
from agentapp.isolation import UserScope
from agentapp.storage.clock import DatabaseClock
from agentapp.storage.operator_models import AlertRow
from agentapp.telemetry.alerts import StoredAlert
from agentapp.telemetry.conditions import FindConditions
from agentapp.telemetry.delivery import MAX_AGE, MAX_TRIES, DeliverAlerts, next_try
from agentapp.telemetry.webhook import signed_headers
from agentapp.web.parts import Parts
from tests.support.alerts import beat, open_alerts
from tests.support.databases import only_sqlite
from tests.support.documentation import example
from tests.support.receiver import Receiver, receiving
from tests.support.times import utc_now
from tests.support.turns import begin, someone
from tests.turns.charging import answered_by

SECRET = b"a key that both of them know"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


class Clock:
    """The time of the alerts: it can be put forward."""

    def __init__(self) -> None:
        self._passed = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self._passed

    def forward(self, **much: float) -> None:
        self._passed += timedelta(**much)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(DatabaseClock, "utc_now", lambda _: made())
    # Each would take the other for silent, when the time is put forward.
    monkeypatch.setattr(FindConditions, "run", lambda *_: False)
    return made


@pytest.fixture
def workers(
    database_url: str, settings: Settings, make_app: Callable[..., Flask], receiver: Receiver, clock: Clock
) -> tuple[Parts, Parts]:
    wanted = replace(
        settings, database_url=database_url, alert_webhook=receiver.url, alert_webhook_secret=SECRET
    )
    one, two = (make_app(wanted=wanted).extensions["agentapp"] for _ in range(2))
    for parts in (one, two):
        job_of(parts)._clock = clock
    return one, two


@pytest.fixture
def one(workers: tuple[Parts, Parts]) -> Parts:
    return workers[0]


def job_of(parts: Parts) -> DeliverAlerts:
    (found,) = [s.job for s in parts.turns.heartbeat.jobs if isinstance(s.job, DeliverAlerts)]
    return found


def deliver(parts: Parts) -> StoredAlert:
    """A beat, and all that is sent because of it. The one alert that there is."""
    beat(parts)
    thread = job_of(parts)._thread
    if thread is not None:
        thread.join(20)
        assert not thread.is_alive()
    (alert,) = open_alerts(parts).values()
    return alert


@only_sqlite
def test_it_is_signed_and_says_what_happened(one: Parts, receiver: Receiver) -> None:
    one.telemetry.alert("budget-90", "nearly used up", subject="user:u:2026-11-19", tenant_id="t")
    alert = deliver(one)
    (sent,) = receiver.sent
    assert sent.path == "/alerts?key=in-the-address"
    assert sent.headers["content-type"] == "application/json"
    at = int(sent.headers["webhook-timestamp"])
    assert abs(at - time.time()) < 60
    expected = signed_headers(SECRET, sent.id, at, sent.body)
    assert sent.headers["webhook-signature"] == expected["webhook-signature"]
    assert sent.alert == {
        "id": alert.id,
        "kind": "budget-90",
        "severity": "warning",
        "tenant_id": "t",
        "subject": "user:u:2026-11-19",
        "detail": "nearly used up",
        "request_id": "",
        "count": 1,
        "first_at": alert.first_at.isoformat(),
        "last_at": alert.last_at.isoformat(),
    }
    assert alert.delivered_at is not None
    assert alert.next_delivery_at is None


@only_sqlite
def test_the_receiver_of_the_documentation_knows_a_genuine_alert_from_all_others(
    one: Parts, receiver: Receiver
) -> None:
    code = example("docs/observability.md", "def is_genuine(")
    names: dict[str, Any] = {}
    exec(compile(code, "receiver.py", "exec"), names)
    is_genuine = names["is_genuine"]
    one.telemetry.alert("reset-slow", "as a test")
    deliver(one)
    (sent,) = receiver.sent
    assert not is_genuine(b"another key", sent.headers, sent.body, set())
    assert not is_genuine(SECRET, sent.headers, sent.body.replace(b"reset-slow", b"reset-fast"), set())
    for header in ("webhook-id", "webhook-timestamp"):
        changed = {**sent.headers, header: f"{sent.headers[header]}1"}
        assert not is_genuine(SECRET, changed, sent.body, set())
    old = signed_headers(SECRET, sent.id, int(time.time()) - 600, sent.body)
    assert not is_genuine(SECRET, old, sent.body, set()), "a replay"
    seen: set[str] = set()
    assert is_genuine(SECRET, sent.headers, sent.body, seen)
    assert not is_genuine(SECRET, sent.headers, sent.body, seen), "the same one again"


def test_the_signature_is_the_one_of_the_standard_webhooks_specification() -> None:
    """Its own example, with the key that stands there in base64."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    body = b'{"test": 2432232314}'
    headers = signed_headers(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@pytest.mark.parametrize(
    ("answer", "problem"),
    [(500, "it answered 500"), (302, "it answered 302")],
)
@only_sqlite
def test_what_was_not_taken_is_sent_again_later_under_the_same_id(
    one: Parts, receiver: Receiver, answer: int, problem: str, clock: Clock
) -> None:
    receiver.answers = [answer]
    one.telemetry.alert("reset-slow", "as a test")
    alert = deliver(one)
    assert (alert.delivery_problem, alert.delivered_at, alert.delivery_attempts) == (problem, None, 1)
    assert alert.next_delivery_at is not None
    assert alert.next_delivery_at > clock()
    deliver(one)
    assert len(receiver.sent) == 1, "not before it is due, and never to where a redirect points"
    clock.forward(minutes=1)
    alert = deliver(one)
    assert (alert.delivery_problem, alert.delivery_attempts) == ("", 2)
    assert alert.delivered_at is not None
    first, second = receiver.sent
    assert first.id == second.id


@only_sqlite
def test_a_receiver_that_hangs_or_answers_for_ever_holds_up_nothing(
    one: Parts, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    monkeypatch.setattr("agentapp.telemetry.delivery.SECONDS", 0.05)
    for answer in ("hang", "drip"):
        receiver.answers = [answer]
        one.telemetry.alert("reset-slow", "as a test")
        beat(one)
        assert receiver.has_asked.acquire(timeout=10)
        thread = job_of(one)._thread
        assert thread is not None
        assert thread.is_alive(), "the beat is over, and it hangs"
        ends = time.monotonic() + 10
        while thread.is_alive():
            assert time.monotonic() < ends
            beat(one)
        (alert,) = open_alerts(one).values()
        assert alert.delivery_problem.startswith("no answer: ")
        clock.forward(hours=2)
    deliver(one)
    assert receiver.sent[-1].alert["count"] == 2


@only_sqlite
def test_a_receiver_that_says_nothing_is_waited_for_only_so_long(
    one: Parts, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_of(one)._receiver, "_seconds", 0.1)
    receiver.answers = ["hang"]
    one.telemetry.alert("reset-slow", "as a test")
    assert deliver(one).delivery_problem == "it took too long"


@only_sqlite
def test_a_worker_ends_at_once_even_if_the_receiver_hangs(
    workers: tuple[Parts, Parts], receiver: Receiver, clock: Clock
) -> None:
    one, two = workers
    receiver.answers = ["hang"]
    one.telemetry.alert("reset-slow", "as a test")
    one.turns.heartbeat.wake()
    assert receiver.has_asked.acquire(timeout=10)
    began = time.monotonic()
    one.turns.close()
    assert time.monotonic() - began < 4
    clock.forward(minutes=2)
    assert deliver(two).delivered_at is not None
    assert len({sent.id for sent in receiver.sent}) == 1, "the receiver can tell that it is the same one"


def test_two_workers_send_each_alert_once(workers: tuple[Parts, Parts], receiver: Receiver) -> None:
    for n in range(20):
        workers[n % 2].telemetry.alert("budget-90", "x", subject=f"user:{n}")
    started = threading.Barrier(2)

    def work(parts: Parts) -> None:
        started.wait(10)
        for _ in range(3):
            beat(parts)
            thread = job_of(parts)._thread
            if thread is not None:
                thread.join(20)

    threads = [threading.Thread(target=work, args=(parts,)) for parts in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sent = Counter(each.alert["subject"] for each in receiver.sent)
    assert sent == {f"user:{n}": 1 for n in range(20)}


def test_what_a_worker_had_claimed_when_it_died_is_sent_by_another_one(
    workers: tuple[Parts, Parts], receiver: Receiver, clock: Clock
) -> None:
    one, two = workers
    one.telemetry.alert("reset-slow", "as a test")
    job = job_of(one)
    outbox = job._outbox
    job.run = lambda now: False  # type: ignore[method-assign]
    beat(one)
    claimed = outbox.claim()
    assert claimed is not None
    assert outbox.claim() is None
    clock.forward(seconds=30)
    assert deliver(two).delivered_at is None, "it may still be sending"
    clock.forward(seconds=60)
    assert deliver(two).delivered_at is not None
    outbox.failed(claimed, "it was not dead after all", utc_now())
    (alert,) = open_alerts(one).values()
    assert (alert.next_delivery_at, alert.delivery_problem) == (None, "")


def test_one_that_is_raised_again_is_sent_again_after_an_hour_and_not_before(
    one: Parts, receiver: Receiver, clock: Clock
) -> None:
    for ago in (0, 30, 40):
        clock.forward(minutes=ago)
        one.telemetry.alert("reset-slow", "as a test")
        deliver(one)
    assert [sent.alert["count"] for sent in receiver.sent] == [1, 3]
    first, second = receiver.sent
    assert first.alert["id"] == second.alert["id"]
    assert first.id != second.id, "a receiver that drops doubles must not drop this one"


@only_sqlite
def test_what_somebody_has_acknowledged_is_not_sent_any_more(
    one: Parts, receiver: Receiver, clock: Clock
) -> None:
    receiver.answers = [500]
    one.telemetry.alert("reset-slow", "as a test")
    alert = deliver(one)
    by = UserScope(request_id="r", tenant_id="t", user_id="u")
    one.admin.alerts.acknowledge(alert.id, None, by)
    clock.forward(hours=2)
    beat(one)
    assert job_of(one)._outbox.claim() is None
    assert len(receiver.sent) == 1


def test_tries_are_bounded_and_outlast_a_receiver_that_is_down_for_hours() -> None:
    """Also one that is down for an hour, or for the night."""
    began = datetime(2026, 1, 1, tzinfo=UTC)
    alert = StoredAlert(
        *("id", "reset-slow", "warning", None, "", "", "", 1, began, began, None, None, None, 0),  # type: ignore[arg-type]
        delivery_since=began,
        delivery_problem="",
        next_delivery_at=began,
    )
    now, times = began, list[float]()
    while now is not None:
        times.append((now - began).total_seconds())
        alert = replace(alert, delivery_attempts=alert.delivery_attempts + 1)
        now = next_try(alert, now)  # type: ignore[assignment]
    assert len(times) == MAX_TRIES
    assert times[:4] == [0, 10, 30, 70]
    assert len([time for time in times if time < 3600]) >= 8
    assert 8 * 3600 < times[-1] < MAX_AGE.total_seconds()
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == sorted(pauses)
    assert max(pauses) <= 3600
    assert next_try(replace(alert, delivery_attempts=1), began + MAX_AGE) is None


@only_sqlite
def test_it_is_given_up_after_so_many_tries(one: Parts, receiver: Receiver) -> None:
    receiver.answers = [503]
    one.telemetry.alert("reset-slow", "as a test")
    job_of(one).run = lambda now: False  # type: ignore[method-assign]
    beat(one)
    with one.db.writing() as db:
        db.execute(update(AlertRow).values(delivery_attempts=MAX_TRIES - 1))
    del job_of(one).run
    alert = deliver(one)
    assert (alert.next_delivery_at, alert.delivered_at) == (None, None)
    assert (alert.delivery_attempts, alert.delivery_problem) == (MAX_TRIES, "it answered 503")


@pytest.mark.violates
@only_sqlite
def test_nothing_of_what_people_said_and_no_secret_is_sent(
    one: Parts, receiver: Receiver, caplog: pytest.LogCaptureFixture, clock: Clock
) -> None:
    uma = someone(one, "uma")
    begin(answered_by(one, "the answer is platypus"), uma, "my secret is wombat").finish()
    one.binder.bound(uma).__enter__()
    one.binder.sweep()
    receiver.answers = [500]
    beat(one)
    job_of(one)._thread.join(10)  # type: ignore[union-attr]
    clock.forward(hours=1)
    beat(one)
    job_of(one)._thread.join(10)  # type: ignore[union-attr]
    assert {sent.alert["kind"] for sent in receiver.sent} == {"cross-request-leak", "isolation-score"}
    said = b"".join(sent.body for sent in receiver.sent).decode()
    for secret in ("wombat", "platypus", SECRET.decode(), one.settings.secret_key, "in-the-address"):
        assert secret not in said
    for secret in (SECRET.decode(), "in-the-address"):
        assert secret not in caplog.text
        assert secret not in repr(one.settings)


def test_a_certificate_that_nobody_vouches_for_is_refused(
    settings: Settings, make_app: Callable[..., Flask]
) -> None:
    with receiving(tls=True) as receiver:
        wanted = replace(settings, alert_webhook=receiver.url, alert_webhook_secret=SECRET)
        parts: Parts = make_app(wanted=wanted).extensions["agentapp"]
        parts.telemetry.alert("reset-slow", "as a test")
        assert "certificate verify failed" in deliver(parts).delivery_problem
        assert receiver.sent == []


def test_nobody_there_is_a_failure_like_any_other(settings: Settings, make_app: Callable[..., Flask]) -> None:
    wanted = replace(settings, alert_webhook="http://127.0.0.1:9/", alert_webhook_secret=SECRET)
    parts: Parts = make_app(wanted=wanted).extensions["agentapp"]
    parts.telemetry.alert("reset-slow", "as a test")
    assert deliver(parts).delivery_problem == "no answer: Connection refused"


def test_without_a_webhook_nothing_waits_to_be_sent(parts: Parts) -> None:
    parts.telemetry.alert("reset-slow", "as a test")
    beat(parts)
    (alert,) = open_alerts(parts).values()
    assert (alert.next_delivery_at, alert.delivery_since) == (None, None)
    assert not [s for s in parts.turns.heartbeat.jobs if isinstance(s.job, DeliverAlerts)]
