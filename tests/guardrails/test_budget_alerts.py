"""Budgets that are nearly used up are told of: once, for the user and for the tenant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from flask import Flask

from agentapp.agents.prices import Prices
from agentapp.config import Settings
from agentapp.errors import StorageUnavailable
from agentapp.guardrails.cell import Key
from agentapp.isolation import Scope
from agentapp.storage.turns import SqlChatTransaction
from agentapp.turns.kit import TurnKit
from agentapp.web.parts import Parts
from tests.support.databases import only_sqlite
from tests.support.times import utc_now
from tests.support.turns import begin, someone
from tests.support.users import without_limits
from tests.turns.charging import answered_by, lose

TURN = 15  # millionths of a dollar, and 10 turns are 90 % of what a user may spend in a day


@pytest.fixture
def workers(database_url: str, settings: Settings, make_app: Callable[..., Flask]) -> tuple[Parts, Parts]:
    wanted = replace(
        without_limits(settings),
        database_url=database_url,
        user_day_microusd=11 * TURN + 1,
        tenant_month_microusd=22 * TURN + 2,
    )
    one, two = (make_app(wanted=wanted).extensions["agentapp"] for _ in range(2))
    return one, two


def kit_of(parts: Parts) -> TurnKit:
    return replace(answered_by(parts, *["Hello"] * 30), prices=Prices([("m", 1.0, 1.0)]))


def told(*workers: Parts) -> dict[str, int]:
    alerts = [alert for parts in workers for alert in parts.telemetry.pending_alerts.take()]
    assert {alert.kind for alert in alerts} <= {"budget-90"}
    return {alert.subject: alert.count for alert in alerts}


def set_budget(parts: Parts, who: Scope, limit: str) -> None:
    with parts.binder.bound(who):
        parts.admin.limits.change("user", who.user_id, {"budget": limit}, None, who)


def test_it_is_told_with_the_turn_that_takes_it_over_90_percent_and_with_no_other(
    workers: tuple[Parts, Parts],
) -> None:
    """Whichever worker plays that turn, and whatever others have played."""
    kits, uma, vic = [kit_of(parts) for parts in workers], *[someone(workers[0], n) for n in ("uma", "vic")]
    after = []
    for n, person in enumerate([uma] * 11 + [vic] * 11):
        begin(kits[n % 2], person, "Hello").finish()
        after.append(told(*workers))
    today = utc_now().date().isoformat()
    of_user, of_vic = (f"user:{who.user_id}:{today}" for who in (uma, vic))
    expected: list[dict[str, int]] = [{} for _ in range(22)]
    expected[9], expected[20] = {of_user: 1}, {of_vic: 1}
    expected[19] = {f"tenant:{uma.tenant_id}:{today[:7]}": 1}
    assert after == expected


@only_sqlite
def test_its_words_say_how_much_is_used_and_its_tenants_admins_may_read_it(
    workers: tuple[Parts, Parts],
) -> None:
    one, uma = workers[0], someone(workers[0], "uma")
    kit = kit_of(one)
    for _ in range(10):
        begin(kit, uma, "Hello").finish()
    (alert,) = one.telemetry.pending_alerts.take()
    assert alert.detail == "$0.0001 of the $0.0001 that this user may spend in a day are used."
    assert (alert.tenant_id, alert.severity) == (uma.tenant_id, "warning")


def test_a_turn_that_others_ended_is_told_of_too(workers: tuple[Parts, Parts]) -> None:
    """What it had spent is charged by whoever ends it, and the rest by its own worker."""
    one, uma = workers[0], someone(workers[0], "uma")
    kit = kit_of(one)
    for _ in range(9):
        begin(kit, uma, "Hello").finish()
    turn = begin(kit, uma, "Hello")
    lose(one, turn)
    turn.finish()
    assert told(one)[f"user:{uma.user_id}:{utc_now().date().isoformat()}"] == 1


@only_sqlite
def test_a_turn_whose_end_could_not_be_stored_is_told_of_once_when_it_is(
    workers: tuple[Parts, Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, uma = workers[0], someone(workers[0], "uma")
    kit = kit_of(one)
    for _ in range(9):
        begin(kit, uma, "Hello").finish()
    turn = begin(kit, uma, "Hello")
    real, tries = SqlChatTransaction.remove_live_turn, list[str]()

    def breaks_once(chat: SqlChatTransaction, turn_id: str) -> None:
        tries.append(turn_id)
        if len(tries) == 1:
            raise StorageUnavailable("away")
        real(chat, turn_id)

    monkeypatch.setattr(SqlChatTransaction, "remove_live_turn", breaks_once)
    monkeypatch.setattr("agentapp.turns.turn.SAVE_RETRY_SECONDS", (0.0, 0.0))
    turn.finish()
    assert len(tries) == 2
    assert list(told(one).values()) == [1]


@only_sqlite
def test_a_limit_that_was_changed_for_one_user_is_the_one_that_counts(workers: tuple[Parts, Parts]) -> None:
    one, uma = workers[0], someone(workers[0], "uma")
    set_budget(one, uma, "0.000030")
    begin(kit_of(one), uma, "Hello").finish()
    assert told(one) == {}
    begin(kit_of(one), uma, "Hello").finish()
    assert list(told(one)) == [f"user:{uma.user_id}:{utc_now().date().isoformat()}"]


def test_without_a_limit_there_is_nothing_to_tell(parts: Parts) -> None:
    uma: Scope = someone(parts, "uma")
    set_budget(parts, uma, "off")
    begin(kit_of(parts), uma, "Hello").finish()
    assert parts.turns.kit.guardrails.registry.get(Key("user", uma.user_id)).budget.allowance.limit is None
    assert told(parts) == {}
