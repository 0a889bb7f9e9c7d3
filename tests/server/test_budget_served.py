"""Budgets on the real server: never more is let in than can be paid, and what is paid is what it cost."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import only_sqlite
from tests.support.messages_api import MessagesApi, Script
from tests.support.rounds import ROUNDS
from tests.support.server_users import (
    Seat,
    add_people,
    at_once,
    cells,
    obey_the_last,
    refusal,
    reserved,
    rush,
    seats,
    served,
)

TURNS = 30  # at once
TURN_TOKENS, PRICE, WORST_CASES = (
    20_000,
    10,
    10,
)  # the price in millionths of a dollar, of either kind of token
LIMIT = TURN_TOKENS * PRICE * WORST_CASES

TASK = r"[[tool:calculate {\"expression\": \"6*7\"}]]"
KINDS = (
    "hello",
    '[[tool:unheard_of {"a": 1}]] a loop',  # asked again with what the tool said
    f'[[tool:hand_over {{"to": "maths", "task": "{TASK}"}}]]',  # three calls, two agents, one tool
    "[[status:500]]",  # tried three times
    "[[cut:470]]",  # before anything was said: tried three times too, and paid three times
    "[[cut:1500]] " + "word " * 200,  # in the middle of what is said: not tried again
    "[[error-event:overloaded_error]]",
    "[[stop:max_tokens]] long",
)
WORKING = ("hello", "loop", "hand_over", "max_tokens")

pytestmark = pytest.mark.timeout(280 + 20 * ROUNDS)


def test_of_thirty_turns_at_once_ten_are_let_in_if_ten_can_be_paid_and_the_ledger_is_exact(
    tmp_path: Path, database_url: str
) -> None:
    # In the first one a tenant has no more money, in the second one a user.
    rounds = 2 * ROUNDS if database_url.startswith("sqlite") else ROUNDS
    settings: dict[str, Any] = {
        "threads": 128,  # so that a quarter of one worker's, all that one person gets, are more than thirty
        "prices": f"claude-sonnet-4={PRICE}/{PRICE}/{PRICE}/{PRICE}",
        "budget_turn_tokens": TURN_TOKENS,
        "budget_user_day_usd": LIMIT / 1_000_000,
        "budget_tenant_month_usd": LIMIT / 1_000_000,
        # Many of these turns fail on purpose, and other guardrails than budgets are not asked about it.
        "provider_breaker_users": 200,
        "breaker_user_failures": 100_000,
        "breaker_failures": 1_000,
    }
    with (
        MessagesApi(responder=obey_the_last) as api,
        served(tmp_path, database_url, api, **settings) as running,
    ):
        for number in range(rounds):
            tenant = f"tenant{number}"
            # One user in thirty chats, or thirty users in one each: the limit of either is reached.
            scope, count = ("user", 1) if number % 2 else ("tenant", TURNS)
            names = [f"user{number}-{n}" for n in range(count)]
            add_people(database_url, names, tenant)
            one_round(database_url, api, seats(running.url, names, TURNS // count), scope)
        assert "Traceback" not in running.output(), running.output()[-3000:]


def one_round(url: str, api: MessagesApi, chats: list[Seat], scope: str) -> None:
    asked, paid, before = len(api.requests), api.tokens, cells(url)
    sends = [partial(seat.send, KINDS[n % len(KINDS)]) for n, seat in enumerate(chats)]
    with rush(api, sends) as crowd:
        assert Counter(answer.status for answer in crowd.refused) == {429: TURNS - WORST_CASES}
        assert crowd.reached == WORST_CASES
        assert len(api.requests) == asked + WORST_CASES
        for answer in crowd.refused:
            body = refusal(answer, 429, "budget-exhausted", scope)
            assert (body["limit"], body["used"]) == (LIMIT, 0)
            assert "is reserved by answers under way" in body["detail"]
    assert {answer.status for answer in crowd.answered} <= {200, 502}
    # Now that what was reserved is given back, each kind gets in, whichever were let in before.
    answers = at_once([partial(seat.send, kind) for seat, kind in zip(chats, KINDS, strict=False)])
    for kind, answer in zip(KINDS, answers, strict=False):
        assert answer.status == (200 if any(word in kind for word in WORKING) else 502), (kind, answer.text)
    check_ledger(url, api, chats, scope, before, paid)
    # One that costs more than anybody could know ends it, and is counted in full.
    api.respond_with(Script(pieces=("dear",), input_tokens=LIMIT // PRICE, output_tokens=5))
    assert chats[0].send("hello").status == 200
    api.respond_with(obey_the_last)
    used = check_ledger(url, api, chats, scope, before, paid)
    assert used > LIMIT
    asked = len(api.requests)
    for answer in at_once([partial(seat.send, "hello") for seat in chats[-5:]]):
        body = refusal(answer, 429, "budget-exhausted", scope)
        assert (body["limit"], body["used"]) == (LIMIT, used)
    assert len(api.requests) == asked


def check_ledger(
    url: str, api: MessagesApi, chats: list[Seat], scope: str, before: dict[Any, Any], paid: Any
) -> int:
    """The chats' tokens and the owner's money are what the model's own bill says, and nothing is reserved."""
    found = cells(url)
    bill = api.tokens.input + api.tokens.output - paid.input - paid.output
    spent = Counter(
        {key: sum(cell.get("budget", {}).get("spent", {}).values()) for key, cell in found.items()}
    )
    assert sum(spent["session", seat.chat] for seat in chats) == bill
    for owner in ("user", "tenant"):
        new = [money for key, money in spent.items() if key[0] == owner and key not in before]
        assert sum(new) == bill * PRICE
    assert len([key for key in found if key[0] == "tenant" and key not in before]) == 1
    assert reserved(found) == {}
    return bill * PRICE


@only_sqlite
def test_what_an_answer_had_cost_when_it_took_too_long_is_paid(tmp_path: Path, database_url: str) -> None:
    """The model stopped in the middle, or went on and on: the input was read, and is on the bill."""
    add_people(database_url, ["ann"])
    settings = {"turn_deadline": 3, "first_token_deadline": 2, "gap_deadline": 1}
    with (
        MessagesApi(responder=obey_the_last) as api,
        served(tmp_path, database_url, api, **settings) as running,
    ):
        for seat, kind in zip(seats(running.url, ["ann"], 2), ("stall:60", "slow:0.3"), strict=True):
            before = api.tokens.input
            answer = seat.send(f"[[{kind}]] " + "word " * 100)
            assert answer.status == 504, answer.text
            paid = cells(database_url)["session", seat.chat].get("budget", {}).get("spent", {}).get("ever", 0)
            assert 0 < api.tokens.input - before <= paid, kind
