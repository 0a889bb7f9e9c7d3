"""The copy of the cells in Redis: it refuses early, admits nobody, and misleads for a moment at most."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from flask import Flask

from agentapp.config import Settings
from agentapp.errors import BreakerOpen, Busy, GuardrailRefused, RateLimited
from agentapp.events import TurnResult
from agentapp.guardrails.cell import Key
from agentapp.isolation import RequestScope, Scope
from agentapp.storage.cells import CellStore
from agentapp.storage.hot_cells import BELIEVED_SECONDS, RedisHotCells, SeenCells, version_of
from agentapp.web.parts import Parts
from tests.support.redis_server import RedisServer, redis_server
from tests.support.server_users import wait_for
from tests.support.statements import statements_noted
from tests.support.turns import begin, someone

Make = Callable[..., "Workers"]
BY = RequestScope(request_id="r-operator")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as found:
        yield found


@dataclass
class Workers:
    """Two of them, whose clock the test sets forward."""

    one: Parts
    two: Parts
    ahead: float = 0.0

    def hot(self, parts: Parts) -> RedisHotCells:
        found = parts.breakers._hot
        assert found is not None
        return found

    def pass_on(self, seconds: float) -> None:
        self.ahead += seconds


@pytest.fixture
def make_workers(
    make_app: Callable[..., Flask], settings: Settings, database_url: str, server: RedisServer
) -> Callable[..., Workers]:
    server.flush()

    def make(**changed: Any) -> Workers:
        wanted = replace(settings, database_url=database_url, redis_url=server.url, **changed)
        parts = [make_app(wanted=wanted).extensions["agentapp"] for _ in range(2)]
        workers = Workers(*parts)
        for each in parts:
            now = each.db.clock.now
            now()  # for the first time it asks the database

            def set_forward(now: Callable[[], float] = now) -> float:
                return now() + workers.ahead

            each.db.clock.now = set_forward
            each.turns.kit.guardrails.clock = workers.hot(each).now = set_forward
        return workers

    return make


@contextmanager
def statements(of: Parts) -> Iterator[list[str]]:
    found: list[str] = []
    with statements_noted(lambda text, _: found.append(text), of.db):
        yield found


def refused(parts: Parts, scope: Scope, kind: type[GuardrailRefused], key: str | None = None) -> list[str]:
    """The statements that it took to refuse a message."""
    with statements(parts) as sent, pytest.raises(kind):
        begin(parts.turns.kit, scope, "hello", key)
    return sent


def another_chat(parts: Parts, scope: Scope) -> Scope:
    return scope.within(parts.chats.create(scope).id)


def run(parts: Parts, scope: Scope, key: str | None = None) -> TurnResult:
    result: TurnResult = begin(parts.turns.kit, scope, "hello", key).finish()
    return result


def force(parts: Parts, scope: str, id: str, state: Any) -> None:
    with parts.binder.bound(BY):
        parts.admin.breakers.force(scope, id, state, BY)


def reset(parts: Parts, scope: str, id: str) -> None:
    with parts.binder.bound(BY):
        parts.admin.breakers.reset(scope, id, BY)


def change_rate(parts: Parts, user_id: str, rate: str) -> None:
    with parts.binder.bound(BY):
        parts.admin.limits.change("user", user_id, {"rate": rate}, None, BY)


def forget_all(parts: Parts) -> None:
    parts.redis.call("FLUSHALL")  # type: ignore[union-attr]


def test_who_is_surely_refused_is_refused_without_a_statement_by_every_worker(make_workers: Make) -> None:
    workers = make_workers(rate_user=(2, 3600.0))
    ann = someone(workers.one, "ann")
    for _ in range(2):
        run(workers.one, ann)
    assert refused(workers.one, ann, RateLimited) == [], "what it has just written tells so"
    assert refused(workers.two, ann, RateLimited) == []
    assert refused(workers.two, another_chat(workers.two, ann), RateLimited) == []


def test_the_words_are_those_of_the_database(make_workers: Make) -> None:
    workers = make_workers(rate_session=(1, 3600.0))
    ann = someone(workers.one, "ann")
    run(workers.one, ann)
    told = []
    for _ in range(2):
        with pytest.raises(RateLimited) as raised:
            begin(workers.two.turns.kit, ann, "hello")
        told.append((raised.value.scope, raised.value.limit, raised.value.used, str(raised.value)))
        forget_all(workers.one)
    assert told[0] == told[1]


def test_nobody_is_admitted_by_the_copy(make_workers: Make) -> None:
    """Also if it says that nothing was used, and newer than everything else."""
    workers = make_workers(rate_user=(2, 3600.0))
    ann = someone(workers.one, "ann")
    for _ in range(2):
        run(workers.one, ann)
    hot = workers.hot(workers.one)
    for key in workers.one.turns.kit.guardrails.keys(ann):
        seen = SeenCells(hot.now)
        seen.opened({key: '{"v":9000000000000}'})
        hot.confirm(seen, seen.read, ann, None)
    assert refused(workers.two, ann, RateLimited) != []


def test_what_is_forgotten_lifts_no_limit_and_closes_no_breaker(
    make_workers: Make, server: RedisServer
) -> None:
    workers = make_workers(rate_user=(3, 3600.0), concurrent_user=1)
    ann, bob = someone(workers.one, "ann"), someone(workers.one, "bob")
    run(workers.one, ann)
    server.flush()
    turn = begin(workers.two.turns.kit, ann, "hello")
    server.flush()
    assert refused(workers.one, another_chat(workers.one, ann), Busy) != []
    turn.finish()
    force(workers.one, "session", bob.session_id, "open")
    server.flush()
    assert refused(workers.two, bob, BreakerOpen) != []
    server.restart()
    assert refused(workers.two, bob, BreakerOpen) != []
    for parts in (workers.one, workers.two):
        wait_for(lambda parts=parts: not parts.redis.is_away)  # type: ignore[misc]
    run(workers.one, ann)
    server.flush()
    assert refused(workers.two, ann, RateLimited) != [], "each was counted once"


def test_while_redis_is_away_all_goes_as_without_it(make_workers: Make, server: RedisServer) -> None:
    workers = make_workers(rate_user=(2, 3600.0))
    ann = someone(workers.one, "ann")
    run(workers.one, ann)
    with server.stopped():
        run(workers.one, ann)
        assert refused(workers.two, ann, RateLimited) != []
        assert workers.two.turns.standing(ann).refusal is not None


def test_what_an_operator_does_is_seen_at_once(make_workers: Make) -> None:
    workers = make_workers()
    ann = someone(workers.one, "ann")
    run(workers.one, ann)
    force(workers.one, "user", ann.user_id, "open")
    assert refused(workers.two, ann, BreakerOpen) == []
    assert workers.two.turns.standing(ann).refusal is not None
    reset(workers.one, "user", ann.user_id)
    assert workers.two.turns.standing(ann).refusal is None
    run(workers.two, ann)
    change_rate(workers.one, ann.user_id, "1/hour")
    assert refused(workers.two, ann, RateLimited) == []
    change_rate(workers.one, ann.user_id, "100/hour")
    run(workers.two, ann)


def test_what_was_not_written_behind_misleads_for_a_moment_at_most(make_workers: Make) -> None:
    """As if the worker in which it was reset had died before it could tell."""
    workers = make_workers()
    ann = someone(workers.one, "ann")
    force(workers.one, "session", ann.session_id, "open")
    refused(workers.two, ann, BreakerOpen)
    assert refused(workers.two, ann, BreakerOpen) == []
    workers.one.breakers._hot = None
    reset(workers.one, "session", ann.session_id)
    assert refused(workers.two, ann, BreakerOpen) == [], "nobody has told it yet"
    workers.pass_on(BELIEVED_SECONDS)
    run(workers.two, ann)


def test_refusing_early_does_not_make_anything_believed_for_longer(make_workers: Make) -> None:
    workers = make_workers(rate_user=(1, 3600.0))
    ann = someone(workers.one, "ann")
    run(workers.one, ann)
    asked = 0
    for _ in range(10):
        asked += bool(refused(workers.two, ann, RateLimited))
        workers.pass_on(BELIEVED_SECONDS * 0.4)
    assert 3 <= asked <= 4, "the database is asked again and again"


def test_what_comes_late_does_not_take_the_place_of_what_is_newer(make_workers: Make) -> None:
    """A worker that stood still between the commit and telling of it."""
    workers = make_workers()
    ann = someone(workers.one, "ann")
    hot, key = workers.hot(workers.one), Key("user", ann.user_id)
    told: list[tuple[Any, ...]] = []
    tell, hot.confirm = hot.confirm, lambda *all: told.append(all)  # type: ignore[method-assign]
    force(workers.one, "user", ann.user_id, "open")
    hot.confirm = tell  # type: ignore[method-assign]
    reset(workers.two, "user", ann.user_id)
    hot.confirm(*told[0])
    found = hot.look([key], ann)
    assert "forced" not in found[key]
    run(workers.two, ann)
    workers.pass_on(BELIEVED_SECONDS)
    hot.confirm(*told[0])
    assert "forced" not in hot.look([key], ann).get(key, "")


def test_what_redis_is_told_after_it_was_frozen_is_not_believed(make_workers: Make) -> None:
    workers = make_workers()
    ann = someone(workers.one, "ann")
    hot, key = workers.hot(workers.one), Key("user", ann.user_id)
    seen = SeenCells(hot.now)
    seen.opened({key: '{"breaker":{"forced":"open"},"v":5}'})
    workers.pass_on(BELIEVED_SECONDS)
    hot.confirm(seen, seen.read, ann, None)
    assert hot.look([key], ann) == {}
    seen.read_at = hot.now() + 60  # a clock that was wrong, or was put back since
    hot.confirm(seen, seen.read, ann, None)
    assert hot.look([key], ann) == {}


def test_a_row_that_was_removed_or_changed_by_others_goes_on_above_the_old_versions(
    make_workers: Make,
) -> None:
    workers = make_workers()
    ann = someone(workers.one, "ann")
    key = Key("user", ann.user_id)
    without = CellStore(workers.one.db)  # a worker without Redis, or of the release before

    def stored() -> str:
        return without.look([key])[key]

    def change(store: Any, remove: bool = False) -> None:
        with store.transaction() as rows:
            rows.read([key])
            rows.remove(key) if remove else rows.write([(key, "{}", "")])

    versions = []
    for action in (lambda: change(without, remove=True), lambda: change(without), lambda: None):
        run(workers.two, ann)
        force(workers.two, "user", ann.user_id, "closed")
        versions.append(version_of(stored()))
        action()
    assert versions == sorted(set(versions))
    assert min(versions) > 0
    change(without)
    assert version_of(stored()) == 0
    run(workers.two, ann)
    assert "breaker" not in workers.hot(workers.one).look([key], ann)[key]


def test_a_message_that_was_taken_in_is_never_refused_when_it_is_sent_again(make_workers: Make) -> None:
    workers = make_workers(rate_session=(1, 3600.0))
    ann = someone(workers.one, "ann")
    turn = begin(workers.one.turns.kit, ann, "hello", "its key")
    assert begin(workers.two.turns.kit, ann, "hello", "its key").turn_id == turn.id
    turn.finish()
    assert begin(workers.two.turns.kit, ann, "hello", "its key").turn_id == turn.id
    assert refused(workers.two, ann, RateLimited, "another key") == []


def test_nobody_learns_anything_of_somebody_elses_chat(make_workers: Make) -> None:
    workers = make_workers()
    ann, bob = someone(workers.one, "ann"), someone(workers.one, "bob")
    run(workers.one, ann)
    force(workers.one, "session", ann.session_id, "open")
    refused(workers.one, ann, BreakerOpen)
    assert refused(workers.one, ann, BreakerOpen) == []
    theirs = bob.within(ann.session_id)
    with pytest.raises(Exception, match="no such chat"):
        begin(workers.two.turns.kit, theirs, "hello")


def test_pages_are_told_without_asking_the_database_for_cells(make_workers: Make) -> None:
    workers = make_workers(rate_user=(2, 3600.0))
    ann = someone(workers.one, "ann")
    workers.one.turns.kit.guardrails.registry.update(
        Key("provider", "demo"), lambda cell: replace(cell, tools=(("x", 1),))
    )
    run(workers.one, ann)
    with statements(workers.two) as sent:
        hot = workers.two.turns.standing(ann)
    assert sent == []
    forget_all(workers.one)
    with statements(workers.two) as sent:
        from_database = workers.two.turns.standing(ann)
    assert sent != []
    assert (hot.refusal, hot.half_open) == (from_database.refusal, from_database.half_open)
    assert [(each.scope, each.used) for each in hot.meters] == [
        (m.scope, m.used) for m in from_database.meters
    ]


def test_without_redis_nothing_is_added_to_what_is_stored(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    parts: Parts = make_app().extensions["agentapp"]
    ann = someone(parts, "ann")
    run(parts, ann)
    (text,) = parts.breakers.look([Key("user", ann.user_id)]).values()
    assert "v" not in json.loads(text)
