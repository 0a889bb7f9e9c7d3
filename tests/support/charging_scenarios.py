"""Answers that end in every way, at random moments: what is charged is what the model was asked and said."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tests.support.http_client import Broken
from tests.support.retrying_users import Found, Installation, Words, send, wait_until_quiet, words
from tests.support.server_users import Seat, cells, rows, wait_for
from tests.support.shutdown_scenarios import alive, kill_one_that_answers

# Dollars per million tokens in (cached or not) and out. With these, one sum of money tells both numbers.
PRICES, OF_INPUT = "claude-sonnet-4-6=1000000/1/1000000/1000000", 1_000_000
SETTINGS = {
    "prices": PRICES,
    "budget_user_day_usd": "off",
    "budget_tenant_month_usd": "off",
    "budget_session_tokens": "off",
    "first_token_deadline": 1,
    "gap_deadline": 1,
    "turn_deadline": 12,
}
WORD_SECONDS = 0.02
SLOW = f"[[slow:{WORD_SECONDS}]]"
WRITES = "[[writes:"
AT_ONCE = 8

End = Callable[[Seat, str], None]


def stop(seat: Seat, turn_id: str) -> None:
    seat.visitor.post(f"/chat/{seat.chat}/turns/{turn_id}/stop", "application/json")


def delete(seat: Seat, turn_id: str) -> None:
    seat.visitor.post(f"/chat/{seat.chat}/delete")


def nothing(seat: Seat, turn_id: str) -> None:
    """The answer ends by itself."""


def way_to_end(number: int) -> tuple[str, Words, End]:
    """A message, and what its sender does while it is answered."""
    match number % 8:
        case 0:
            return "stopped", words(60, SLOW), stop
        case 1:
            return "stopped before the first word", words(5, "[[hang:60]]"), stop
        case 2:
            return "deleted", words(60, SLOW), delete
        case 3:
            return "deleted before the first word", words(5, "[[hang:60]]"), delete
        case 4:
            return "silent from the beginning", words(5, "[[hang:60]]"), nothing
        case 5:
            return "silent after a word", words(5, "[[stall:60]]"), nothing
        case 6:
            return "too long", words(200, "[[slow:0.1]]"), nothing
    return "cut", words(60, f"[[cut:{random.randrange(8_000)}]]"), nothing


def ends(installation: Installation, count: int, tolerance: float = 0.1) -> Found:
    """Stopped, deleted, out of time and cut, at random moments. What the model had sent and a busy machine
    had not read when the answer was stopped is not charged.
    """
    found, ended = Found(), Counter[str]()

    def one(number_and_seat: tuple[int, Seat]) -> None:
        number, seat = number_and_seat
        name, said, end = way_to_end(number)
        ended[name] += 1
        stream = send(seat, said)
        turn_id = stream.upto(1).turn_id
        assert turn_id is not None, stream
        time.sleep(random.uniform(0, 0.9))  # the moment is what is random
        end(seat, turn_id)
        with suppress(Broken):  # the stream of a deleted chat may end in any way
            stream.rest()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, enumerate(installation.seats(count))))
    wait_until_quiet(found, installation.database)
    found.figures["how they ended"] = dict(ended)
    compare(found, installation, tolerance=tolerance)
    return found


def kills(installation: Installation, count: int, length: int = 400, tolerance: float = 0.1) -> Found:
    """Workers are killed at random moments in the middle of answers of so many words, or while the model
    writes the input of a tool, which is not shown. What a dead worker had heard since its last heartbeat, a
    quarter of a second before, is not charged: of a short answer that is a larger part.
    """
    found, seats, killed = Found(), installation.seats(AT_ONCE), 0

    def talk(seat: Seat) -> None:
        while killed < count:
            with suppress(Broken, OSError, AssertionError):  # it was the worker that answered this one
                send(seat, random.choice((words(length, SLOW), writing(length)))).rest()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        talking = [pool.submit(talk, seat) for seat in seats]
        while killed < count - 1:
            wait_for(lambda: len(alive(installation.running)) == 2)
            wait_for(lambda: installation.api.in_progress > 1)
            time.sleep(random.uniform(0, 0.9 * length * WORD_SECONDS))  # the moment is what is random
            os.kill(random.choice(alive(installation.running)), signal.SIGKILL)
            killed += 1
        wait_for(lambda: kill_one_that_answers(installation, []))  # on a slow machine no other may do so
        killed += 1
        for each in talking:
            each.result()
    wait_until_quiet(found, installation.database)
    asked = rows(
        installation.database,
        "SELECT turns.status, turns.input_tokens, messages.content FROM turns "
        "JOIN messages ON messages.turn_id = turns.id AND messages.role = 'user'",
    )
    statuses = Counter(status for status, _, _ in asked)
    hidden = sum(status == "interrupted" and WRITES in text for status, _, text in asked)
    free = [text for _, tokens, text in asked if not tokens]
    # Whether a call was made that a worker was about to make when it died, nobody knows. It is charged.
    unsent = [tokens for _, tokens, text in asked if not installation.model.calls(text.split()[0])]
    found.figures |= {"workers killed": killed, "how turns ended": dict(statuses)}
    found.figures["died while a tool's input was written"] = hidden
    found.figures["turns that died before they were sent"] = len(unsent)
    found.claim(statuses["interrupted"] > 0, "no kill met a turn")
    found.claim(not free, f"these turns cost nothing: {free}")
    compare(found, installation, sum(unsent), tolerance)
    return found


def writing(length: int) -> Words:
    """For an answer of a few words and a tool's input of so many pieces. It breaks off at its end, so that no
    second call follows.
    """
    return words(1, f"{SLOW} {WRITES}{length}]] [[end-early]]")


def compare(found: Found, installation: Installation, unsent: int = 0, tolerance: float = 0.1) -> None:
    """What all tenants were charged, with what the model has received and sent."""
    wait_for(lambda: installation.api.in_progress == 0)
    spent = [
        sum(cell.get("budget", {}).get("spent", {}).values())
        for (scope, _), cell in cells(installation.database).items()
        if scope == "tenant"
    ]
    charged_in, charged_out = (sum(part) for part in zip(*(divmod(s, OF_INPUT) for s in spent), strict=True))
    real = installation.api.tokens
    found.figures |= {
        "tokens in": f"{charged_in:,} charged, {real.input:,} received by the model",
        "tokens out": f"{charged_out:,} charged, {real.output:,} sent by the model",
    }
    found.claim(charged_in - unsent == real.input, f"input: {charged_in:,} charged of {real.input:,}")
    near = abs(charged_out - real.output) <= tolerance * real.output
    found.claim(near, f"output: {charged_out:,} charged of {real.output:,}")
