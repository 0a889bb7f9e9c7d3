"""Two apps on one database, the hosts of which have wrong clocks: nothing that they share goes by those."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import itsdangerous.timed
import pytest
from flask import Flask
from sqlalchemy import select

from agentapp.config import Settings
from agentapp.errors import BreakerOpen, BudgetExhausted, RateLimited
from agentapp.guardrails.cell import Cell, Key
from agentapp.guardrails.operator import BreakerAdmin
from agentapp.isolation import Scope
from agentapp.storage.models import Login
from agentapp.storage.operator_models import WorkerRow
from agentapp.telemetry.conditions import FindConditions, SilentWorkers
from agentapp.telemetry.jobs import ReportWorker
from agentapp.turns.abandoned import interrupt_abandoned
from agentapp.turns.heartbeat import ScheduledJob
from agentapp.web.parts import Parts
from tests.support.admin_rows import change_breaker
from tests.support.databases import only_postgresql
from tests.support.turns import begin, someone
from tests.support.users import JSON, Person, person
from tests.turns.charging import usage_days

DAY = 86_400.0
pytestmark = only_postgresql


@pytest.fixture(params=[30.0, 3 * DAY], ids=["30s", "3days"])
def apps(
    request: pytest.FixtureRequest,
    settings: Settings,
    database_url: str,
    make_app: Callable[..., Flask],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Flask, Flask]:
    """The first is so much ahead, the second as much behind. Neither knows the processes of the other."""
    monkeypatch.setattr("agentapp.turns.leases._machine_id", str)
    wanted = replace(settings, database_url=database_url, rate_session=(4, 60.0))
    ahead, behind = make_app(wanted=wanted), make_app(wanted=wanted)
    ahead.extensions["agentapp"].db.clock._wall = lambda: time.time() + request.param
    behind.extensions["agentapp"].db.clock._wall = lambda: time.time() - request.param
    return ahead, behind


@pytest.fixture
def hosts(apps: tuple[Flask, Flask]) -> tuple[Parts, Parts]:
    ahead, behind = (app.extensions["agentapp"] for app in apps)
    return ahead, behind


@pytest.fixture
def scope(hosts: tuple[Parts, Parts]) -> Scope:
    return someone(hosts[0], "uma")


def play(parts: Parts, scope: Scope) -> None:
    begin(parts.turns.kit, scope, "Hello").finish()


def job(parts: Parts, kind: type[Any]) -> ScheduledJob:
    (found,) = [each for each in parts.turns.heartbeat.jobs if isinstance(each.job, kind)]
    return found


def test_a_rate_is_kept_over_both(hosts: tuple[Parts, Parts], scope: Scope) -> None:
    for n in range(4):
        play(hosts[n % 2], scope)
    waits = []
    for parts in hosts:
        with pytest.raises(RateLimited) as refused:
            play(parts, scope)
        waits.append(refused.value.retry_after)
    assert waits[0] == pytest.approx(waits[1], abs=5)
    assert 0 < waits[0] <= 61


def test_neither_takes_a_turn_of_the_other_for_abandoned(hosts: tuple[Parts, Parts]) -> None:
    for at, parts in enumerate(hosts):
        mine = someone(parts, f"user{at}")
        turn = begin(parts.turns.kit, mine, "Hello")
        parts.turns.live.renew([turn.id], parts.turns.kit.leases.current())
        for looking in hosts:
            kit, live = looking.turns.kit, looking.turns.live
            with looking.binder.bound(mine):
                assert live.with_lapsed_lease((), kit.leases.latest_end) == []
                interrupt_abandoned(kit.store, kit.ends, mine, kit.leases)
                assert kit.store.find(mine, turn.id).result.status == "running"
        turn.finish()


def test_both_see_a_turn_that_has_lost_its_worker(hosts: tuple[Parts, Parts]) -> None:
    for at, parts in enumerate(hosts):
        mine = someone(parts, f"user{at}")
        turn = begin(parts.turns.kit, mine, "Hello")
        parts.turns.live.give_up([turn.id], parts.turns.kit.leases.current().worker)
        for looking in hosts:
            with looking.binder.bound(mine):
                found = looking.turns.live.with_lapsed_lease((), looking.turns.kit.leases.latest_end)
            assert [each.session_id for each in found] == [mine.session_id]
        turn.finish()


def at_another(app: Flask, who: Person) -> Person:
    """The same browser, at the other host."""
    browser = app.test_client()
    for name in ("agentapp", "agentapp-browser"):
        if (cookie := who.browser.get_cookie(name)) is not None:
            browser.set_cookie(name, cookie.value)
    return Person(who.name, browser, who.csrf)


def test_who_signs_in_at_one_is_signed_in_at_the_other_at_once(apps: tuple[Flask, Flask]) -> None:
    for one, other in (apps, apps[::-1]):
        who = person(one, f"user{apps.index(one)}")
        there = at_another(other, who)
        assert there.browser.get("/chat", headers=JSON).status_code == 200
        there.new_chat()  # with the token of the other's page
        parts: Parts = other.extensions["agentapp"]
        with parts.db.writing() as db:
            for login in db.scalars(select(Login)):
                assert abs(login.created_at - datetime.now(UTC)) < timedelta(minutes=1)
                login.expires_at = datetime.now(UTC) - timedelta(seconds=1)
        assert at_another(one, who).browser.get("/chat", headers=JSON).status_code == 401


@pytest.mark.parametrize("seconds", [-120, -30, 30, 120])
def test_a_token_against_forged_requests_has_no_age(
    apps: tuple[Flask, Flask], monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    """flask-wtf dates it by the host's clock, and asks nobody how old it is: it has no time limit here."""
    who = person(apps[0], "ann")
    with monkeypatch.context() as elsewhere:
        then = time.time() + seconds
        elsewhere.setattr(itsdangerous.timed.time, "time", lambda: then)
        page = who.get("/chat").text
    who.csrf = page.partition('name="csrf-token" content="')[2].partition('"')[0]
    assert at_another(apps[1], who).new_chat()


def test_a_breaker_is_open_on_both_and_for_as_long(hosts: tuple[Parts, Parts], scope: Scope) -> None:
    for at, parts in enumerate(hosts):
        key = Key("session", scope.session_id)
        now = parts.turns.kit.guardrails.clock()
        change_breaker(parts, key, lambda breaker, now=now: breaker.tripped(now))  # type: ignore[misc]
        waits = []
        for other in hosts:
            refusal = other.turns.standing(scope).refusal
            assert isinstance(refusal, BreakerOpen), at
            waits.append(refusal.retry_after)
        assert waits[0] == pytest.approx(waits[1], abs=5)
        admin = hosts[1 - at].admin.breakers
        assert isinstance(admin, BreakerAdmin)
        with hosts[1 - at].binder.bound(scope):
            admin.reset("session", scope.session_id, by=scope, reason="")


def test_a_day_of_a_budget_is_the_same_for_both(hosts: tuple[Parts, Parts], scope: Scope) -> None:
    key, limit = Key("user", scope.user_id), hosts[0].settings.user_day_microusd
    assert limit is not None
    for parts in hosts:
        play(parts, scope)
        guardrails = parts.turns.kit.guardrails

        def charged(cell: Cell, now: float) -> Cell:
            return replace(cell, budget=cell.budget.charge(limit // 2, now))

        now = guardrails.clock()
        with parts.binder.bound(scope):
            guardrails.registry.update(key, lambda cell, now=now: charged(cell, now))  # type: ignore[misc]
    for parts in hosts:
        with pytest.raises(BudgetExhausted):
            play(parts, scope)
    today = {datetime.now(UTC).date().isoformat(), f"{datetime.now(UTC) - timedelta(minutes=1):%Y-%m-%d}"}
    assert {row.day for row in usage_days(hosts[0], scope)} <= today


def test_neither_takes_the_other_for_silent(hosts: tuple[Parts, Parts], scope: Scope) -> None:
    for parts in hosts:
        job(parts, ReportWorker).job.run(0.0)
    for parts in hosts:
        conditions = job(parts, FindConditions).job._conditions  # type: ignore[attr-defined]
        (silent,) = [each for each in conditions if isinstance(each, SilentWorkers)]
        with parts.binder.bound(scope):
            assert silent.found(parts.db.clock.utc_now()) == {}
            assert not any(worker.is_silent for worker in parts.admin.workers.listed(None, 9))
    with hosts[0].db.writing() as db:
        for row in db.scalars(select(WorkerRow)):
            assert abs(row.started_at - datetime.now(UTC)) < timedelta(minutes=1)


def test_each_says_that_its_own_clock_is_wrong(hosts: tuple[Parts, Parts], scope: Scope) -> None:
    for parts, where in zip(hosts, ("ahead of", "behind"), strict=True):
        with parts.binder.bound(scope):
            job(parts, FindConditions).job.run(0.0)
        (alert,) = [each for each in parts.telemetry.pending_alerts.take() if each.kind == "clock-wrong"]
        assert f"s {where} the database server's" in alert.detail
        assert alert.subject.startswith("host:")
