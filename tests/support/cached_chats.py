"""Chats of ten turns with tools, against a local Messages API that keeps a prompt cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from flask import Flask

from agentapp.agents import Agent, Team, shipped, tool
from agentapp.config import Settings
from tests.support.messages_api import MessagesApi, Script, Tokens
from tests.support.users import Person, person

TURNS = 10
ANSWER = "The sum is right, and here is how it was found, one step after the other. " * 10


@tool
def look_up(article: str) -> str:
    """Look an article of the shop up by its name: price, stock, colours and when it is delivered."""
    return f"{article}: 12 in stock, blue or green, delivered within three days. " * 5


@tool
def place_order(article: str, count: int) -> str:
    """Order so many of an article for the person, after they have said that they want it."""
    return f"{count} of {article} ordered."


RULES = "\n".join(
    f"{number}. When a customer asks about matter {number}, look the article up first, name its price with "
    "tax, say when it is delivered, and never promise what the shop has not confirmed."
    for number in range(1, 41)
)
SHOP = Team(Agent("shop", f"You sell things for a small shop.\n\n{RULES}", tools=(look_up, place_order)))
TEAMS = {"a shop's own team": SHOP, "the shipped team": shipped.team}


def respond_with_tools(request: Any) -> Script:
    """Two tools, in every third turn one more, and then the answer."""
    names = {each["name"] for each in request["tools"]}
    last = request["messages"][-1]["content"]
    asked = sum(message["role"] == "user" for message in request["messages"])
    if "hand_over" in names:
        return Script(tools=(("hand_over", {"to": "maths", "task": "calculate"}),))
    made = ("look_up", {"article": "chair"}) if "look_up" in names else ("calculate", {"expression": "6*7"})
    if last[-1]["type"] == "text":
        return Script(("Let me see.",), tools=(made, made))
    if len(last) == 2 and asked % 3 == 0:
        return Script(tools=(made,))
    return Script(tuple(f"{word} " for word in ANSWER.split()))


@dataclass(frozen=True, slots=True)
class Chatted:
    """What a chat was told to have cost, turn by turn, and what the API says that it took."""

    usages: tuple[dict[str, int], ...]
    costs_microusd: tuple[int, ...]
    said: Tokens

    @property
    def cost_microusd(self) -> int:
        return sum(self.costs_microusd)

    @property
    def tokens(self) -> Tokens:
        """The sum of what was shown."""
        names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
        return Tokens(*(sum(usage[name] for usage in self.usages) for name in names))


@contextmanager
def served(
    make_app: Callable[..., Flask], settings: Settings, team: Team, cached: bool = True
) -> Iterator[tuple[Flask, MessagesApi]]:
    """An app whose model is a local Messages API, and that."""
    with MessagesApi(responder=respond_with_tools) as api:
        wanted = replace(
            settings,
            provider="anthropic",
            anthropic_api_key="sk-ant-not-a-real-key",
            anthropic_base_url=api.url,
            model="claude-sonnet-4-6",
            prompt_cache=cached,
        )
        app = make_app(team, wanted)
        yield app, api
        app.extensions["agentapp"].turns.kit.driver._provider._provider.close()


def chat(who: Person, api: MessagesApi, turns: int = TURNS) -> Chatted:
    """Send so many messages in a new chat, and read its export."""
    session, before = who.new_chat(), api.tokens
    for number in range(turns):
        answer = who.ask(session, f"Message number {number}: what about matter {number}, and how much is it?")
        assert answer["reply"].strip().endswith(ANSWER.strip()[-40:])
    whole = who.get(f"/chat/{session}/export.json").json["turns"]
    costs = tuple(round(turn["cost_usd"] * 1_000_000) for turn in whole)
    after = api.tokens
    said = Tokens(
        after.input - before.input,
        after.output - before.output,
        after.cache_read - before.cache_read,
        after.cache_written - before.cache_written,
    )
    return Chatted(tuple(turn["usage"] for turn in whole), costs, said)


def chat_of_ten_turns(
    make_app: Callable[..., Flask], settings: Settings, team: Team, cached: bool
) -> Chatted:
    with served(make_app, settings, team, cached) as (app, api):
        return chat(person(app, "ann" if cached else "amy"), api)
