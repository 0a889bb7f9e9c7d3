"""The examples of docs/guardrails.md, run as they stand."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentapp.guardrails import Breaker
from tests.support.documentation import example

PAGE = "docs/guardrails.md"


def test_the_example_for_one_process_refuses_after_two_failures_and_only_that_user() -> None:
    calls: list[str] = []

    def call_the_model(question: str) -> str:
        calls.append(question)
        if question == "fail":
            raise ConnectionError
        return "an answer"

    names: dict[str, Any] = {"__name__": "example", "call_the_model": call_the_model}
    exec(compile(example(PAGE, "LocalBreakers(BreakerPolicy"), "local.py", "exec"), names)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            names["ask"]("ann", "fail")
    assert re.fullmatch(r"Please wait (5[4-9]|60) s\.", names["ask"]("ann", "hello"))
    assert names["ask"]("bob", "hello") == "an answer"
    assert calls == ["fail", "fail", "hello"]


def test_the_example_of_a_store_keeps_breakers_for_every_registry_over_it() -> None:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example(PAGE, "class DictStore"), "store.py", "exec"), names)
    assert [names["record_failure"]("ann", 1000.0 + n) for n in range(3)] == ["closed", "closed", "open"]
    registry = names["registry"]
    again = type(registry)(names["Breakers"](), registry._store)
    ann: Breaker = again.get("ann")
    assert (ann.state(1003.0), ann.failures, ann.trips) == ("open", 3, 1)
    assert again.get("bob").state(1003.0) == "closed"
