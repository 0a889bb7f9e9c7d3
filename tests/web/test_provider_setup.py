"""A key, a model or an address that the provider does not take: people and operators are told what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask

from agentapp.config import Settings
from agentapp.errors import ProviderMisconfigured
from agentapp.telemetry.alerts import Alert
from agentapp.web.parts import Parts
from tests.support.messages_api import Script
from tests.support.scripted import Scripted, hands_over
from tests.support.users import EVENTS, Person, events_of, person
from tests.web.test_log_lines import CANARY, KEY, by_claude

SENTENCE = "The model is not set up correctly. Tell your operator."


def raised(app: Flask) -> list[Alert]:
    """The alerts from now on, whether or not the heartbeat has stored them."""
    parts: Parts = app.extensions["agentapp"]
    pending, found = parts.telemetry.pending_alerts, list[Alert]()
    add = pending.add

    def note(alert: Alert) -> None:
        found.append(alert)
        add(alert)

    pending.add = note  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_person_is_told_to_tell_the_operator_and_not_to_try_again(
    status: int, make_app: Callable[..., Flask], settings: Settings
) -> None:
    with by_claude(make_app, settings) as (app, api):
        alerts = raised(app)
        api.respond_with(Script(status=status, message=f"{CANARY} {KEY}"))
        ann = person(app, "ann")
        chat = ann.new_chat()
        problem = ann.send(chat, "Hello")
        end = ann.stream(chat, "Hello")[-1]
    assert (problem.status_code, problem.json["code"], problem.json["detail"]) == (
        502,
        "provider-failed",
        SENTENCE,
    )
    assert end["error"] == {"code": "provider-failed", "message": SENTENCE, "can_retry": False}
    page = ann.get(f"/chat/{chat}").text
    shown = page.partition('<template id="again-template">')[0]
    assert (shown.count(SENTENCE), shown.count("Retry")) == (2, 0)
    assert f"Request id <code>{end['request_id']}</code>" in shown
    reloaded = ann.browser.get(f"/chat/{chat}/turns/{end['turn_id']}/events", headers=EVENTS)
    assert events_of(reloaded.text)[-1]["error"] == end["error"], "the same after a reload"
    alert, again = alerts
    assert alert == again
    assert (alert.kind, alert.severity, alert.subject) == ("provider-setup", "error", settings.model)
    assert f"{status}, " in alert.detail
    assert settings.model in alert.detail
    assert alert.tenant_id is None
    assert CANARY not in alert.detail
    assert KEY not in alert.detail


def test_a_request_that_is_refused_for_its_own_sake_can_be_tried_again(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    with by_claude(make_app, settings) as (app, api):
        alerts = raised(app)
        api.respond_with(Script(status=400))
        ann = person(app, "ann")
        chat = ann.new_chat()
        end = ann.stream(chat, "Hello")[-1]
    assert set(end["error"]) == {"code", "message"}
    shown = ann.get(f"/chat/{chat}").text.partition('<template id="again-template">')[0]
    assert "Retry" in shown
    assert alerts == []


def test_a_wrong_key_pauses_nobody_and_when_it_is_right_again_all_works(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    """However many people of however many tenants it fails."""
    wanted = replace(settings, breaker_failures=2, breaker_user_failures=2, provider_breaker_users=2)
    with by_claude(make_app, wanted) as (app, api):
        alerts = raised(app)
        api.respond_with(Script(status=401))
        people = [person(app, f"p{n}", tenant=f"t{n % 2}") for n in range(4)]
        chats = [(each, each.new_chat()) for each in people]
        for _ in range(3):
            for each, chat in chats:
                assert each.send(chat, "Hello").json["code"] == "provider-failed"
        api.respond_with(Script(("All is well",)))
        for each, chat in chats:
            assert each.ask(chat, "And now?")["reply"] == "All is well"
    assert [alert.kind for alert in alerts] == ["provider-setup"] * 12


def test_of_a_specialists_model_the_operator_is_told_too(app: Flask, ann: Person, parts: Parts) -> None:
    """The front agent answers in its place, so the person hardly notices."""

    def refuses(call: Any) -> Any:
        error = ProviderMisconfigured(SENTENCE)
        error.cause = "no such model"
        raise error

    alerts = raised(app)
    parts.turns.kit.driver._provider = Scripted(hands_over("maths"), refuses, "Six.")
    assert ann.ask(ann.new_chat(), "What is 2 * 3?")["reply"].endswith("Six.")
    (alert,) = alerts
    assert (alert.kind, alert.detail) == ("provider-setup", "no such model")
