"""A user deletes all chats: after a page that asks, and nobody else's."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from agentapp.guardrails.cell import Key
from agentapp.isolation import RequestScope
from agentapp.storage.models import ChatSession, GuardrailCell, LiveTurn
from agentapp.storage.operator_models import AuditRow
from agentapp.web.parts import Parts
from tests.support.erased_users import scope_of
from tests.support.turns import begin
from tests.support.users import Person

BY = RequestScope(request_id="test")


def how_many(parts: Parts, who: Person) -> int:
    scope = scope_of(parts, who)
    with parts.binder.bound(scope):
        return parts.admin.old_chats.count(scope)


def audited(parts: Parts) -> list[dict[str, int]]:
    with parts.db.writing() as db:
        return [r.detail for r in db.scalars(select(AuditRow)) if r.action == "chats-deleted"]


def test_the_page_asks_first(parts: Parts, ann: Person) -> None:
    assert "Delete all your chats" in ann.get("/account").text
    assert "You have no chats" in ann.get("/account/delete-chats").text
    for _ in range(2):
        ann.new_chat()
    page = ann.get("/account/delete-chats").text
    assert "2 chats" in page
    assert how_many(parts, ann) == 2


def test_all_chats_go_and_nobody_elses(parts: Parts, ann: Person, bob: Person) -> None:
    theirs = bob.new_chat()
    mine = [ann.new_chat() for _ in range(5)]
    ann.ask(mine[0], "Some words")
    ann.post(f"/chat/{mine[1]}/pin", pinned="1")
    answer = ann.post("/account/delete-chats")
    assert (answer.status_code, answer.location) == (303, "/account?done=chats")
    assert "Your chats were deleted." in ann.get(answer.location).text
    assert (how_many(parts, ann), how_many(parts, bob)) == (0, 1)
    assert bob.get(f"/chat/{theirs}").status_code == 200
    assert audited(parts) == [{"count": 5}]
    with parts.db.writing() as db:
        assert db.get(GuardrailCell, ("session", mine[0])) is None
    ann.post("/account/delete-chats")
    assert len(audited(parts)) == 1, "nothing was deleted, so there is nothing to tell"


def test_a_running_turn_is_stopped_and_what_it_reserved_is_given_back(parts: Parts, ann: Person) -> None:
    scope = scope_of(parts, ann).within(ann.new_chat())
    ann.new_chat()
    with parts.binder.bound(scope):
        turn = begin(parts.turns.kit, scope, "Hello")
    registry = parts.turns.kit.guardrails.registry
    keys = Key("user", scope.user_id), Key("tenant", scope.tenant_id)
    now = parts.turns.kit.guardrails.clock()
    with parts.binder.bound(BY):
        assert [cell.bulkhead.holds.count(now) for cell in registry.look(keys)] == [1, 1]
    assert ann.post("/account/delete-chats").status_code == 303
    with parts.binder.bound(BY):
        assert [cell.bulkhead.holds.count(now) for cell in registry.look(keys)] == [0, 0]
    assert how_many(parts, ann) == 0
    assert audited(parts) == [{"count": 2}]
    with parts.db.writing() as db:
        assert db.scalar(select(LiveTurn.turn_id)) is None
    with parts.binder.bound(scope):
        for _ in turn:  # it notices when it ends at the latest
            pass
    with parts.binder.bound(BY):
        assert [cell.bulkhead.holds.count(now) for cell in registry.look(keys)] == [0, 0]


def test_many_chats_go_in_a_few_transactions(
    parts: Parts, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentapp.retention.clean_up.QUICK_SECONDS", 10.0)
    monkeypatch.setattr("agentapp.retention.clean_up.SLOW_SECONDS", 20.0)
    scope = scope_of(parts, ann)
    with parts.binder.bound(scope):
        for _ in range(130):
            parts.chats.create(scope)
        steps = list(parts.all_chats.steps(scope))
    assert steps == [1, 2, 4, 8, 16, 32, 50, 17]


def test_what_could_not_all_be_deleted_is_told_nevertheless(
    parts: Parts, ann: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        ann.new_chat()
    quiet, calls = parts.all_chats._quiet.remove_quiet, iter([1, 2])

    def breaks_off(*given: object) -> int:
        if next(calls) == 2:
            raise RuntimeError("broken")
        return quiet(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(parts.all_chats._quiet, "remove_quiet", breaks_off)
    scope = scope_of(parts, ann)
    with parts.binder.bound(scope), pytest.raises(RuntimeError):
        parts.all_chats.delete(scope)
    assert audited(parts) == [{"count": 1}]
    with parts.db.writing() as db:
        owner = ChatSession.tenant_id == scope.tenant_id, ChatSession.user_id == scope.user_id
        assert len(db.scalars(select(ChatSession.id).where(*owner)).all()) == 2
