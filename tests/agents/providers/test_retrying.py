"""Asking again: the policy on its own, the wrappers over scripted tries, and both over the real SDK."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from agentapp.agents.provider import ModelCall, Reply
from agentapp.agents.providers.anthropic import AnthropicProvider, AsyncAnthropicProvider
from agentapp.agents.providers.retrying import AsyncRetrying, Retrying, retry_delay
from agentapp.errors import ProviderBusy, ProviderError, ProviderGarbled, ProviderRejected, ProviderTimeout
from agentapp.events import Usage
from tests.agents.providers.anthropic.asking import KEY, InLoop, Threaded, call, reply_of, without_usage
from tests.support.messages_api import MessagesApi, Script

Try = list[Any]


class Tries:
    """A provider that goes through scripted tries: items, and an error to raise at the end."""

    def __init__(self, *tries: Try) -> None:
        self.left = list(tries)
        self.given: list[Any] = []  # kept, so that nothing is closed just because nobody refers to it

    def stream(self, call: ModelCall) -> Any:
        self.given.append(self.items(self.left.pop(0)))
        return self.given[-1]

    def items(self, script: Try) -> Iterator[str | Reply]:
        for item in script:
            if isinstance(item, Exception):
                raise item
            yield item

    def is_open(self) -> bool:
        return any(items.gi_frame for items in self.given)

    def close(self) -> None:
        pass


class AsyncTries(Tries):
    async def items(self, script: Try) -> AsyncIterator[str | Reply]:  # type: ignore[override]
        for item in super().items(script):
            yield item

    def is_open(self) -> bool:
        return any(items.ag_frame for items in self.given)

    async def close(self) -> None:  # type: ignore[override]
        pass


class Waits(list[float]):
    """A sleep that only notes how long it was asked for."""

    def sleep(self, seconds: float) -> None:
        self.append(seconds)

    async def async_sleep(self, seconds: float) -> None:
        self.append(seconds)


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def ask(kind: str, waits: Waits) -> Iterator[Any]:
    """ask(call, try, try, ...) -> items; every random draw is the largest."""
    drivers: list[Any] = []

    def run(asked: ModelCall, *tries: Try) -> list[str | Reply]:
        drivers.append(driver_over(kind, AsyncTries(*tries) if kind == "async" else Tries(*tries), waits))
        return drivers[-1](asked)

    yield run
    for driver in drivers:
        driver.close()


def driver_over(kind: str, provider: Any, waits: Waits) -> Any:
    if kind == "async":
        driver: Any = InLoop(AsyncRetrying(provider, sleep=waits.async_sleep, rng=lambda: 1.0))
    else:
        driver = Threaded(Retrying(provider, sleep=waits.sleep, rng=lambda: 1.0))
    driver.provider.close = provider.close
    return driver


def busy(calls: int = 1, retry_after: float | None = None) -> ProviderBusy:
    return ProviderBusy("busy", usage=Usage(10, 1, calls), retry_after=retry_after)


GOOD: Try = ["", "Hello", Reply("Hello", usage=Usage(10, 5, 1))]


@pytest.mark.parametrize(
    ("attempt", "rng", "delay"), [(0, 1.0, 0.5), (0, 0.5, 0.25), (0, 0.0, 0.0), (1, 1.0, 1.0), (1, 0.1, 0.1)]
)
def test_the_wait_is_any_part_of_a_limit_that_doubles(attempt: int, rng: float, delay: float) -> None:
    assert retry_delay(attempt, busy(), rng, 0.0, 30.0) == pytest.approx(delay)


def test_the_limit_stops_doubling_at_eight_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentapp.agents.providers.retrying.MAX_RETRIES", 100)
    assert [retry_delay(n, busy(), 1.0, 0.0, 30.0) for n in (3, 4, 5, 50)] == [4.0, 8.0, 8.0, 8.0]


def test_there_is_no_third_retry() -> None:
    assert retry_delay(2, busy(), 0.0, 0.0, 30.0) is None


@pytest.mark.parametrize(
    ("error", "again"),
    [(ProviderBusy, True), (ProviderGarbled, True), (ProviderTimeout, False), (ProviderRejected, False)],
)
def test_only_what_may_pass_is_tried_again(error: type[ProviderError], again: bool) -> None:
    assert (retry_delay(0, error("no"), 0.5, 0.0, 30.0) is not None) == again


def test_the_provider_may_ask_for_a_longer_wait_but_not_for_a_shorter() -> None:
    assert retry_delay(0, busy(retry_after=7), 1.0, 0.0, 30.0) == 7
    assert retry_delay(0, busy(retry_after=0.1), 1.0, 0.0, 30.0) == 0.5


def test_waiting_never_goes_beyond_the_timeout() -> None:
    assert retry_delay(1, busy(retry_after=20), 0.0, 10.0, 30.0) == 20
    assert retry_delay(1, busy(retry_after=20), 0.0, 10.1, 30.0) is None
    assert retry_delay(0, busy(), 1.0, 0.0, 0.4) is None


def test_a_good_answer_is_passed_on_as_it_is(ask: Any, waits: Waits) -> None:
    assert ask(call(), GOOD) == GOOD
    assert waits == []


@pytest.mark.parametrize("error_type", [ProviderBusy, ProviderGarbled])
def test_an_answer_of_which_nothing_was_seen_is_asked_for_again(
    ask: Any, waits: Waits, error_type: type[ProviderError]
) -> None:
    error = error_type("no", usage=Usage(10, 1, 1))
    items = ask(call(), [error], ["", error], GOOD)
    assert without_usage(items) == ["", "", "Hello", Reply("Hello", usage=Usage(30, 7, 3))]
    assert waits == [0.5, 1.0]


def test_what_is_told_of_the_cost_so_far_includes_the_tries_before(kind: str, waits: Waits) -> None:
    tries: list[Try] = [[busy()], [Usage(10, 1, 1), busy()], [Usage(10, 1, 1), *GOOD]]
    driver = driver_over(kind, AsyncTries(*tries) if kind == "async" else Tries(*tries), waits)
    told = [item for item in driver.all(call()) if isinstance(item, Usage)]
    driver.close()
    assert told == [Usage(10, 1, 1), Usage(20, 2, 2), Usage(20, 2, 2), Usage(30, 3, 3)]


def test_the_last_error_carries_the_cost_of_all_tries(ask: Any, waits: Waits) -> None:
    with pytest.raises(ProviderBusy) as caught:
        ask(call(), [busy()], [busy(calls=0)], [busy()], GOOD)
    assert (caught.value.usage, caught.value.said_something) == (Usage(30, 3, 2), False)
    assert len(waits) == 2


def test_an_error_without_usage_costs_nothing(ask: Any) -> None:
    assert ask(call(), [ProviderBusy("busy")], GOOD)[-1] == GOOD[-1]


@pytest.mark.parametrize("seen", [["Hel"], ["", "H", ""], [Reply("Hello")]], ids=["piece", "later", "reply"])
@pytest.mark.parametrize("error", [ProviderBusy, ProviderGarbled])
def test_nothing_is_asked_again_once_something_was_seen(
    ask: Any, waits: Waits, seen: Try, error: type[ProviderError]
) -> None:
    with pytest.raises(error) as caught:
        ask(call(), [*seen, error("no")], GOOD)
    assert (waits, caught.value.said_something) == ([], True)


@pytest.mark.parametrize("error", [ProviderTimeout, ProviderRejected])
def test_a_hopeless_error_is_raised_at_once(ask: Any, waits: Waits, error: type[ProviderError]) -> None:
    with pytest.raises(error):
        ask(call(), [error("no")], GOOD)
    assert waits == []


def test_a_wait_that_is_too_long_is_not_begun(ask: Any, waits: Waits) -> None:
    with pytest.raises(ProviderBusy):
        ask(call(timeout=10.0), [busy(retry_after=6)], [busy(retry_after=6)], GOOD)
    assert waits == [6]


def test_an_abandoned_answer_is_closed_together_with_its_wrapper(kind: str, waits: Waits) -> None:
    provider = AsyncTries(GOOD) if kind == "async" else Tries(GOOD)
    driver = driver_over(kind, provider, waits)
    driver.abandon(call())
    assert len(provider.given) == 1
    assert not provider.is_open()
    driver.close()


def test_a_call_that_was_hung_up_on_is_not_tried_again() -> None:
    asked, provider = call(), Tries([busy()], GOOD)
    retrying = Retrying(provider, sleep=lambda seconds: asked.cancellation.cancel())
    with pytest.raises(ProviderBusy):
        list(retrying.stream(asked))
    assert provider.left == [GOOD]


def test_a_call_that_is_given_up_between_two_attempts_costs_all_that_were_made() -> None:
    asked, provider = call(), Tries([busy()], [busy()], GOOD)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            asked.cancellation.cancel()

    with pytest.raises(ProviderBusy) as caught:
        list(Retrying(provider, sleep=sleep).stream(asked))
    spent = busy().usage
    assert spent is not None
    assert (provider.left, caught.value.usage) == ([GOOD], spent + spent)


def test_the_wait_before_a_retry_ends_when_the_call_is_hung_up_on() -> None:
    asked, provider = call(), Tries([busy(retry_after=10)], GOOD)
    items = Retrying(provider).stream(asked)
    assert next(items) == busy().usage  # told before the wait begins
    threading.Timer(0.05, asked.cancellation.cancel).start()
    began = time.monotonic()
    with pytest.raises(ProviderBusy):
        next(items)
    assert time.monotonic() - began < 5
    assert provider.left == [GOOD]


@pytest.fixture
def api() -> Iterator[MessagesApi]:
    with MessagesApi() as running:
        yield running


@pytest.fixture
def live(kind: str, api: MessagesApi, waits: Waits) -> Iterator[Any]:
    """The same over the real SDK."""
    made = AsyncAnthropicProvider(KEY, api.url) if kind == "async" else AnthropicProvider(KEY, api.url)
    driver = driver_over(kind, made, waits)
    yield driver
    driver.close()


@pytest.mark.parametrize("status", [429, 500, 503, 529])
def test_a_busy_api_is_asked_three_times(live: Any, api: MessagesApi, status: int) -> None:
    api.respond_with(Script(status=status))
    with pytest.raises(ProviderBusy) as caught:
        live(call())
    assert (len(api.requests), caught.value.usage) == (3, Usage(model_calls=3))


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusing_api_is_asked_once(live: Any, api: MessagesApi, status: int) -> None:
    api.respond_with(Script(status=status))
    with pytest.raises(ProviderRejected):
        live(call())
    assert len(api.requests) == 1


def test_a_request_that_cannot_be_written_is_tried_once(live: Any, api: MessagesApi, waits: Waits) -> None:
    with pytest.raises(ProviderRejected) as caught:
        live(call("half a pair: \ud83c"))
    assert (waits, api.connections, caught.value.usage) == ([], 0, Usage())


def test_an_api_that_recovers_answers(live: Any, api: MessagesApi, waits: Waits) -> None:
    cut = Script(tools=(("add", {}),), fault="end-early", input_tokens=10)
    good = Script(("fine",), input_tokens=10, output_tokens=2)
    api.respond_with([Script(status=529, retry_after=3), cut, good])
    assert reply_of(live(call())) == Reply("fine", usage=Usage(20, 3, 3))
    assert waits == [3, 1.0]


def test_an_api_that_breaks_after_the_first_word_is_not_asked_again(live: Any, api: MessagesApi) -> None:
    api.respond_with(Script(("one ", "two"), fault="error-event:overloaded_error"))
    with pytest.raises(ProviderBusy) as caught:
        live(call())
    assert (len(api.requests), caught.value.said_something) == (1, True)


def test_a_hanging_api_is_asked_once(live: Any, api: MessagesApi) -> None:
    with pytest.raises(ProviderTimeout):
        live(call("[[hang:60]]", timeout=0.3))
    assert len(api.requests) == 1
