"""One trace a turn: its tree, its ids, its end, and no word of anybody in it."""

from __future__ import annotations

import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from flask import Flask
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

from agentapp.agents import Agent, Team, tool
from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.provider import Reply, ToolCall
from agentapp.agents.tool import ToolInputError
from agentapp.agents.tracing import NoTraces, TurnTraces
from agentapp.app import deadlines_of
from agentapp.config import Settings
from agentapp.errors import ProviderBusy, TurnInterrupted, TurnStopped
from agentapp.events import AgentThinking, ToolExecuting, TurnResult, Usage
from agentapp.isolation import Scope
from agentapp.telemetry.otel import OtelTracer
from agentapp.turns.kit import TurnKit
from agentapp.turns.turn import Turn
from agentapp.web.parts import Parts
from tests.support.rounds import ROUNDS
from tests.support.scripted import SPENT, Scripted, calls, hands_over
from tests.support.server import free_port
from tests.support.traces import IDS, KeptSpans, attributes_of, error_of, everything_in, tree
from tests.support.turns import begin, someone
from tests.support.users import JSON, person, without_limits

CANARY = "the-private-words-of-uma"
TURNS = 100 * ROUNDS


@tool
def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


@tool(per_turn=1)
def refuses(words: str) -> str:
    """Never likes its input."""
    raise ToolInputError(f"not {words}")


@tool
def repeats(words: str) -> str:
    """What it was told."""
    return words


TEAM = Team(
    Agent("triage", f"You are first. {CANARY}", tools=(double, refuses, repeats)),
    (Agent("maths", "You calculate.", tools=(double,), description="sums"),),
)


@pytest.fixture
def spans() -> Iterator[KeptSpans]:
    kept = KeptSpans()
    yield kept
    kept.tracer.close()


@pytest.fixture
def parts(make_app: Callable[..., Flask], settings: Settings) -> Parts:
    found: Parts = make_app(TEAM, without_limits(settings)).extensions["agentapp"]
    return found


@pytest.fixture
def traced(parts: Parts, spans: KeptSpans) -> Callable[..., TurnKit]:
    """The app's own way of answering, with a scripted model and traces kept in memory."""

    def with_model(*answers: Any, with_content: bool = False) -> TurnKit:
        driver = ThreadedDriver(Scripted(*answers), parts.binder, deadlines_of(parts.settings))
        return replace(parts.turns.kit, driver=driver, traces=spans.traces(with_content=with_content))

    return with_model


def play(parts: Parts, scope: Scope, turn: Turn) -> TurnResult:
    with parts.binder.bound(scope):
        return turn.finish()


def test_a_turn_is_one_trace_with_a_span_for_each_agent_model_call_and_tool_call(
    parts: Parts, traced: Callable[..., TurnKit], spans: KeptSpans
) -> None:
    uma = someone(parts, "uma")
    reply = Reply("42", (), Usage(1000, 7, 1, cache_read_tokens=800, cache_write_tokens=50))
    kit = traced(calls(("double", {"number": 2}), ("repeats", {"words": "x"})), hands_over("maths"), reply)
    turn = begin(kit, uma, "hello")
    assert play(parts, uma, turn).status == "completed"
    model = kit.model
    triage = [f"chat {model}", "execute_tool double", "execute_tool repeats", f"chat {model}"]
    expected = (
        "invoke_workflow turn",
        [("invoke_agent triage", triage), ("invoke_agent maths", [f"chat {model}"])],
    )
    assert tree(spans.all()) == expected
    last = max(spans.all(), key=lambda span: span.start_time or 0)
    assert attributes_of(last) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "demo",
        "gen_ai.request.model": model,
        "gen_ai.request.max_tokens": 8192,
        "gen_ai.request.stream": True,
        "gen_ai.agent.name": "maths",
        "gen_ai.usage.input_tokens": 1000,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 800,
        "gen_ai.usage.cache_creation.input_tokens": 50,
        "gen_ai.response.finish_reasons": ("end_turn",),
        **ids_of(uma, turn),
    }
    of_tool = attributes_of(spans.named("execute_tool double"))
    assert of_tool["gen_ai.tool.call.id"] == "call-0"
    assert of_tool["gen_ai.tool.name"] == "double"
    of_turn = attributes_of(spans.named("invoke_workflow turn"))
    assert of_turn["agentapp.turn.status"] == "completed"
    assert of_turn.items() >= ids_of(uma, turn).items()
    assert {error_of(span) for span in spans.all()} == {None}


def ids_of(scope: Scope, turn: Turn) -> dict[str, str]:
    found = (scope.session_id, turn.id, scope.request_id, scope.tenant_id, scope.user_id)
    return dict(zip(IDS, found, strict=True))


def test_each_span_lies_within_its_parent_and_a_quick_tool_does_not_last_as_long_as_a_slow_one(
    parts: Parts, spans: KeptSpans
) -> None:
    thread_of_quick: Future[threading.Thread] = Future()
    went_on: list[int] = []

    @tool
    def quick() -> str:
        """Returns at once."""
        thread_of_quick.set_result(threading.current_thread())
        return "quick"

    @tool
    def slow() -> str:
        """Goes on when the other has ended."""
        thread_of_quick.result(5).join(5)
        went_on.append(time.time_ns())
        return "slow"

    team = Team(Agent("triage", "You are first.", tools=(quick, slow)))
    driver = ThreadedDriver(
        Scripted(calls(("quick", {}), ("slow", {})), "done"), parts.binder, deadlines_of(parts.settings)
    )
    kit = replace(parts.turns.kit, team=team, driver=driver, traces=spans.traces())
    uma = someone(parts, "uma")
    play(parts, uma, begin(kit, uma, "hello"))
    by_id = {span.context.span_id: span for span in spans.all()}
    for span in spans.all():
        if span.parent is not None:
            above = by_id[span.parent.span_id]
            assert above.start_time <= span.start_time <= span.end_time <= above.end_time  # type: ignore[operator]
    (went_on_at,) = went_on
    assert spans.named("execute_tool quick").end_time <= went_on_at  # type: ignore[operator]
    assert spans.named("execute_tool slow").end_time >= went_on_at  # type: ignore[operator]


def test_a_turn_that_the_model_fails_ends_its_spans_with_the_error(
    parts: Parts, traced: Callable[..., TurnKit], spans: KeptSpans
) -> None:
    uma = someone(parts, "uma")
    kit = traced(ProviderBusy("busy", usage=SPENT))
    assert play(parts, uma, begin(kit, uma, "hello")).status == "failed"
    assert error_of(spans.named("invoke_workflow turn")) == "provider-failed"
    assert error_of(spans.named("invoke_agent triage")) == "provider-failed"
    call = spans.named(f"chat {kit.model}")
    assert error_of(call) == "ProviderBusy"
    assert attributes_of(call)["gen_ai.usage.input_tokens"] == SPENT.input_tokens


def test_a_specialist_that_fails_does_not_make_the_turn_a_failed_one(
    parts: Parts, traced: Callable[..., TurnKit], spans: KeptSpans
) -> None:
    uma = someone(parts, "uma")
    kit = traced(hands_over("maths"), ProviderBusy("busy"), "then I answer")
    assert play(parts, uma, begin(kit, uma, "hello")).status == "completed"
    model = f"chat {kit.model}"
    assert tree(spans.all()) == (
        "invoke_workflow turn",
        [("invoke_agent triage", [model]), ("invoke_agent maths", [model]), ("invoke_agent triage", [model])],
    )
    assert [error_of(span) for span in spans.all() if span.name == model] == [None, "ProviderBusy", None]
    assert error_of(spans.named("invoke_workflow turn")) is None


@pytest.mark.parametrize(
    ("reason", "status", "error"),
    [(TurnStopped(), "stopped", None), (TurnInterrupted(), "interrupted", "turn-interrupted")],
)
@pytest.mark.parametrize("at", [AgentThinking, ToolExecuting])
def test_a_turn_that_is_halted_ends_every_span(
    parts: Parts,
    traced: Callable[..., TurnKit],
    spans: KeptSpans,
    at: type,
    reason: Any,
    status: str,
    error: str | None,
) -> None:
    uma = someone(parts, "uma")
    kit = traced(calls(("double", {"number": 1})), "never asked")
    turn = begin(kit, uma, "hello")
    with parts.binder.bound(uma):
        for event in turn:
            if event is not None and isinstance(event.event, at):
                turn.halt(reason)
    assert turn.result is not None
    assert turn.result.status == status
    assert {span.name for span in spans.all()} > {"invoke_workflow turn", "invoke_agent triage"}
    root = spans.named("invoke_workflow turn")
    assert attributes_of(root)["agentapp.turn.status"] == status
    assert error_of(root) == error
    assert all(span.end_time for span in spans.all())
    assert len(spans.all()) == (3 if at is AgentThinking else 4), "none is missing"


def test_an_unexpected_error_ends_the_trace_too(
    parts: Parts, traced: Callable[..., TurnKit], spans: KeptSpans
) -> None:
    class Broken(ThreadedDriver):
        def run(self, *args: Any) -> Iterator[Any]:  # type: ignore[override]
            yield from ()
            raise ZeroDivisionError(CANARY)

    uma = someone(parts, "uma")
    kit = replace(traced(), driver=Broken(Scripted(), parts.binder))
    assert play(parts, uma, begin(kit, uma, "hello")).status == "failed"
    assert error_of(spans.named("invoke_workflow turn")) == "turn-failed"
    assert CANARY not in everything_in(spans.all())


def say_everything(parts: Parts, kit: TurnKit) -> None:
    uma = someone(parts, "uma")
    assert play(parts, uma, begin(kit, uma, f"hello {CANARY}")).status == "completed"
    assert play(parts, uma, begin(kit, uma, "again")).status == "completed"


SAYING = (
    Reply(
        f"I say {CANARY}",
        (
            ToolCall("call-1", "repeats", {"words": CANARY}),
            ToolCall("call-2", "refuses", {"words": CANARY}),
            ToolCall("call-3", "refuses", {"words": CANARY}),
            ToolCall("call-4", CANARY, {}),
            ToolCall("call-5", "double", {"number": CANARY}),
        ),
        SPENT,
    ),
    hands_over("maths", CANARY, what=CANARY),
    f"so {CANARY}",
    "again",
)


def test_no_span_has_a_word_of_a_person_a_model_or_a_tool(
    parts: Parts, traced: Callable[..., TurnKit], spans: KeptSpans
) -> None:
    say_everything(parts, traced(*SAYING))
    assert CANARY not in everything_in(spans.all())
    tools = [(s.name, error_of(s)) for s in spans.all() if s.name.startswith("execute_tool")]
    assert tools == [
        ("execute_tool repeats", None),
        ("execute_tool refuses", "tool-failed"),
        ("execute_tool refuses", "tool-limited"),
        ("execute_tool unknown", "tool-failed"),
        ("execute_tool double", "tool-failed"),
    ]


def test_with_content_the_words_are_on_model_calls_and_tool_calls(
    parts: Parts, traced: Callable[..., TurnKit], spans: KeptSpans
) -> None:
    say_everything(parts, traced(*SAYING, with_content=True))
    with_words = {name for span in spans.all() for name, v in attributes_of(span).items() if CANARY in str(v)}
    assert with_words == {
        "gen_ai.input.messages",
        "gen_ai.output.messages",
        "gen_ai.system_instructions",
        "gen_ai.tool.call.arguments",
        "gen_ai.tool.call.result",
    }


def test_what_cannot_be_written_as_utf8_is_sent_all_the_same(
    parts: Parts, traced: Callable[..., TurnKit], spans: KeptSpans, caplog: pytest.LogCaptureFixture
) -> None:
    uma, half = someone(parts, "uma"), "\ud800"
    odd = Reply(half, (ToolCall(half * 300, half, {"a": half}),), SPENT, stop_reason=half)
    kit = traced(odd, "done", with_content=True)
    assert play(parts, uma, begin(kit, uma, "hello")).status == "completed"
    assert len(spans.all()) == 5
    assert b"finish_reasons" in encode_spans(spans.all()).SerializeToString()
    assert caplog.text == ""


def test_interleaved_turns_have_no_span_of_another(
    parts: Parts, traced: Callable[..., TurnKit], spans: KeptSpans
) -> None:
    """Each turn is pulled by one thread after the other, and each thread pulls one turn after the other."""
    people = [someone(parts, f"user-{n}") for n in range(TURNS)]
    script = [calls(("double", {"number": 1})), hands_over("maths"), "done"]

    def begun(scope: Scope) -> Turn:
        found: Turn = begin(traced(*script), scope, "hello")
        return found

    turns = [begun(scope) for scope in people]
    waiting, lock = list(turns), threading.Lock()

    def pull_some() -> None:
        while True:
            with lock:
                if not waiting:
                    return
                turn = waiting.pop(random.randrange(len(waiting)))
            with parts.binder.bound(turn.scope):
                goes_on = next(turn, "end") != "end"
            if goes_on:
                with lock:
                    waiting.append(turn)

    with ThreadPoolExecutor(8) as threads:
        for done in [threads.submit(pull_some) for _ in range(8)]:
            done.result()
    by_trace = spans.by_trace()
    assert len(by_trace) == TURNS
    expected = {tuple(ids_of(turn.scope, turn).values()) for turn in turns}
    for found in by_trace.values():
        assert len(found) == 7
        assert len([span for span in found if span.parent is None]) == 1
        (ids,) = {tuple(attributes_of(span)[name] for name in IDS) for span in found}
        expected.remove(ids)
    assert not expected


def test_a_message_over_http_is_one_trace_and_the_same_message_again_is_none(
    make_app: Callable[..., Flask], settings: Settings, spans: KeptSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_for = []

    def find(endpoint: str) -> OtelTracer:
        asked_for.append(endpoint)
        return spans.tracer

    monkeypatch.setattr("agentapp.app.find_tracer", find)
    app = make_app(wanted=replace(settings, otlp_endpoint="http://collector:4318"))
    ann = person(app, "ann")
    chat = ann.new_chat()
    for _ in range(2):
        answer = ann.post(f"/chat/{chat}/messages", JSON, message="hello", idempotency_key="once")
        assert answer.status_code == 200
    assert asked_for == ["http://collector:4318"]
    assert len(spans.by_trace()) == 1
    (root,) = [span for span in spans.all() if span.parent is None]
    assert attributes_of(root)["agentapp.turn.id"] == answer.get_json()["turn_id"]
    assert attributes_of(root)["gen_ai.conversation.id"] == chat


class Broken:
    """A tracer, and its spans, of which nothing works."""

    def __init__(self, good_for: int) -> None:
        self._good_for = good_for

    def __getattr__(self, name: str) -> Any:
        def fail(*args: Any, **options: Any) -> Any:
            self._good_for -= 1
            if self._good_for < 0:
                raise RuntimeError(CANARY)
            return self

        return fail


@pytest.mark.parametrize("good_for", range(0, 12, 2))
def test_a_trace_that_cannot_be_kept_does_not_harm_the_turn(
    parts: Parts,
    traced: Callable[..., TurnKit],
    caplog: pytest.LogCaptureFixture,
    good_for: int,
) -> None:
    uma = someone(parts, "uma")
    kit = traced(calls(("double", {"number": 1})), hands_over("maths"), "done")
    kit = replace(kit, traces=TurnTraces(Broken(good_for), "demo"))  # type: ignore[arg-type]
    assert play(parts, uma, begin(kit, uma, "hello")).reply == "done"
    assert "a trace is not whole: RuntimeError" in caplog.text
    assert CANARY not in caplog.text


def test_a_dropped_turn_sends_no_half_trace_and_whoever_goes_on_with_it_ends_it(
    parts: Parts, traced: Callable[..., TurnKit], spans: KeptSpans
) -> None:
    uma = someone(parts, "uma")
    turn = begin(traced("one two three"), uma, "hello")
    with parts.binder.bound(uma):
        for _ in range(4):
            next(turn)
    assert [span.name for span in spans.all()] == []
    other = threading.Thread(target=play, args=(parts, uma, turn))
    other.start()
    other.join()
    assert len(spans.all()) == 3


def test_with_no_endpoint_nothing_is_watched(parts: Parts) -> None:
    traces = parts.turns.kit.traces
    assert isinstance(traces, NoTraces)
    loop: Any = object()
    assert traces.begin(someone(parts, "uma"), "t", time.monotonic()).watched(loop) is loop


def test_before_the_worker_has_started_nothing_is_opened_or_kept(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    before = set(threading.enumerate())
    app = make_app(wanted=replace(settings, otlp_endpoint="http://127.0.0.1:9"))
    ann = person(app, "ann")
    assert ann.post(f"/chat/{ann.new_chat()}/messages", JSON, message="hello").status_code == 200
    assert not [thread for thread in set(threading.enumerate()) - before if "Otel" in thread.name]


def test_a_collector_that_is_away_delays_no_turn_and_the_end_of_the_worker_only_so_long(
    parts: Parts,
    traced: Callable[..., TurnKit],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("agentapp.telemetry.otel.CLOSE_SECONDS", 0.2)
    tracer = OtelTracer(f"http://127.0.0.1:{free_port()}")
    tracer.start()
    uma = someone(parts, "uma")
    kit = replace(traced("hello"), traces=TurnTraces(tracer, "demo"))
    assert play(parts, uma, begin(kit, uma, "hello")).status == "completed"
    began = time.monotonic()
    tracer.close()
    assert time.monotonic() - began < 2
    assert "the last traces could not be sent within 0.2 s" in caplog.text


def test_a_bad_variable_of_opentelemetrys_own_stops_no_worker(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")  # less than one batch
    traces = TurnTraces(OtelTracer("http://127.0.0.1:9"), "demo")
    traces.start()
    assert "no traces are sent: " in caplog.text
    loop: Any = object()
    assert traces.begin(someone(parts, "uma"), "t", time.monotonic()).watched(loop) is loop
    traces.close()


def test_without_the_extra_the_server_says_so_and_serves(
    make_app: Callable[..., Flask],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("opentelemetry.sdk", "opentelemetry.exporter"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "agentapp.telemetry.otel")
    with caplog.at_level(logging.WARNING):
        app = make_app(wanted=replace(settings, otlp_endpoint="http://collector:4318"))
    assert "install agentapp with its extra otel" in caplog.text
    ann = person(app, "ann")
    assert ann.post(f"/chat/{ann.new_chat()}/messages", JSON, message="hello").status_code == 200
