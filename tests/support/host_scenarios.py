"""What must be exact over several hosts, and what happens to all when one of them stands still.

Everybody here goes to a host of their choice, past nginx, so that it is known who was asked.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from tests.support.hosts import Host, Hosts
from tests.support.http_client import Answer, Stream
from tests.support.messages_api import MessagesApi
from tests.support.retrying_users import Found, exported, leftovers
from tests.support.server_users import (
    Seat,
    add_people,
    breakers,
    cells,
    obey_the_last,
    reserved,
    rows,
    rush,
    seats,
    wait_for,
    wait_for_half_open,
)

TURN_TOKENS, PRICE, WORST_CASES = 20_000, 10, 10  # the price in millionths of a dollar, of any token
RATE, ROOM, MANY = 12, 3, 24
COOLDOWN = 4.0
LIMIT_USD = TURN_TOKENS * PRICE * WORST_CASES / 1_000_000
EXACT: Mapping[str, object] = {
    "rate_user": f"{RATE}/hour",
    "concurrent_user": ROOM,
    "breaker_cooldown": COOLDOWN,
    "provider_breaker_share": 0.01,  # of all turns here, most go well
    "prices": f"claude-sonnet-4={PRICE}/{PRICE}/{PRICE}/{PRICE}",
    "budget_turn_tokens": TURN_TOKENS,
    "budget_user_day_usd": "off",
    "budget_tenant_month_usd": LIMIT_USD,
}

numbers = itertools.count()


def at(host: Host, seat: Seat) -> Seat:
    return Seat(replace(seat.visitor, url=host.url), seat.chat)


def spread(hosts: Hosts, found: Sequence[Seat]) -> list[Seat]:
    """One at this host, the next at that one."""
    return [at(host, seat) for host, seat in zip(itertools.cycle(hosts), found, strict=False)]


def people(hosts: Hosts, database: str, count: int, chats_each: int = 1) -> list[Seat]:
    """New ones, in a tenant of their own, with chats at both hosts."""
    number = next(numbers)
    names = [f"u{number}-{n}" for n in range(count)]
    add_people(database, names, tenant=f"tenant{number}")
    return spread(hosts, seats(hosts[0].url, names, chats_each))


def a_rate(hosts: Hosts, database: str, api: MessagesApi, found: Found) -> None:
    """Of many messages of a user, all at once, as many are let in as the rate says."""
    places = people(hosts, database, 1, MANY)
    told = Counter[int]()
    for begin in range(0, MANY, ROOM):  # no more at once than may run at once
        with rush(api, [partial(seat.send, "hello") for seat in places[begin : begin + ROOM]]) as crowd:
            pass
        told += Counter(answer.status for answer in (*crowd.refused, *crowd.answered))
    found.claim(told == {200: RATE, 429: MANY - RATE}, f"a rate of {RATE}: {told}")


def room(hosts: Hosts, database: str, api: MessagesApi, found: Found) -> None:
    """Of many turns of a user, as many run at once as may."""
    with rush(api, [partial(seat.send, "hello") for seat in people(hosts, database, 1, MANY)]) as crowd:
        reached, told = crowd.reached, Counter(answer.status for answer in crowd.refused)
    found.claim((reached, set(told)) == (ROOM, {503}), f"room for {ROOM}: {reached}, {told}")


def a_budget(hosts: Hosts, database: str, api: MessagesApi, found: Found) -> None:
    """Of many turns of a tenant, as many run at once as can be paid if all of them cost the most that they
    may, and what is charged is what the model has on its bill.
    """
    paid, before = api.tokens, cells(database)
    with rush(api, [partial(seat.send, "hello") for seat in people(hosts, database, MANY)]) as crowd:
        reached, told = crowd.reached, Counter(answer.status for answer in crowd.refused)
    found.claim((reached, told) == (WORST_CASES, {429: MANY - WORST_CASES}), f"a budget: {reached}, {told}")
    bill = api.tokens.input + api.tokens.output - paid.input - paid.output
    charged = Counter[str]()
    for key, cell in cells(database).items():
        if key not in before:
            charged[key[0]] += sum(cell.get("budget", {}).get("spent", {}).values())
    wanted = {"session": bill, "user": bill * PRICE, "tenant": bill * PRICE}
    found.claim({name: charged[name] for name in wanted} == wanted, f"charged {charged}, and not {wanted}")


def a_breaker(hosts: Hosts, database: str, api: MessagesApi, found: Found) -> None:
    """Opened at one host, it is open at the other with the next message."""
    for here, there in (hosts, hosts[::-1]):
        (seat,) = people(hosts, database, 1)
        failed = [at(here, seat).send("[[status:400]]").status for _ in range(3)]
        told = [code_of(at(there, seat).send("hello")) for _ in range(4)]
        found.claim((failed, told) == ([502] * 3, ["breaker-open"] * 4), f"a breaker: {failed}, {told}")


def a_probe(hosts: Hosts, database: str, api: MessagesApi, found: Found) -> None:
    """After the cool-down of the model's breaker one message of all workers is the one that tries."""
    # Not all of one tenant: then that alone would be paused.
    failing = [seat for _ in range(4) for seat in people(hosts, database, 2)]
    with rush(api, [partial(seat.send, "[[end-early]]") for seat in failing]):
        pass
    if not breakers(database, "provider"):
        found.claim(False, "the model's breaker did not open")
        return
    told = {code_of(seat.send("hello")) for seat in failing}
    found.claim(told == {"breaker-open"}, f"while it is open: {told}")
    wait_for_half_open(database, "provider")
    with rush(
        api, [partial(seat.send, "hello") for seat in (*failing, *people(hosts, database, 8))]
    ) as crowd:
        reached, told = crowd.reached, {code_of(answer) for answer in crowd.refused}
    found.claim((reached, told) == (1, {"breaker-open"}), f"{reached} tried, others were told {told}")
    statuses = [seat.send("hello").status for seat in failing]
    found.claim(statuses == [200] * 8, f"after the model was found well: {statuses}")


def following(hosts: Hosts, database: str, api: MessagesApi, found: Found) -> None:
    """A turn of one host is read from its beginning, and stopped, at the other one."""
    for here, there in (hosts, hosts[::-1]):
        (seat,) = people(hosts, database, 1)
        path = f"/chat/{seat.chat}/messages"
        first = Stream(at(here, seat).visitor, path, {"message": "[[slow:0.03]] " + "word " * 20}).upto(3)
        events = f"/chat/{seat.chat}/turns/{first.turn_id}"
        second = Stream(at(there, seat).visitor, f"{events}/events").rest()
        same = [event.data for event in first.rest().events] == [event.data for event in second.events]
        found.claim(same, f"{first.text!r} is {second.text!r} at the other host")
        found.claim((second.end or {}).get("status") == "completed", f"it ended as {second.end}")
        stalled = Stream(at(here, seat).visitor, path, {"message": "[[stall:600]] some words"}).upto(3)
        path = f"/chat/{seat.chat}/turns/{stalled.turn_id}/stop"
        stop = at(there, seat).visitor.post(path, "application/json")
        end = stalled.rest().end or {}
        found.claim(stop.status in (200, 202), f"Stop: {stop.status} {stop.text}")
        found.claim(end.get("status") == "stopped", f"a turn stopped at the other host: {end}")


SCENARIOS: tuple[Callable[[Hosts, str, MessagesApi, Found], None], ...] = (
    *(a_rate, room, a_budget),
    *(a_breaker, following, a_probe),
)


def exact(hosts: Hosts, database: str, api: MessagesApi, count: int = 1) -> Found:
    found = Found()
    for _ in range(count):
        for scenario in SCENARIOS:
            scenario(hosts, database, api, found)
            wait_for(lambda: not leftovers(database))
    found.claim(reserved(cells(database)) == {}, f"still reserved: {reserved(cells(database))}")
    found.claim("Traceback" not in hosts.output(), hosts.output()[-2000:])
    found.figures["rounds of all scenarios"] = count
    return found


def frozen(hosts: Hosts, database: str, api: MessagesApi, seconds: float = 0.0) -> Found:
    """One host stands still, for at least so long and until its turns are given up. The other one goes on."""
    api.respond_with(obey_the_last)
    stuck, well = hosts
    found, chats = Found(), people(hosts, database, 6)
    stuck_chats, others = [at(stuck, seat) for seat in chats[:3]], [at(well, seat) for seat in chats[3:]]
    streams = [
        Stream(
            seat.visitor, f"/chat/{seat.chat}/messages", {"message": "[[slow:0.2]] " + "word " * 150}
        ).upto(4)
        for seat in stuck_chats
    ]
    stuck.freeze()
    began, took, statuses = time.monotonic(), list[float](), Counter[int]()
    try:
        while time.monotonic() < began + seconds or running_turns(database):
            for seat in others:
                asked = time.monotonic()
                statuses[seat.send("hello").status] += 1
                statuses[seat.visitor.get(f"/chat/{seat.chat}").status] += 1
                took.append(time.monotonic() - asked)
            if time.monotonic() > began + 90:
                found.claim(False, "its turns were never given up")
                break
            time.sleep(0.1)
        found.figures["its turns were given up after"] = f"{time.monotonic() - began:.1f} s"
        found.claim(statuses.keys() == {200}, f"at the other host: {statuses}")
        again = [at(well, seat).send("and again").status for seat in stuck_chats]
        found.claim(again == [200] * 3, f"in its chats, at the other host: {again}")
    finally:
        stuck.thaw()
    found.note_times("a message and a page at the other host meanwhile", took)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda stream: stream.rest(), streams))
    wait_for(lambda: not leftovers(database))
    for seat in stuck_chats:
        kept = exported(at(well, seat).visitor, seat.chat)
        ends = [turn["status"] for turn in kept["turns"]]
        found.claim(ends == ["interrupted", "completed"], f"{seat.chat}: {ends}")
        said = Counter((message["turn_id"], message["role"]) for message in kept["messages"])
        found.claim(set(said.values()) == {1}, f"{seat.chat}: {said}")
    after = [seat.send("hello").status for seat in stuck_chats]
    found.claim(after == [200] * 3, f"at the host that stood still, later: {after}")
    found.claim(reserved(cells(database)) == {}, f"still reserved: {reserved(cells(database))}")
    return found


def running_turns(database: str) -> int:
    """Of those that were given to the model with many words."""
    query = (
        "SELECT count(*) FROM turns t JOIN messages m ON m.turn_id = t.id "
        "WHERE t.status = 'running' AND m.role = 'user' AND m.content LIKE '[[slow%'"
    )
    return int(rows(database, query)[0][0])


def code_of(answer: Answer) -> str:
    return "" if answer.status == 200 else str(json.loads(answer.body).get("code"))
