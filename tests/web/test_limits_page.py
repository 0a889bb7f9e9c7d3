"""The limits as people meet them: what a chat's page says, and what comes back when a message is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from html import unescape
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from agentapp.config import Settings
from agentapp.errors import BreakerOpen, BudgetExhausted, Busy, GuardrailRefused, RateLimited, StorageFull
from agentapp.guardrails.cell import Cell, Key
from agentapp.guardrails.guard import Guardrails, Meter, Standing
from agentapp.guardrails.outage import Outage
from agentapp.guardrails.outage import Person as Failing
from agentapp.guardrails.wording import clock, dollars, explained, refusal_text
from agentapp.isolation import RequestScope, Scope
from agentapp.web.limits import limits_view
from agentapp.web.parts import Parts
from tests.support.app_inspection import Element, Page, faults
from tests.support.users import JSON, PAGE, Person, person
from tests.web.test_pages import Held, running, solo

__all__ = ["solo"]  # a fixture

NOON = datetime(2026, 5, 17, 12, tzinfo=UTC).timestamp()


class Clock:
    """The guardrails' own, so that no test waits."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def at(app: Flask) -> Clock:
    return clocked(app)


def clocked(app: Flask) -> Clock:
    made = Clock()
    guardrails(app).clock = made
    return made


def guardrails(app: Flask) -> Guardrails:
    found: Guardrails = app.extensions["agentapp"].turns.kit.guardrails
    return found


def scope_of(app: Flask, who: Person, chat: str) -> Scope:
    found: Parts = app.extensions["agentapp"]
    with found.binder.bound(RequestScope(request_id="test")):
        user = next(user for user in found.accounts.all() if user.name == who.name)
    return Scope(request_id="test", tenant_id=user.tenant_id, user_id=user.id, session_id=chat)


def change(app: Flask, who: Person, chat: str, scope: str, how: Callable[[Cell], Cell]) -> None:
    """Put one of the four cells that this chat is held to into a state."""
    keys: dict[str, Key] = {key.scope: key for key in guardrails(app).keys(scope_of(app, who, chat))}
    found: Parts = app.extensions["agentapp"]
    with found.binder.bound(scope_of(app, who, chat)):
        guardrails(app).registry.update(keys[scope], how)


def spend(app: Flask, who: Person, chat: str, scope: str, amount: int) -> None:
    now = guardrails(app).clock()
    change(app, who, chat, scope, lambda cell: replace(cell, budget=cell.budget.charge(amount, now)))


def trip(app: Flask, who: Person, chat: str, scope: str, used: int = 3) -> None:
    now = guardrails(app).clock()
    change(
        app,
        who,
        chat,
        scope,
        lambda cell: replace(cell, breaker=replace(cell.breaker, failures=used).tripped(now)),
    )


def fail(who: Person, chat: str, times: int = 3) -> None:
    for _ in range(times):
        assert who.send(chat, "/fail").status_code == 502


class Shown:
    """The limits on a page, or by themselves."""

    def __init__(self, html: str) -> None:
        found = re.search(r'<div class="limits" id="limits">(.*?)\n</div>\n', html + "\n", re.S)
        assert found, "there are no limits on this page"
        self.html = found[1]
        notice, _, meters = self.html.partition('<div class="meters" id="meters">')
        self.says, self.meters = words_of(notice), words_of(meters)
        self.offers = [form.action for form in Page(notice).forms]
        self.elements = Page(self.html).elements

    def having(self, name: str) -> list[Element]:
        return [element for element in self.elements if name in element.attributes]

    @property
    def seconds(self) -> list[int]:
        return [int(element.attributes["data-seconds"]) for element in self.having("data-seconds")]

    @property
    def levels(self) -> list[str]:
        return [element.attributes["data-level"] for element in self.having("data-level")]


def words_of(html: str) -> str:
    return " ".join(unescape(re.sub(r"<[^>]*>", "", html)).split())


def look(who: Person, chat: str) -> Shown:
    """The page of the chat, which must say the same as the part of it that can be asked for by itself."""
    page, part = who.get(f"/chat/{chat}"), who.get(f"/chat/{chat}/limits")
    assert (page.status_code, part.status_code) == (200, 200)
    assert list(faults(page.text)) == []
    shown, alone = Shown(page.text), Shown(part.text)
    assert (shown.says, shown.meters) == (alone.says, alone.meters)
    assert "<html" not in part.text
    return shown


def draft_of(html: str) -> str:
    found = re.search(r'<textarea id="message"([^>]*)>(.*?)</textarea>', html, re.S)
    assert found, "the page has no composer"
    assert "disabled" not in found[1]
    return unescape(found[2])


def turns_of(who: Person, chat: str) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = json.loads(who.get(f"/chat/{chat}/export.json").text)["turns"]
    return turns


def test_a_new_chat_says_nothing_of_limits(ann: Person) -> None:
    shown = look(ann, ann.new_chat())
    assert (shown.says, shown.meters) == ("", "")
    assert [e.attributes["role"] for e in shown.having("role")] == ["status"], "there before it has to speak"


def test_a_paused_chat_says_why_and_for_how_long_and_offers_another(
    app: Flask, ann: Person, at: Clock
) -> None:
    chat = ann.new_chat()
    fail(ann, chat)
    shown = look(ann, chat)
    (left,) = shown.seconds
    assert 27 <= left <= 30
    paused = "This chat is paused: 3 errors in a row. Your other chats work."
    assert shown.says == f"{paused} Try again in 0:{left}. New chat"
    assert shown.offers == ["/chat"]
    assert draft_of(ann.get(f"/chat/{chat}").text) == ""
    assert look(ann, ann.new_chat()).says == ""
    at.now += 20
    assert look(ann, chat).seconds == [left - 20]


def test_the_clock_is_silent_inside_a_region_that_speaks(ann: Person, at: Clock) -> None:
    """What counts down every second must not be read out every second."""
    chat = ann.new_chat()
    fail(ann, chat)
    status, timer = look(ann, chat).having("role")
    assert (status.attributes["role"], timer.attributes["role"]) == ("status", "timer")
    assert timer.attributes["aria-live"] == "off"
    assert "data-seconds" in timer.attributes


def test_a_chat_that_was_paused_says_that_the_next_message_is_the_one_try(ann: Person, at: Clock) -> None:
    chat = ann.new_chat()
    fail(ann, chat)
    at.now += 31
    shown = look(ann, chat)
    assert shown.says == "This chat was paused. Trying once more: your next message is the one try."
    assert (shown.offers, shown.seconds) == ([], [])
    ann.ask(chat, "better now?")
    assert look(ann, chat).says == ""


def test_all_chats_of_a_person_paused(app: Flask, ann: Person, at: Clock) -> None:
    chat = ann.new_chat()
    trip(app, ann, chat, "user", used=15)
    for each in (chat, ann.new_chat()):
        shown = look(ann, each)
        why = "All your chats are paused: 15 errors in a row. Nobody else is affected."
        assert shown.says.startswith(why)
        assert shown.offers == [], "a new chat would be paused too"
        assert shown.seconds


def test_a_model_that_is_down_is_told_to_everybody(app: Flask, ann: Person, bob: Person, at: Clock) -> None:
    chat = ann.new_chat()
    for who in (ann, bob):
        colleague = Failing(scope_of(app, who, chat).tenant_id, "somebody")
        fails = partial(Outage.failed, who=colleague, now=guardrails(app).clock())
        change(app, who, chat, "provider", lambda cell, fails=fails: replace(cell, outage=fails(cell.outage)))
    trip(app, ann, chat, "provider", used=5)
    for who in (ann, bob):
        shown = look(who, who.new_chat())
        assert shown.says.startswith("The model is not answering right now, and not only for you. Try again")
        assert shown.offers == []
        assert shown.seconds


@pytest.mark.parametrize("scope", ["session", "user", "tenant", "provider"])
def test_an_operators_pause_promises_no_time(app: Flask, ann: Person, at: Clock, scope: str) -> None:
    chat = ann.new_chat()
    change(app, ann, chat, scope, lambda cell: replace(cell, breaker=cell.breaker.force("open")))
    shown = look(ann, chat)
    assert "paused" in shown.says
    assert "by an operator" in shown.says
    assert shown.offers == (["/chat"] if scope == "session" else [])
    assert "0 errors" not in shown.says
    assert shown.seconds == []
    assert "Try again" not in shown.says


def test_a_chat_without_tokens_left_says_so_and_offers_a_new_one(app: Flask, ann: Person, at: Clock) -> None:
    chat = ann.new_chat()
    spend(app, ann, chat, "session", 1_000_100)
    shown = look(ann, chat)
    assert shown.says == (
        "This chat has used all of its 1,000,000 tokens. Start a new chat to go on; what was used still "
        "counts. An operator can raise the limit. Start a new chat"
    )
    assert (shown.offers, shown.seconds) == (["/chat"], [])
    assert shown.meters == "Used up: 1,000,100 of 1,000,000 tokens in this chat"


def test_a_days_money_used_up_says_when_it_starts_anew(app: Flask, ann: Person, at: Clock) -> None:
    chat = ann.new_chat()
    spend(app, ann, chat, "user", 5_000_000)
    shown = look(ann, chat)
    assert shown.says == (
        "All of your $5.00 for today is used. It starts anew in 12:00:00, at 00:00 UTC. "
        "An operator can raise the limit."
    )
    assert (shown.offers, shown.seconds) == ([], [12 * 3600])


def test_a_months_money_used_up_counts_no_seconds(app: Flask, ann: Person, at: Clock) -> None:
    chat = ann.new_chat()
    spend(app, ann, chat, "tenant", 600_000_000)
    shown = look(ann, chat)
    assert "your organisation's $500.00 for this month is used. It starts anew in 15 days" in shown.says
    assert shown.seconds == []


def test_a_budget_used_up_is_named_also_while_something_else_is_the_reason(
    app: Flask, ann: Person, at: Clock
) -> None:
    chat = ann.new_chat()
    spend(app, ann, chat, "user", 5_000_000)
    trip(app, ann, chat, "session")
    shown = look(ann, chat)
    assert shown.says.startswith("This chat is paused")
    assert shown.meters == (
        "Used up: $5.00 of $5.00 today; resets 00:00 UTC. An operator can raise the limit."
    )


METERS = [
    ("session", 12_400, [], "12,400 of 1,000,000 tokens in this chat"),
    ("session", 749_999, [], "749,999 of 1,000,000 tokens in this chat"),
    ("session", 750_000, ["low"], "Running low: 750,000 of 1,000,000 tokens in this chat"),
    ("user", 420_000, [], "$0.42 of $5.00 today; resets 00:00 UTC"),
    ("user", 4_500_000, ["high"], "Almost used up: $4.50 of $5.00 today; resets 00:00 UTC"),
    ("user", 4_999_999, ["high"], "Almost used up: $4.99 of $5.00 today; resets 00:00 UTC"),
    ("tenant", 310_000_000, [], "$310.00 of $500.00 this month in your organisation"),
    ("tenant", 391_250_000, ["low"], "Running low: $391.25 of $500.00 this month in your organisation"),
]


@pytest.mark.parametrize(("scope", "used", "levels", "words"), METERS)
def test_the_tightest_budget_is_shown_in_words(
    app: Flask, ann: Person, at: Clock, scope: str, used: int, levels: list[str], words: str
) -> None:
    chat = ann.new_chat()
    spend(app, ann, chat, scope, used)
    shown = look(ann, chat)
    assert (shown.says, shown.meters, shown.levels) == ("", words, levels)
    (meter,) = Page(shown.html).all("meter")
    assert meter.attributes["value"] == str(used)
    assert meter.attributes["aria-label"]


def test_every_budget_that_runs_low_is_named_and_no_other(app: Flask, ann: Person, at: Clock) -> None:
    chat = ann.new_chat()
    spend(app, ann, chat, "user", 4_000_000)
    spend(app, ann, chat, "tenant", 480_000_000)
    spend(app, ann, chat, "session", 100)
    shown = look(ann, chat)
    assert shown.levels == ["high", "low"]
    assert "$480.00" in shown.meters
    assert "$4.00" in shown.meters
    assert "tokens" not in shown.meters


def test_without_budgets_there_is_no_meter(make_app: Callable[..., Flask], settings: Settings) -> None:
    free = replace(settings, session_tokens=None, user_day_microusd=None, tenant_month_microusd=None)
    ann = person(make_app(wanted=free), "ann")
    chat = ann.new_chat()
    ann.ask(chat, "hello")
    assert look(ann, chat).meters == ""


def test_the_meter_moves_with_every_turn(ann: Person) -> None:
    chat = ann.new_chat()
    seen = []
    for _ in range(2):
        ann.ask(chat, "hello")
        seen.append(look(ann, chat).meters)
    used = [int(words.split(" of ")[0].replace(",", "")) for words in seen]
    assert 0 < used[0] < used[1]


def paused(app: Flask, who: Person, chat: str) -> None:
    fail(who, chat)


def too_fast(app: Flask, who: Person, chat: str) -> None:
    for _ in range(20):
        who.ask(chat, "hello")


def used_up(app: Flask, who: Person, chat: str) -> None:
    spend(app, who, chat, "session", 1_000_000)


def server_full(app: Flask, who: Person, chat: str) -> None:
    found: Parts = app.extensions["agentapp"]
    found.turns.slots.resize(1, 0)
    app.extensions["held"] = found.turns.slots.take_for_turn("somebody else", "elsewhere")


def many_streams(app: Flask, who: Person, chat: str) -> None:
    """None of them may give way: they are turns."""
    found: Parts = app.extensions["agentapp"]
    scope = scope_of(app, who, chat)
    app.extensions["held"] = [
        found.turns.slots.take_for_turn(scope.user_id, scope.tenant_id) for _ in range(32)
    ]


REFUSALS = [
    (paused, 503, "breaker-open", "session"),
    (too_fast, 429, "rate-limited", "session"),
    (used_up, 429, "budget-exhausted", "session"),
    (server_full, 503, "busy", "server"),
    (many_streams, 503, "busy", "streams"),
]
DRAFT = "A thought <b>not</b> to be lost & more\nin two lines"


@pytest.mark.parametrize(
    ("make", "status", "code", "scope"), REFUSALS, ids=[f"{each[2]} {each[3]}" for each in REFUSALS]
)
def test_a_refused_message_comes_back_with_the_page_the_reason_and_the_draft(
    app: Flask,
    ann: Person,
    at: Clock,
    make: Callable[[Flask, Person, str], None],
    status: int,
    code: str,
    scope: str,
) -> None:
    chat = ann.new_chat()
    make(app, ann, chat)
    before = turns_of(ann, chat)
    answer = ann.send(chat, DRAFT, PAGE)
    script = ann.send(chat, DRAFT, JSON)
    assert (answer.status_code, script.status_code) == (status, status)
    problem = json.loads(script.text)
    assert (problem["code"], problem["scope"]) == (code, scope)
    assert answer.headers["Retry-After"] == script.headers["Retry-After"] == str(problem["retry_after"])
    assert int(answer.headers["Retry-After"]) >= 1
    assert draft_of(answer.text) == DRAFT
    shown = Shown(answer.text)
    assert shown.says.startswith(f"Not sent. {problem['detail']}"), "page and problem use other words"
    assert list(faults(answer.text)) == []
    assert "http-equiv" not in answer.text, "a reload would lose what is typed"
    assert 'role="alert"' not in answer.text, "said twice"
    assert turns_of(ann, chat) == before, "what was refused must not look like a turn that failed"


def test_a_form_that_was_refused_can_be_sent_again_as_it_is(app: Flask, ann: Person, at: Clock) -> None:
    chat = ann.new_chat()
    fail(ann, chat)
    page = ann.send(chat, "hold on to this", PAGE)
    form = Page(page.text).form(f"/chat/{chat}/messages")
    at.now += 31
    answer = ann.browser.post(form.action, data={**form.fields, "message": draft_of(page.text)}, headers=PAGE)
    assert answer.status_code == 303
    assert "hold on to this" in ann.get(answer.location).text


def test_while_a_chat_answers_its_own_reservation_is_no_news(solo: Callable[..., Flask]) -> None:
    held = Held()
    ann = person(solo(held), "ann")
    chat = ann.new_chat()
    app = ann.browser.application
    spend(app, ann, chat, "session", 970_000)
    with running(ann, chat, held):
        page = ann.get(f"/chat/{chat}").text
        assert Shown(page).says == ""
        assert Shown(page).levels == ["high"]
        assert "http-equiv" in page
        late = ann.send(chat, "and this?", PAGE)
        assert late.status_code == 409
        assert draft_of(late.text) == "and this?"
        assert "http-equiv" not in late.text, "a reload would lose what is typed"


def test_nobody_else_can_ask_for_the_limits_of_a_chat(ann: Person, bob: Person, client: FlaskClient) -> None:
    chat = ann.new_chat()
    assert bob.get(f"/chat/{chat}/limits").status_code == 404
    assert client.get(f"/chat/{chat}/limits", headers=JSON).status_code == 401
    assert client.get(f"/chat/{chat}/limits", headers=PAGE).status_code == 303


def test_a_tool_that_had_all_its_calls_is_shown_as_limited_and_not_as_failed(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    ann = person(make_app(wanted=replace(settings, tool_calls_turn=1)), "ann")
    chat = ann.new_chat()
    ann.send(chat, "/loop")
    states = tool_states(ann.get(f"/chat/{chat}").text)
    assert states[:2] == [("done", "done"), ("limited", "limit reached")]


def tool_states(html: str) -> list[tuple[str, str]]:
    page = html.partition("<template")[0]
    return re.findall(r'<details class="tool" data-state="(\w+)">.*?<span class="state">([^<]*)<', page, re.S)


def refused(kind: type[GuardrailRefused], scope: str, **told: Any) -> GuardrailRefused:
    made = kind(**{"limit": 3, "used": 3, "retry_after": 41.2, **told})
    made.scope = scope
    return made


def full(scope: str, used: int) -> StorageFull:
    made = StorageFull(limit=200_000_000, used=used)
    made.scope = scope
    return made


SENTENCES = [
    (
        refused(BreakerOpen, "session"),
        "This chat is paused: 3 errors in a row. Your other chats work. Try again in 0:42.",
    ),
    (refused(BreakerOpen, "session", limit=1, used=1), "This chat is paused: 1 error in a row."),
    (refused(BreakerOpen, "session", limit=5, used=2), "This chat is paused: too many errors lately."),
    (refused(BreakerOpen, "user", limit=15, used=15), "All your chats are paused: 15 errors in a row."),
    (
        refused(BreakerOpen, "provider"),
        "The model is not answering right now, and not only for you. Try again",
    ),
    (refused(RateLimited, "session", seconds=60), "3 messages in this chat a minute. Try again in 0:42."),
    (refused(RateLimited, "user", seconds=7200), "at most 3 messages of yours in 2 hours."),
    (refused(RateLimited, "tenant", seconds=3600), "at most 3 messages of your organisation's an hour."),
    (refused(Busy, "user"), "No more than 3 of your chats can be answering at once."),
    (refused(Busy, "server"), "The server has too much to do right now. Try again in 0:42."),
    (refused(Busy, "pages"), "No more than 3 of your pages can be loading at once. Try again"),
    (refused(RateLimited, "new-chats", seconds=60), "at most 3 new chats a minute. Try again in 0:42."),
    (refused(Busy, "streams"), "You follow 3 answers at once already. Close some of those pages."),
    (
        full("user", 200_340_000),
        "take 200.3 MB, and 200 MB is the limit. Delete chats to make room.",
    ),
    (full("tenant", 200_000_000), "The chats of your organisation take 200 MB, and 200 MB is the limit."),
    (refused(BudgetExhausted, "session", used=1), "reserved by answers under way. Try again in 0:42."),
]


def test_every_kind_of_refusal_has_a_sentence_of_its_own() -> None:
    """Without one, people would read the technical text."""
    assert {type(refusal) for refusal, _ in SENTENCES} == set(GuardrailRefused.__subclasses__())


@pytest.mark.parametrize(("refusal", "words"), SENTENCES, ids=[words[:40] for _, words in SENTENCES])
def test_what_people_are_told(refusal: GuardrailRefused, words: str) -> None:
    assert words in explained(refusal)
    assert "{}" not in explained(refusal)
    shown = limits_view(Standing(refusal, half_open=False, meters=())).notice
    assert shown is not None
    said = f"{shown.reason} {shown.before}{shown.time}{shown.after} {shown.more}"
    assert " ".join(said.split()) == explained(refusal), "the page and the problem say different things"


def test_a_time_is_told_as_on_a_kitchen_timer() -> None:
    told_as = {0: "0:01", 0.2: "0:01", 41.2: "0:42", 60: "1:00", 3599.5: "1:00:00", 86_400: "24:00:00"}
    assert {seconds: clock(seconds) for seconds in told_as} == told_as
    assert clock(17.5 * 86_400) == "18 days"


def test_money_that_is_left_does_not_look_used_up() -> None:
    assert dollars(4_999_999) == "$4.99"
    assert dollars(1_234_567_890) == "$1,234.56"
    assert dollars(900) == "$0.0009"
    assert dollars(0) == "$0.00"


def test_a_refusal_that_was_met_is_told_even_if_it_is_over_by_now() -> None:
    met = refused(Busy, "server", retry_after=2.0)
    view = limits_view(Standing(None, half_open=True, meters=()), running=True, refusal=met)
    assert view.not_sent
    assert view.notice is not None
    assert view.notice.reason == refusal_text(met).reason


def test_a_budget_of_nothing_is_used_up() -> None:
    view = limits_view(Standing(None, half_open=False, meters=(Meter("user", 0, 0, None),)))
    assert [meter.level for meter in view.meters] == ["full"]
