"""Whole chats against a Messages API that keeps a prompt cache: what they cost, and whose cache it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask

from agentapp.agents.team import Team
from agentapp.config import Settings
from agentapp.guardrails.admission import TurnCells
from agentapp.isolation import RequestScope, Scope
from agentapp.storage.values import User
from agentapp.web.parts import Parts
from tests.support.cached_chats import (
    SHOP,
    TEAMS,
    TURNS,
    chat,
    chat_of_ten_turns,
    served,
)
from tests.support.messages_api import MessagesApi
from tests.support.users import person

# Of claude-sonnet-4-6, in millionths of a dollar for a token.
OF_INPUT, OF_OUTPUT, READ, WRITTEN = 3, 15, 0.3, 3.75


@pytest.fixture
def shop_and_api(settings: Settings, make_app: Any) -> Iterator[tuple[Flask, MessagesApi]]:
    with served(make_app, settings, SHOP) as both:
        yield both


@pytest.fixture
def shop(shop_and_api: tuple[Flask, MessagesApi]) -> Flask:
    return shop_and_api[0]


@pytest.fixture
def api(shop_and_api: tuple[Flask, MessagesApi]) -> MessagesApi:
    return shop_and_api[1]


@pytest.mark.parametrize(("name", "saved"), [("a shop's own team", 0.5), ("the shipped team", 0.45)])
def test_ten_turns_with_tools_cost_far_less(
    make_app: Any, settings: Settings, name: str, saved: float
) -> None:
    """Of the shipped team less, because a short prompt is not cached at all: see bench/caching.py."""
    team: Team = TEAMS[name]
    without = chat_of_ten_turns(make_app, settings, team, cached=False)
    cached = chat_of_ten_turns(make_app, settings, team, cached=True)
    assert len(without.usages) == len(cached.usages) == TURNS
    assert sum(usage["model_calls"] for usage in cached.usages) > 2 * TURNS
    assert cached.cost_microusd <= (1 - saved) * without.cost_microusd
    assert (without.tokens.cache_read, without.tokens.cache_written) == (0, 0)
    assert (cached.tokens.input, cached.tokens.output) == (without.tokens.input, without.tokens.output)


def test_what_is_shown_and_charged_is_what_the_api_said_to_the_token(shop: Flask, api: MessagesApi) -> None:
    chatted = chat(person(shop, "ann"), api)
    assert chatted.tokens == chatted.said
    assert chatted.said.cache_read > chatted.said.cache_written > 0
    for usage, cost in zip(chatted.usages, chatted.costs_microusd, strict=True):
        read, written = usage["cache_read_tokens"], usage["cache_write_tokens"]
        plain = usage["input_tokens"] - read - written
        dear = plain * OF_INPUT + read * READ + written * WRITTEN + usage["output_tokens"] * OF_OUTPUT
        assert cost == round(dear)
    assert spent_by(shop, "ann") == [chatted.cost_microusd] * 2, "the user and the tenant"


def spent_by(app: Flask, name: str) -> list[int]:
    """Millionths of a dollar that the budgets of the user and of the tenant have counted."""
    parts: Parts = app.extensions["agentapp"]
    guardrails, user = parts.turns.kit.guardrails, user_of(app, name)
    scope = Scope(request_id="r", tenant_id=user.tenant_id, user_id=user.id, session_id="any")
    with parts.binder.bound(scope):
        cells = TurnCells(*guardrails.registry.look(guardrails.keys(scope)))
    return [cell.budget.used(guardrails.clock()) for cell in (cells.user, cells.tenant)]


def user_of(app: Flask, name: str) -> User:
    parts: Parts = app.extensions["agentapp"]
    with parts.binder.bound(RequestScope(request_id="r")):
        (found,) = [user for user in parts.accounts.all() if user.name == name]
    return found


def test_nobody_reads_what_another_user_has_written(shop: Flask, api: MessagesApi) -> None:
    """Of three who say the same, two of them in one tenant, each pays as if there were no other."""
    people = [person(shop, "ann"), person(shop, "amy"), person(shop, "bob", tenant="elsewhere")]
    chats = [chat(each, api, turns=2) for each in people]
    assert chats[0].usages == chats[1].usages == chats[2].usages
    assert chats[0].costs_microusd == chats[1].costs_microusd == chats[2].costs_microusd


def test_what_a_user_has_written_the_same_user_reads_in_another_chat(shop: Flask, api: MessagesApi) -> None:
    ann = person(shop, "ann")
    first, second = chat(ann, api, turns=1), chat(ann, api, turns=1)
    assert first.cost_microusd > second.cost_microusd
    assert second.usages[0]["cache_write_tokens"] == 0, "even the message was the same"


def test_the_line_that_keeps_users_apart_does_not_say_who_they_are(shop: Flask, api: MessagesApi) -> None:
    chat(person(shop, "ann"), api, turns=1)
    user = user_of(shop, "ann")
    sent = str([each.json for each in api.requests])
    assert not [each for each in (user.id, user.tenant_id) if each in sent]


def test_the_page_shows_how_much_of_a_turn_was_cached(shop: Flask, api: MessagesApi) -> None:
    ann = person(shop, "ann")
    used = chat(ann, api, turns=1).usages[0]
    (address,) = {each for each in ann.get("/chat").text.split('"') if each.startswith("/chat/")}
    tokens, read = used["input_tokens"] + used["output_tokens"], used["cache_read_tokens"]
    assert f"{tokens:,} tokens, {read:,} cached" in ann.get(address).text
