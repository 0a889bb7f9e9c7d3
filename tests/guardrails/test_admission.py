"""The one decision over session, user, tenant and provider, against naive guardrails of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentapp.errors import Blame, GuardrailRefused
from agentapp.events import Status, TurnResult, Usage
from agentapp.guardrails import Allowance, BreakerPolicy, CellPolicy, Cells, Key, Rate
from agentapp.guardrails.admission import (
    MaxCost,
    Reservation,
    TurnCells,
    admit,
    charge,
    settle,
)
from agentapp.guardrails.cell import NEVER
from agentapp.guardrails.outage import OutagePolicy, Person
from tests.support.guardrail_models import (
    HOUR,
    START,
    STEPS,
    Clock,
    NaiveBreaker,
    NaiveBucket,
    NaiveBudget,
    NaiveHolds,
    NaiveOutage,
    Refusal,
    Reserved,
    machine_settings,
    refusal_of,
    through_json,
)
from tests.support.rounds import ROUNDS

LEASE = 160.0
FORGOTTEN = LEASE * 17 / 16


def breaker(failures: int) -> BreakerPolicy:
    return BreakerPolicy(failures, cooldown=30, cooldown_max=120, jitter=0, lease=LEASE)


FAILED = TurnResult("failed", blame="provider")
INTERRUPTED = TurnResult("interrupted")
TIGHT = {
    "session": CellPolicy(breaker(2), Rate(6, 60), Allowance(1_000), lease=LEASE),
    "user": CellPolicy(breaker(4), Rate(9, 60), Allowance(3_000, "day"), 2, LEASE),
    "tenant": CellPolicy(
        breaker(NEVER), Rate(14, 60), Allowance(5_000, "month"), 3, LEASE, OutagePolicy(2, 0.5, 40)
    ),
    "provider": CellPolicy(breaker(NEVER), lease=LEASE, outage=OutagePolicy(3, 0.5, 40, users_per_tenant=2)),
}
# What tenants and the provider share out is off: nothing is left through which users could meet.
PRIVATE = {
    **TIGHT,
    "tenant": CellPolicy(breaker(NEVER), lease=LEASE, outage=OutagePolicy(10**6, 0.5, 40)),
    "provider": CellPolicy(breaker(NEVER), lease=LEASE, outage=OutagePolicy(10**6, 0.5, 40)),
}
LOOSE = {
    "session": CellPolicy(breaker(2), lease=LEASE),
    "user": CellPolicy(breaker(8), lease=LEASE),
    "tenant": CellPolicy(breaker(NEVER), lease=LEASE, outage=OutagePolicy(3, 0.5, 40)),
    "provider": CellPolicy(breaker(NEVER), lease=LEASE, outage=OutagePolicy(3, 0.5, 40, users_per_tenant=2)),
}
SESSIONS = [f"{tenant}{user}{session}" for tenant in "AB" for user in "12" for session in "xy"]
PLENTY = MaxCost(100, 100)


@dataclass(frozen=True)
class Begun:
    session: str
    reservation: Reservation


def who(session: str) -> Person:
    return Person(session[0], session[:2])


class World:
    """All cells, kept as the texts that a store would keep. The name of a session is made of its tenant, its
    user and a letter of its own: A1x.
    """

    def __init__(self, policies: dict[str, CellPolicy]) -> None:
        self.kind = Cells(policies)
        self.texts: dict[Key, str] = {}
        self.begun = 0  # turns that have not ended

    @staticmethod
    def keys(session: str) -> tuple[Key, ...]:
        return (
            Key("session", session),
            Key("user", session[:2]),
            Key("tenant", session[0]),
            Key("provider", "demo"),
        )

    def cells(self, session: str) -> TurnCells:
        found = [(key, self.texts.get(key)) for key in self.keys(session)]
        return TurnCells(
            *(self.kind.fresh(k) if text is None else self.kind.load(k, text) for k, text in found)
        )

    def save(self, session: str, cells: TurnCells) -> None:
        self.texts |= {key: self.kind.dump(cell) for key, cell in zip(self.keys(session), cells, strict=True)}

    def begin(self, session: str, now: float, max_cost: MaxCost = PLENTY) -> Begun:
        before = self.cells(session)
        seen = [self.kind.dump(cell) for cell in before]
        try:
            after, reservation = admit(before, who(session), max_cost, now)
        except GuardrailRefused:
            assert [self.kind.dump(cell) for cell in before] == seen, "a refusal changed a cell"
            raise
        self.save(session, after)
        self.begun += 1
        return Begun(session, Reservation.from_json(through_json(reservation.to_json())))

    def end(self, turn: Begun, result: TurnResult, now: float, running: int | None = None) -> None:
        """``running`` is how many others run; without it, as many as have begun and not ended."""
        self.begun -= 1
        others = self.begun if running is None else running
        cells = settle(self.cells(turn.session), turn.reservation, who(turn.session), result, now, others)
        self.save(turn.session, cells)

    def give_back(self, turn: Begun, now: float) -> None:
        self.end(turn, INTERRUPTED, now)

    def charge(self, turn: Begun, result: TurnResult, now: float) -> None:
        cells = charge(self.cells(turn.session), result, now, turn.reservation.begun)
        self.save(turn.session, cells)

    def turn(self, session: str, status: Status, now: float, blame: Blame = "provider") -> None:
        self.end(self.begin(session, now), TurnResult(status, blame=blame), now)


# --- the naive world ------------------------------------------------------------------------------


@dataclass
class NaiveCell:
    breaker: NaiveBreaker
    bucket: NaiveBucket
    budget: NaiveBudget
    limit: int | None
    bulkhead: NaiveHolds
    outage: NaiveOutage
    tools: dict[str, int] = field(default_factory=dict)

    @classmethod
    def new(cls, policy: CellPolicy) -> NaiveCell:
        rate, allowed, down = policy.rate, policy.allowance, policy.outage
        return cls(
            NaiveBreaker(policy.breaker),
            NaiveBucket(rate.count, rate.seconds) if rate else NaiveBucket(None),
            NaiveBudget(allowed.limit, allowed.period, NaiveHolds(LEASE)),
            policy.concurrent,
            NaiveHolds(LEASE),
            NaiveOutage(down),
        )

    def refuses(self, what: str, session: str, now: float, seen: bool) -> Refusal | None:
        """``seen`` is whether the model was seen to work for others since this tenant's breaker opened."""
        match what:
            case "model" if self.model_is_refused(who(session), now, seen):
                return Refusal("breaker-open", self.breaker.policy.failures, self.breaker.row)
            case "breaker" if self.breaker.says_no(now):
                return Refusal("breaker-open", self.breaker.policy.failures, self.breaker.row)
            case "bucket":
                return self.bucket.refuses(now)
            case "budget":
                return self.budget.refuses(now)
            case "bulkhead" if self.limit is not None and len(self.bulkhead.alive(now)) >= self.limit:
                return Refusal("busy", self.limit, self.limit)
        return None

    def model_is_refused(self, asking: Person, now: float, seen: bool) -> bool:
        if self.breaker.mode != "open":
            return self.breaker.mode == "forced-open"
        if asking.tenant_id not in self.outage.tenants():
            return self.breaker.is_probed(now)
        if seen:
            return asking in self.outage.without_probe(now, 0.0) or self.breaker.is_probed(now)
        failed = self.outage.without_probe(now, self.breaker.cooldown)
        return asking in failed or self.breaker.says_no(now)


@dataclass
class NaiveTurn:
    session: str
    began: float
    epochs: tuple[int, int, int, int]  # of the session, the user, the tenant, the provider
    reserved: list[Reserved]
    amounts: tuple[int, int, int]


# Of several reasons, people are told the first of these.
ORDER = (
    ("provider", "model"),
    ("tenant", "model"),
    ("session", "breaker"),
    ("session", "budget"),
    ("user", "breaker"),
    ("user", "budget"),
    ("tenant", "forced"),
    ("tenant", "budget"),
    ("tenant", "bucket"),
    ("tenant", "bulkhead"),
    ("user", "bucket"),
    ("user", "bulkhead"),
    ("session", "bucket"),
)


class NaiveWorld:
    def __init__(self, policies: dict[str, CellPolicy]) -> None:
        self.policies = policies
        self.all: dict[Key, NaiveCell] = {}
        self.running = NaiveHolds(LEASE)

    def cell(self, key: Key) -> NaiveCell:
        return self.all.setdefault(key, NaiveCell.new(self.policies[key.scope]))

    def cells(self, session: str) -> tuple[NaiveCell, ...]:
        return tuple(self.cell(key) for key in World.keys(session))

    def begin(self, session: str, now: float, max_cost: MaxCost) -> tuple[str, Refusal] | NaiveTurn:
        four = self.cells(session)
        chat, user, tenant, provider = four
        named = dict(zip(("session", "user", "tenant", "provider"), four, strict=True))
        works = provider.breaker.mode != "open" and provider.outage.answered_since(tenant.breaker.opened, now)
        for scope, what in ORDER:
            paused = named[scope].breaker.mode == "forced-open"
            if scope == "tenant" and what in ("model", "forced") and paused != (what == "forced"):
                continue  # an operator's pause of a tenant is told later than that the model is down
            seen = scope == "tenant" and works
            refusal = named[scope].refuses("model" if what == "forced" else what, session, now, seen)
            if refusal is not None:
                return "provider" if what == "model" else scope, refusal
        wanted = zip(
            (chat, user, tenant), (max_cost.tokens, max_cost.microusd, max_cost.microusd), strict=True
        )
        amounts = [int(min(want, cell.budget.left(now))) for cell, want in wanted]
        reserved = [
            *(c.budget.holds.take(a, now) for c, a in zip((chat, user, tenant), amounts, strict=True)),
            *(cell.bulkhead.take(0, now) for cell in (user, tenant)),
            self.running.take(0, now),
        ]
        for cell in (chat, user, tenant):
            if cell.bucket.count is not None:  # without a limit nobody counts
                cell.bucket.hits.append(now)
        epochs = tuple(cell.breaker.probe_now(now) for cell in four)
        return NaiveTurn(session, now, epochs, reserved, tuple(amounts))  # type: ignore[arg-type]

    def end(self, turn: NaiveTurn, end: TurnResult, now: float) -> None:
        for one in turn.reserved:
            one.given_back = True
        self.charge(turn, end)
        chat, user, tenant, provider = self.cells(turn.session)
        running, of_tenant = len(self.running.alive(now)), len(tenant.bulkhead.alive(now))
        self._tell_about_model(provider, turn.epochs[3], turn.session, end, now, running)
        self._tell_about_model(tenant, turn.epochs[2], turn.session, end, now, of_tenant)
        down = "open" in (provider.breaker.mode, tenant.breaker.mode)
        told = "abandoned" if end.verdict == "failed" and down else end.verdict
        chat.breaker.tell(turn.epochs[0], now, told)
        user.breaker.tell(turn.epochs[1], now, told)

    def charge(self, turn: NaiveTurn, end: TurnResult) -> None:
        """It counts for the day on which the turn began, whatever day it is now."""
        chat, user, tenant, _ = self.cells(turn.session)
        for cell, amount in (
            (chat, end.usage.total_tokens),
            (user, end.charged_microusd),
            (tenant, end.charged_microusd),
        ):
            cell.budget.spent.append((turn.began, amount))
        for name, calls in end.tool_calls:
            chat.tools[name] = chat.tools.get(name, 0) + calls

    def _tell_about_model(
        self, cell: NaiveCell, epoch: int, session: str, end: TurnResult, now: float, running: int
    ) -> None:
        its, outage = cell.breaker, cell.outage
        if epoch != its.epoch:
            if its.mode == "open" and end.verdict == "failed" and end.blame == "provider":
                outage.note(now, who(session), is_open=True)
            return
        blamed = end.verdict == "failed" and end.blame == "provider"
        heard = its.mode == "open" and end.usage.output_tokens > 0
        if not blamed and (end.verdict == "succeeded" or heard):
            if its.mode == "open":
                outage.told = []
            outage.note(now, None)
            its.tell(its.epoch, now, "succeeded")
        elif not blamed:
            if its.mode == "open" and end.status != "interrupted":
                outage.note(now, who(session), is_open=True)
            its.tell(its.epoch, now, "abandoned")
        elif its.mode == "open":
            its.tell(its.epoch, now, "failed")
            outage.note(now, who(session), is_open=True)
        else:
            outage.note(now, who(session))
            if outage.is_down(now, running) and its.mode == "closed":
                its.row = outage.users_failing(now)
                its.trip(now)


# --- the machine ----------------------------------------------------------------------------------

RESULTS = st.builds(
    TurnResult,
    st.sampled_from(["completed", "failed", "failed", "stopped", "interrupted"]),
    blame=st.sampled_from(["provider", "provider", "turn", "nobody"]),
    usage=st.builds(Usage, st.integers(0, 200), st.one_of(st.just(0), st.integers(0, 100))),
    charged_microusd=st.integers(0, 500),
    tool_calls=st.sampled_from([(), (("clock", 1),), (("clock", 2), ("calculator", 1))]),
)
MAX_COSTS = st.builds(MaxCost, st.integers(1, 400), st.integers(0, 900))


class AdmissionMachine(RuleBasedStateMachine):
    """Eight sessions of four users of two tenants with one provider, and everything turns can do."""

    @initialize(policies=st.sampled_from([TIGHT, TIGHT, LOOSE]))
    def begin(self, policies: dict[str, CellPolicy]) -> None:
        self.clock, self.world, self.naive = Clock(), World(policies), NaiveWorld(policies)
        self.running: list[tuple[Begun, NaiveTurn]] = []
        self.dead: list[tuple[Begun, NaiveTurn]] = []
        self.ended: list[tuple[Begun, NaiveTurn, TurnResult]] = []

    @rule(seconds=STEPS)
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(hours=st.sampled_from([2, 26, 31 * 24]))
    def a_long_time_passes(self, hours: int) -> None:
        self.clock.advance(hours * HOUR)

    @rule(session=st.sampled_from(SESSIONS), max_cost=MAX_COSTS)
    def a_message_is_sent(self, session: str, max_cost: MaxCost) -> None:
        now, before = self.clock.now, dict(self.world.texts)
        wanted = self.naive.begin(session, now, max_cost)
        let_in: list[Begun] = []
        refusal = refusal_of(lambda: let_in.append(self.world.begin(session, now, max_cost)))
        if isinstance(wanted, NaiveTurn):
            assert refusal is None, f"refused by {refusal and refusal.scope}: {refusal}"
            reservation = let_in[0].reservation
            assert (
                reservation.tokens,
                reservation.user_microusd,
                reservation.tenant_microusd,
            ) == wanted.amounts
            assert reservation.microusd == min(wanted.amounts[1:])
            self.running.append((let_in[0], wanted))
            return
        assert refusal is not None, f"{wanted} was let in"
        scope, naive = wanted
        if scope == "provider":  # what it names as its limit is people, not failures in a row
            naive = replace(naive, limit=TIGHT["provider"].outage.users)
        assert (refusal.scope, Refusal(refusal.code, refusal.limit, refusal.used)) == (scope, naive)
        assert refusal.retry_after > 0
        assert str(refusal)
        assert self.world.texts == before

    @precondition(lambda self: self.running)
    @rule(data=st.data(), result=RESULTS)
    def a_turn_ends(self, data: st.DataObject, result: TurnResult) -> None:
        turn, naive = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self._end(turn, naive, result)

    def _end(self, turn: Begun, naive: NaiveTurn, result: TurnResult) -> None:
        self.naive.end(naive, result, self.clock.now)
        self.world.end(turn, result, self.clock.now, len(self.naive.running.alive(self.clock.now)))
        self.ended.append((turn, naive, result))

    @rule(session=st.sampled_from(SESSIONS), result=RESULTS)
    def a_message_is_sent_and_answered(self, session: str, result: TurnResult) -> None:
        before = len(self.running)
        self.a_message_is_sent(session, PLENTY)
        if len(self.running) > before:
            turn, naive = self.running.pop()
            self._end(turn, naive, result)

    @rule(count=st.integers(3, 4))
    def the_model_fails_for_several_people(self, count: int) -> None:
        for session in ("A1x", "A2x", "B1x", "B2x")[:count]:
            self.a_message_is_sent_and_answered(session, FAILED)

    @rule(session=st.sampled_from(SESSIONS), result=RESULTS)
    def after_the_cooldown_somebody_tries(self, session: str, result: TurnResult) -> None:
        self.clock.advance(self.world.cells(session).provider.breaker.wait(self.clock.now) or 0.0)
        self.a_message_is_sent_and_answered(session, result)

    @precondition(lambda self: self.running)
    @rule()
    def a_worker_dies(self) -> None:
        self.dead.append(self.running.pop())

    @precondition(lambda self: self.dead)
    @rule()
    def the_reservation_of_a_dead_turn_is_given_back(self) -> None:
        turn, naive = self.dead.pop(0)
        self.naive.end(naive, INTERRUPTED, self.clock.now)
        self.world.give_back(turn, self.clock.now)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), truth=RESULTS)
    def a_turn_that_was_given_up_turns_out_to_have_spent_more_or_less(
        self, data: st.DataObject, truth: TurnResult
    ) -> None:
        turn, naive, charged = self.ended.pop(data.draw(st.integers(0, len(self.ended) - 1)))
        rest = replace(
            truth,
            usage=Usage(truth.usage.total_tokens - charged.usage.total_tokens),
            charged_microusd=truth.charged_microusd - charged.charged_microusd,
        )
        self.naive.charge(naive, rest)
        self.world.charge(turn, rest, self.clock.now)

    @rule(
        session=st.sampled_from(SESSIONS),
        scope=st.integers(0, 3),
        to=st.sampled_from(["open", "closed", "", "", ""]),
    )
    def an_operator_steps_in(self, session: str, scope: int, to: str) -> None:
        cells, naive = self.world.cells(session), self.naive.cells(session)[scope].breaker
        its = cells[scope].breaker
        changed = replace(cells[scope], breaker=its.force(to) if to else its.reset())  # type: ignore[arg-type]
        self.world.save(
            session, TurnCells(*(changed if n == scope else cell for n, cell in enumerate(cells)))
        )
        naive.force(to) if to else naive.close()

    @rule(
        session=st.sampled_from(SESSIONS),
        scope=st.sampled_from([1, 2]),
        limits=st.fixed_dictionaries(
            {},
            optional={
                "rate": st.sampled_from([None, (1, 60), (20, 60)]),
                "budget": st.sampled_from([None, 1, 400, 9_000]),
                "concurrent": st.sampled_from([None, 1, 5]),
            },
        ),
    )
    def an_admin_changes_limits(
        self, session: str, scope: int, limits: dict[str, int | tuple[int, int] | None]
    ) -> None:
        key, cells = World.keys(session)[scope], self.world.cells(session)
        changed = self.world.kind.with_limits(key, cells[scope], tuple(limits.items()))
        self.world.save(
            session, TurnCells(*(changed if n == scope else cell for n, cell in enumerate(cells)))
        )
        naive = self.naive.cell(key)
        fresh = NaiveCell.new(self.naive.policies[key.scope])
        rate = limits.get("rate", fresh.bucket.count and (fresh.bucket.count, 60))
        naive.bucket.count = rate[0] if isinstance(rate, tuple) else None
        naive.budget.limit = limits.get("budget", fresh.budget.limit)  # type: ignore[assignment]
        naive.limit = limits.get("concurrent", fresh.limit)  # type: ignore[assignment]

    @invariant()
    def every_cell_knows_what_the_naive_one_knows(self) -> None:
        now = self.clock.now
        for key, naive in self.naive.all.items():
            text = self.world.texts.get(key)
            cell = self.world.kind.fresh(key) if text is None else self.world.kind.load(key, text)
            assert cell.budget.used(now) == naive.budget.used(now)
            assert cell.budget.holds.amount(now) == naive.budget.held(now)
            assert cell.bulkhead.holds.count(now) == len(naive.bulkhead.alive(now))
            assert cell.outage.users_failing(now) == naive.outage.users_failing(now)
            assert (cell.breaker.failures, cell.breaker.trips) == (naive.breaker.row, naive.breaker.trips)
            assert dict(cell.tools) == naive.tools

    @invariant()
    def a_lease_after_the_last_turn_nothing_is_held(self) -> None:
        later = self.clock.now + FORGOTTEN
        for key, text in self.world.texts.items():
            cell = self.world.kind.load(key, text)
            assert (cell.budget.holds.count(later), cell.bulkhead.holds.count(later)) == (0, 0)

    def teardown(self) -> None:
        """What the remaining turns reserved is given back: then nothing is held anywhere."""
        if not hasattr(self, "world"):
            return
        for turn, _ in (*self.running, *self.dead):
            self.world.give_back(turn, self.clock.now)
        now = self.clock.now
        assert not any(held(self.world, key, text, now) for key, text in self.world.texts.items())


def held(world: World, key: Key, text: str, now: float) -> bool:
    cell = world.kind.load(key, text)
    holds = (cell.budget.holds, cell.bulkhead.holds)
    return any(one.count(now) or one.amount(now) for one in holds)


AdmissionMachine.TestCase.settings = machine_settings(25, 40)
TestAdmissionMachine = AdmissionMachine.TestCase


# --- nobody is anybody else's business ------------------------------------------------------------

STEP = st.tuples(st.sampled_from(SESSIONS), st.sampled_from(["begin", "end", "die", "wait"]), RESULTS)


@machine_settings(40, 1)
@given(st.lists(STEP, min_size=10, max_size=60))
def test_one_user_never_changes_anything_for_another(steps: list[tuple[str, str, TurnResult]]) -> None:
    """The same steps of A1 in a world full of others, and alone: the same decisions, the same cells."""
    crowded, alone, clock = World(PRIVATE), World(PRIVATE), Clock()
    turns: dict[str, list[tuple[Begun, Begun | None]]] = {session: [] for session in SESSIONS}
    for session, what, result in steps:
        own = session.startswith("A1")
        if what == "begin":
            _begin_in_both(crowded, alone if own else None, session, clock.now, turns)
        elif what == "wait":
            clock.advance(7.5)
        elif turns[session]:
            one, other = turns[session].pop()
            if what == "end":
                crowded.end(one, result, clock.now)
                if other is not None:
                    alone.end(other, result, clock.now)
    for key in {key for session in ("A1x", "A1y") for key in World.keys(session)[:2]}:
        assert crowded.texts.get(key) == alone.texts.get(key)


def _begin_in_both(
    crowded: World,
    alone: World | None,
    session: str,
    now: float,
    turns: dict[str, list[tuple[Begun, Begun | None]]],
) -> None:
    got: list[Begun] = []
    refusals = [
        refusal_of(lambda world=world: got.append(world.begin(session, now)))
        for world in (crowded, alone)
        if world is not None
    ]
    assert len({str(refusal) for refusal in refusals}) == 1
    if got:
        turns[session].append((got[0], got[1] if alone is not None else None))


# --- claims one by one ----------------------------------------------------------------------------


def used(tokens: int, microusd: int) -> TurnResult:
    return TurnResult("completed", usage=Usage(output_tokens=tokens), charged_microusd=microusd)


def refused(world: World, session: str, now: float = START) -> GuardrailRefused | None:
    return refusal_of(lambda: world.begin(session, now))


def test_a_failing_session_leaves_the_users_other_sessions_alone() -> None:
    world = World(LOOSE)
    for _ in range(2):
        world.turn("A1x", "failed", START, blame="turn")
    refusal = refused(world, "A1x")
    assert refusal is not None
    assert (refusal.scope, refusal.limit, refusal.used, refusal.retry_after) == ("session", 2, 2, 30)
    for _ in range(20):
        world.turn("A1y", "completed", START)


def test_failures_over_all_sessions_open_the_users_own_breaker_and_nobody_elses() -> None:
    world = World(LOOSE)
    for n in range(8):
        world.turn(f"A1-{n}", "failed", START, blame="turn")
    refusal = refused(world, "A1-new")
    assert refusal is not None
    assert (refusal.scope, refusal.limit, refusal.used) == ("user", 8, 8)
    for other in ("A2x", "B1x"):
        world.turn(other, "completed", START)


def test_giving_back_returns_everything_that_was_reserved() -> None:
    world = World(TIGHT)
    turns = [world.begin(session, START) for session in ("A1x", "A1y", "A2x", "B1x")]
    assert any(held(world, key, text, START) for key, text in world.texts.items())
    for turn in turns:
        world.give_back(turn, START + 1)
    assert not any(held(world, key, text, START + 1) for key, text in world.texts.items())
    assert all(not world.cells(turn.session).session.budget.used(START + 1) for turn in turns)


def test_settling_charges_exactly_what_was_used_be_it_less_or_more() -> None:
    world = World(TIGHT)
    for spent in (1, 100, 250):
        world.end(world.begin("A1x", START), used(spent, spent * 2), START)
    cells = world.cells("A1x")
    assert [cell.budget.used(START) for cell in cells[:3]] == [351, 702, 702]
    assert [cell.budget.holds.amount(START) for cell in cells[:3]] == [0, 0, 0]


def test_a_turn_counts_for_the_day_on_which_it_began_and_so_does_what_is_corrected_later() -> None:
    """It begins a second before midnight, at the end of a month. Its estimate was too high."""
    world, midnight = World(TIGHT), START + 1.5 * HOUR
    turn = world.begin("A1x", midnight - 1)
    world.end(turn, used(90, 300), midnight + 5)
    world.end(world.begin("A1y", midnight + 10), used(10, 50), midnight + 11)
    world.charge(turn, used(-60, -200), midnight + 12)
    cells = world.cells("A1x")
    assert [cell.budget.used(midnight - 1) for cell in cells[:3]] == [30, 100, 100]
    assert [cell.budget.used(midnight + 12) for cell in cells[1:3]] == [50, 50]


def test_a_turn_that_begins_just_after_midnight_counts_for_the_new_day() -> None:
    """Although the slot of what it reserved began before."""
    slots_of_eleven_seconds = {scope: replace(policy, lease=176.0) for scope, policy in TIGHT.items()}
    world, midnight = World(slots_of_eleven_seconds), START + 1.5 * HOUR
    turn = world.begin("A1x", midnight + 1)
    assert turn.reservation.at < midnight
    world.end(turn, used(10, 50), midnight + 2)
    assert world.cells("A1x").user.budget.used(midnight + 2) == 50


@pytest.mark.parametrize(
    ("scope", "count", "sessions"),
    [("session", 6, ["A1x"]), ("user", 9, ["A1x", "A1y"]), ("tenant", 14, ["A1x", "A2x", "A1y", "A2y"])],
)
def test_the_rate_that_is_reached_first_is_named(scope: str, count: int, sessions: list[str]) -> None:
    world = World(TIGHT)
    for n in range(count):
        world.turn(sessions[n % len(sessions)], "completed", START)
    refusal = refused(world, sessions[-1])
    assert refusal is not None
    named = (refusal.scope, refusal.code, refusal.limit, refusal.used)
    assert named == (scope, "rate-limited", count, count)
    assert 0 < refusal.retry_after <= 61


@pytest.mark.parametrize(("scope", "running"), [("user", ["A1x", "A1y"]), ("tenant", ["A1x", "A2x", "A1y"])])
def test_the_bulkhead_that_is_full_is_named(scope: str, running: list[str]) -> None:
    world = World(TIGHT)
    for session in running:
        world.begin(session, START)
    refusal = refused(world, "A1z" if scope == "user" else "A2y")
    assert refusal is not None
    assert (refusal.scope, refusal.code, refusal.used) == (scope, "busy", len(running))


def down() -> World:
    """Three different people failed at the same time: the model is down."""
    world = World(LOOSE)
    for session in ("A1x", "A2x", "B1x"):
        world.turn(session, "failed", START)
    return world


def _let_the_model_fail(world: World) -> None:
    """Let turns of more and more other people fail, until the model is down for everybody."""
    for name in "abcdefghijklmnopqrstuvwxyz":
        for tenant in "CDEF":
            if world.cells("A1x").provider.breaker.opened is None:
                world.turn(f"{tenant}{name}x", "failed", START)
    assert world.cells("A1x").provider.breaker.opened is not None


def test_the_provider_opens_only_by_different_people_of_different_tenants() -> None:
    world = World(LOOSE)
    for n in range(6):
        world.turn(f"A1-{n}", "failed", START)
        world.turn(f"A2-{n}", "failed", START)
    assert world.cells("B1x").provider.breaker.opened is None
    world.turn("B1x", "failed", START)
    for session in SESSIONS:
        refusal = refused(world, session)
        assert refusal is not None
        assert (refusal.scope, refusal.code, refusal.used) == ("provider", "breaker-open", 3)


@pytest.mark.parametrize("active", [False, True])
def test_one_tenant_alone_never_takes_the_model_from_another(active: bool) -> None:
    """Eight people of A fail all the time. Of B nobody is refused, and nobody waits."""
    world, now, shut = World(LOOSE), START, 0
    for n in range(150 * ROUNDS):
        now = START + n
        for user in range(8):
            try:
                world.turn(f"A{user}-{n}", "failed", now)
            except GuardrailRefused:
                shut += 1
        if active:
            world.turn(f"B1-{n}", "completed", now)
        provider, tenant = world.cells("B1x").provider.breaker, world.cells("B1x").tenant.breaker
        assert (provider.opened, tenant.opened, provider.cooldown) == (None, None, 0)
    together = [world.begin(f"B{n}x", now) for n in range(20)]
    assert len(together) == 20
    assert shut > 1_000, "for its own people it was shut nearly all the time"


def test_enough_people_of_one_tenant_shut_the_model_for_that_tenant() -> None:
    world = World(LOOSE)
    for session in ("A1x", "A2x", "A3x"):
        world.turn(session, "failed", START)
    refusal = refused(world, "A4x")
    assert refusal is not None
    assert (refusal.scope, refusal.code, refusal.limit, refusal.used) == ("provider", "breaker-open", 3, 3)
    assert refused(world, "B1x") is None
    world.turn("A4x", "completed", START + 30)
    assert refused(world, "A1x", START + 30) is None, "one answer opens it again"


def test_while_it_is_open_a_tenant_that_has_not_failed_goes_through_one_turn_at_a_time() -> None:
    world = down()
    first = world.begin("C1x", START + 1)
    refusal = refused(world, "C2x", START + 1)
    assert refusal is not None
    assert 0 < refusal.retry_after <= 5
    before = world.cells("A1x").provider.breaker
    world.end(first, FAILED, START + 2)
    after = world.cells("A1x").provider.breaker
    assert (after.opened, after.cooldown) == (before.opened, before.cooldown), "nobody waits longer for it"
    assert refused(world, "C2x", START + 3) is not None, "now it has failed for that tenant too"
    world.turn("D1x", "completed", START + 4)
    assert refused(world, "A1x", START + 4) is None, "it answered somebody, so it works"


def test_who_failed_is_not_the_one_who_probes() -> None:
    """Somebody who fails every probe cannot keep the model from the others, however long it is open."""
    world, now = down(), START + 30
    for failed in ("A1x", "A2x", "B1x"):
        assert refused(world, failed, now) is not None
    for reopened in (1, 2):
        world.turn(f"A3-{reopened}", "failed", now)
        now += 30 * 2**reopened
        refusal = refused(world, "A3x", now)
        assert refusal is not None, "who failed the last one does not get the next one"
        now += refusal.retry_after
    assert refused(world, "A3x", now) is None, "if nobody else comes, they may"


HEARD = Usage(10, output_tokens=1)


@pytest.mark.parametrize(
    ("status", "blame"), [("stopped", "nobody"), ("interrupted", "nobody"), ("failed", "turn")]
)
def test_one_word_of_the_model_in_a_probe_shows_that_it_works_however_the_turn_ends(
    status: Status, blame: Blame
) -> None:
    """In a probe of the provider, and in one of a tenant that is shut alone."""
    everybody, one_tenant = down(), World(LOOSE)
    for session in ("A1x", "A2x", "A3x"):
        one_tenant.turn(session, "failed", START)
    for world in (everybody, one_tenant):
        world.end(world.begin("A4x", START + 30), TurnResult(status, usage=HEARD, blame=blame), START + 31)
        assert [refused(world, session, START + 31) for session in ("A1y", "A2y", "B1y")] == [None] * 3
    broken = down()
    broken.end(broken.begin("A4x", START + 30), replace(FAILED, usage=HEARD), START + 31)
    assert refused(broken, "A5x", START + 31) is not None, "an answer that broke off shows nothing"


@pytest.mark.parametrize("result", [TurnResult("stopped"), TurnResult("failed", blame="turn")])
def test_who_ends_a_probe_before_its_first_word_does_not_get_the_next(result: TurnResult) -> None:
    """Otherwise one person, whose tenant has not failed, could have every probe and stop it."""
    world = down()
    world.end(world.begin("E1x", START + 1), result, START + 6)
    for session in ("E1x", "E1y", "E2x"):
        assert refused(world, session, START + 6) is not None, "and the tenant may not come early any more"
    assert world.cells("E1x").provider.breaker.cooldown == 30, "nobody waits longer for it"
    world.end(world.begin("A3x", START + 30), result, START + 31)
    assert refused(world, "A3y", START + 31) is not None
    assert refused(world, "E1x", START + 31) is not None
    world.turn("E2x", "completed", START + 31)
    assert refused(world, "A3y", START + 31) is None


def test_a_probe_whose_worker_died_before_its_first_word_bars_nobody() -> None:
    world = down()
    for seconds in (1, 2, 3):
        world.end(world.begin("E1x", START + seconds), INTERRUPTED, START + seconds)
    assert refused(world, "E1x", START + 4) is None


def test_a_stop_is_no_evidence_while_it_is_closed() -> None:
    world = World(LOOSE)
    for session in ("A1x", "B1x", "A2x"):
        world.end(world.begin("B2x", START), TurnResult("stopped", usage=HEARD), START)
        world.turn(session, "failed", START)
    assert world.cells("A1x").provider.breaker.opened == START


def test_a_tenant_that_fails_much_does_not_shut_the_model_for_others_who_fail_seldom() -> None:
    world = World(LOOSE)
    of_a = [world.begin(f"A{user}{n}", START) for user in range(8) for n in range(3)]
    for n in range(20):
        world.turn(f"{'BC'[n % 2]}{n}x", "completed", START)
    for turn in of_a:
        world.end(turn, FAILED, START)
    for session in ("B1x", "C2x"):
        world.turn(session, "failed", START)
    assert [refused(world, session) for session in ("B3x", "C4x")] == [None, None]
    assert refused(world, "A9x") is not None


def long_shut_for_a() -> tuple[World, float]:
    """The breaker of A has a cool-down of 120 seconds, of which none are over. The provider's is closed."""
    world, now = World(LOOSE), START
    for session in ("A1x", "A2x", "A3x"):
        world.turn(session, "failed", now)
    for user, cooldown in (("A4", 30), ("A5", 60)):
        now += cooldown
        world.turn(f"{user}x", "failed", now)
    assert world.cells("A1x").tenant.breaker.cooldown == 120
    return world, now


def test_a_tenant_tries_again_when_the_model_was_seen_to_work_for_others() -> None:
    world, shut = long_shut_for_a()
    assert refused(world, "A6x", shut + 20) is not None
    world.turn("B1x", "completed", shut + 20)
    probe = world.begin("A6x", shut + 21)
    assert refused(world, "A7x", shut + 21) is not None, "one turn at a time"
    world.end(probe, TurnResult("completed"), shut + 22)
    assert refused(world, "A5x", shut + 22) is None


def test_a_tenant_that_tries_again_and_fails_waits_no_longer_for_it() -> None:
    world, shut = long_shut_for_a()
    world.turn("B1x", "completed", shut + 20)
    before = world.cells("A1x").tenant.breaker
    world.turn("A6x", "failed", shut + 21)
    after = world.cells("A1x").tenant.breaker
    assert (after.opened, after.cooldown) == (before.opened, before.cooldown)
    refusal = refused(world, "A6x", shut + 21)
    assert refusal is not None, "who failed lately is not the next"
    assert refusal.retry_after <= 44, "a window and a slot, not the cool-down"
    world.turn("A7x", "failed", shut + 22)
    assert refused(world, "A6x", shut + 65) is None, "also long after the answer that was seen"


def test_what_was_answered_before_a_tenant_was_shut_is_no_reason_to_try_again() -> None:
    world, _ = long_shut_for_a()
    world.turn("B1x", "completed", START + 88)
    assert world.cells("A1x").tenant.breaker.opened == START + 90
    assert refused(world, "A6x", START + 91) is not None


def test_the_answer_that_opens_the_model_for_all_opens_it_for_a_tenant_that_was_shut_alone() -> None:
    world = World(LOOSE)
    for session in ("A1x", "A2x", "A3x", "B1x"):
        world.turn(session, "failed", START)
    cells = world.cells("A1x")
    assert (cells.provider.breaker.opened, cells.tenant.breaker.opened) == (START, START)
    world.turn("C1x", "completed", START + 5)
    world.turn("A4x", "completed", START + 5)
    assert refused(world, "A1x", START + 5) is None


def test_who_fails_after_it_opened_is_one_of_those_who_failed() -> None:
    world = World(LOOSE)
    late = world.begin("B2x", START)
    for session in ("A1x", "A2x", "B1x"):
        world.turn(session, "failed", START)
    world.end(late, FAILED, START + 29)
    assert refused(world, "B2y", START + 30) is not None
    assert refused(world, "B3y", START + 30) is None


def test_what_is_not_the_providers_fault_never_opens_it() -> None:
    world = World(LOOSE)
    for n in range(9):
        world.turn(f"A{n}x", "failed", START, blame="turn")
        world.turn(f"B{n}x", "failed", START, blame="nobody")
    assert world.cells("B1x").provider.breaker.opened is None


def test_failures_while_the_provider_is_down_are_held_against_nobody() -> None:
    """These turns were admitted before the breaker opened, and fail while it is open."""
    world = World(LOOSE)
    late = [world.begin(f"A1{name}", START) for name in "ab"]
    _let_the_model_fail(world)
    for turn in late:
        world.end(turn, FAILED, START + 1)
    cells = [world.cells(turn.session) for turn in late]
    assert {(c.session.breaker.failures, c.user.breaker.failures) for c in cells} == {(0, 0)}


def test_the_failure_that_opens_the_provider_is_held_against_nobody_either() -> None:
    assert down().cells("B1x").session.breaker.failures == 0
    assert down().cells("A1x").session.breaker.failures == 1, "those before could not know yet"


def test_one_probe_at_a_time_over_everybody() -> None:
    world, now = down(), START + 30
    probe = world.begin("B2y", now)
    assert [session for session in SESSIONS if refused(world, session, now) is None] == []
    world.end(probe, FAILED, now + 1)
    assert refused(world, "A1y", now + 60) is not None, "twice as long as before"
    again = world.begin("A1y", now + 62)
    world.end(again, INTERRUPTED, now + 63)
    assert world.begin("A2y", now + 63), "a probe that came to nothing makes room for the next"


def test_the_provider_closes_by_itself_and_forgets() -> None:
    world, now = down(), START + 30
    world.turn("B2y", "completed", now)
    for session in ("A1x", "A2x", "B1x", "B2y"):
        assert refused(world, session, now) is None
    world.turn("A1x", "failed", now)
    world.turn("A2x", "failed", now)
    assert world.cells("A1x").provider.breaker.opened is None, "the failures from before count no more"


def test_what_comes_back_from_before_the_outage_changes_nothing() -> None:
    world = World(LOOSE)
    late = [world.begin(session, START) for session in ("A1y", "A2y", "B1y", "B2y")]
    _let_the_model_fail(world)
    shut = world.cells("A1x").provider.breaker
    world.end(late[0], TurnResult("completed"), START + 1)
    assert world.cells("A1x").provider.breaker == shut, "a late success closes nothing"
    world.turn("B2x", "completed", START + 30)
    healthy = world.cells("A1x").provider.breaker
    for turn in late[1:]:
        world.end(turn, FAILED, START + 31)
    assert world.cells("A1x").provider.breaker == healthy, "late failures open nothing"


def test_a_probe_of_the_provider_that_another_limit_refuses_is_not_lost() -> None:
    """The session refuses after the provider agreed: the next turn may still be the probe."""
    world = World({**LOOSE, "session": replace(LOOSE["session"], rate=Rate(1, 600))})
    for session in ("A1x", "A2x", "B1x"):
        world.turn(session, "failed", START)
    refusal = refused(world, "A1x", START + 44)
    assert refusal is not None
    assert refusal.scope == "session"
    assert refused(world, "B2y", START + 44) is None


def test_a_provider_that_an_operator_forced_closed_is_left_as_it_is() -> None:
    world = World(LOOSE)
    cells = world.cells("A1x")
    world.save(
        "A1x",
        cells._replace(provider=replace(cells.provider, breaker=cells.provider.breaker.force("closed"))),
    )
    forced = world.cells("A1x").provider.breaker
    for session in ("A1x", "A2x", "B1x", "B2x"):
        world.turn(session, "failed", START)
    assert world.cells("A1x").provider.breaker == forced
