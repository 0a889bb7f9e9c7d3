"""When a request begins and ends, and several requests at once."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentapp.audit.runtime import Change, LeakMiddleware
from tests.audit.support.sites import HEAD, Imports, Site, body_of, in_threads

STREAM = """
HISTORY, CLOSED = [], []

@app.get("/")
def home():
    def items():
        try:
            for n in range(3):
                HISTORY.append(n)
                yield str(n)
        finally:
            CLOSED.append(1)
    return Response(items())

@app.get("/breaks")
def breaks():
    def items():
        HISTORY.append(1)
        yield "one"
        raise ZeroDivisionError
    return Response(items())
"""


def test_a_stream_is_compared_when_it_is_closed(site: Callable[..., Site]) -> None:
    leaky = site(STREAM)
    body = body_of(leaky.middleware)
    assert leaky.found == []
    assert next(body) == b"0"
    assert b"".join(body) == b"12"
    assert leaky.found == []
    body.close()
    assert sorted(leaky.take()) == [("CLOSED", "grew"), ("HISTORY", "grew")]
    body.close()
    assert leaky.take() == []


def test_closing_a_stream_early_closes_the_inner_stream(site: Callable[..., Site]) -> None:
    leaky = site(STREAM)
    body = body_of(leaky.middleware)
    next(body)
    body.close()
    assert leaky.module.CLOSED == [1]
    assert sorted(leaky.places()) == [("CLOSED", "grew"), ("HISTORY", "grew")]


def test_close_is_called_once_even_without_reading_and_if_it_raises() -> None:
    class Body:
        closed = 0

        def __iter__(self) -> Iterator[bytes]:
            return iter([b"x"])

        def close(self) -> None:
            self.closed += 1
            raise ZeroDivisionError

    inner = Body()
    body = body_of(LeakMiddleware(lambda environ, start: inner, ()))
    with pytest.raises(ZeroDivisionError):
        body.close()
    body.close()
    assert inner.closed == 1


def test_an_error_in_a_stream_reaches_the_server_and_the_change_is_reported(
    site: Callable[..., Site],
) -> None:
    leaky = site(STREAM)
    body = body_of(leaky.middleware, "/breaks")
    assert next(body) == b"one"
    with pytest.raises(ZeroDivisionError):
        next(body)
    body.close()
    assert leaky.places() == [("HISTORY", "grew")]


@pytest.mark.parametrize("mode", ["changes", "canary"])
def test_an_error_of_the_app_is_raised_and_its_change_is_reported(imported: Imports, mode: Any) -> None:
    module = imported("HISTORY = []\ndef app(environ, start):\n    HISTORY.append(str(environ))\n    1 / 0\n")
    found: list[Change] = []
    app = LeakMiddleware(module.app, (module.__name__,), found.append, mode=mode)
    with pytest.raises(ZeroDivisionError):
        body_of(app)
    kind = {"changes": ("HISTORY", "grew"), "canary": ("HISTORY[0]", "canary")}[mode]
    assert [(c.where, c.kind) for c in found] == [(f"{module.__name__}.{kind[0]}", kind[1])]


def test_the_response_of_the_app_is_unchanged(site: Callable[..., Site]) -> None:
    plain = site(STREAM + "\n@app.get('/made')\ndef made():\n    return 'yes', 201, {'X-Here': 'there'}\n")
    answer = plain.app.test_client().get("/made")
    assert (answer.text, answer.status_code, answer.headers["X-Here"]) == ("yes", 201, "there")
    assert plain.get("/") == "012"


def test_settle_ends_a_response_that_is_not_closed(site: Callable[..., Site]) -> None:
    leaky = site("")
    client = leaky.app.test_client()
    kept = client.get("/openly")
    assert kept.text == "ok"
    assert leaky.found == []
    leaky.middleware.settle()
    assert leaky.take() == [("OPENLY", "grew")]
    # The first request has ended, so it is not named for later changes.
    leaky.get("/openly")
    assert [len(change.requests) for change in leaky.found] == [1]
    kept.close()


def test_a_garbage_collected_response_ends_its_request(site: Callable[..., Site]) -> None:
    leaky = site(STREAM)
    body = body_of(leaky.middleware)
    assert next(body) == b"0"
    del body
    gc.collect()
    leaky.get("/openly")
    assert {
        (change.where.rpartition(".")[2], *[c.path for c in change.requests]) for change in leaky.found
    } == {
        ("HISTORY", "/"),
        ("CLOSED", "/"),
        ("OPENLY", "/openly"),
    }


def test_a_change_in_close_is_found_even_if_it_is_late(site: Callable[..., Site]) -> None:
    leaky = site(
        STREAM
        + """
@app.get("/late")
def late():
    response = Response("x")
    response.call_on_close(lambda: CLOSED.append(1))
    return response
"""
    )
    body = body_of(leaky.middleware, "/late")
    assert b"".join(body) == b"x"
    leaky.get("/openly")
    leaky.take()
    body.close()
    assert leaky.places() == [("CLOSED", "grew")]
    assert [caller.path for caller in leaky.found[0].requests] == ["/late"]


def test_a_report_that_raises_does_not_stop_the_request_or_further_reports(
    imported: Imports, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def report(change: Change) -> None:
        told.append(change.where.rpartition(".")[2])
        raise OSError("the log is full")

    module = imported(
        HEAD
        + """
ONE, TWO = [], []

@app.get("/both")
def both():
    ONE.append(1)
    TWO.append(2)
    return "ok"
"""
    )
    module.app.wsgi_app = LeakMiddleware(module.app.wsgi_app, (module.__name__,), report)
    answer = module.app.test_client().get("/both", buffered=True)
    assert (answer.status_code, answer.text) == (200, "ok")
    assert sorted(told) == ["ONE", "TWO"]
    assert caplog.text.count("a change could not be reported") == 2


def test_a_failing_detector_does_not_disturb_the_request(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched = site("")

    def fail(*args: object) -> object:
        raise MemoryError

    monkeypatch.setattr("agentapp.audit.runtime.watch.Watch.snapshot", fail)
    assert watched.get("/openly") == "ok"
    assert "the leak detector failed" in caplog.text


@pytest.mark.parametrize("mode", ["changes", "canary"])
def test_a_request_inside_a_request(site: Callable[..., Site], mode: Any) -> None:
    outer = site(
        "@app.get('/')\ndef home():\n    return app.test_client().get('/openly', buffered=True).text\n",
        mode=mode,
    )
    assert outer.get("/") == "ok"
    if mode == "changes":
        assert outer.places() == [("OPENLY", "grew")]
        assert {caller.path for caller in outer.found[0].requests} == {"/", "/openly"}


# -- several requests at once

MEETING = """
HISTORY = []
meeting = threading.Barrier(16)

@app.get("/<name>")
def home(name):
    meeting.wait(30)
    HISTORY.append(name)
    meeting.wait(30)
    return "ok"
"""


def test_sixteen_concurrent_requests_are_all_named_and_no_change_is_lost(site: Callable[..., Site]) -> None:
    leaky = site(MEETING, exclude=["*.meeting"])
    # The requests wait for each other inside the app. A lock held while the app works would block them.
    in_threads(16, lambda n: leaky.get(f"/visitor-{n}"))
    assert set(leaky.places()) == {("HISTORY", "grew")}
    named = {caller.path for change in leaky.found for caller in change.requests}
    assert named == {f"/visitor-{n}" for n in range(16)}
    assert all(caller.path == f"/{caller.thread}" for change in leaky.found for caller in change.requests)
    steps = [[int(n) for n in re.findall(r"\d+", f"{c.before} {c.after}")] for c in leaky.found]
    assert sum(after - before for before, after in steps) == 16
    # Afterwards, a single request is named alone.
    leaky.take()
    leaky.get("/openly")
    assert [len(change.requests) for change in leaky.found] == [1]


def test_only_requests_in_progress_are_named(site: Callable[..., Site]) -> None:
    leaky = site(STREAM)
    long = body_of(leaky.middleware, "/")  # it has changed nothing yet
    leaky.get("/openly")
    assert [
        (w, {c.path for c in change.requests})
        for (w, _), change in zip(leaky.places(), leaky.found, strict=True)
    ] == [("OPENLY", {"/", "/openly"})]
    leaky.take()
    next(long)
    long.close()
    assert {
        (w, *[c.path for c in change.requests])
        for (w, _), change in zip(leaky.places(), leaky.found, strict=True)
    } == {
        ("HISTORY", "/"),
        ("CLOSED", "/"),
    }


def test_a_request_is_not_named_for_a_change_before_it_began(site: Callable[..., Site]) -> None:
    leaky = site(STREAM)
    long = body_of(leaky.middleware, "/")
    next(long)
    leaky.get("/nowhere")
    assert [[caller.path for caller in change.requests] for change in leaky.found] == [["/"]]
    assert leaky.take() == [("HISTORY", "grew")]
    long.close()


def test_objects_may_change_in_other_threads_while_they_are_read(site: Callable[..., Site]) -> None:
    busy = site("""
CACHE, NAMES, SEEN = {}, [], set()

@app.get("/")
def home():
    for n in range(300):
        CACHE[n] = NAMES[:] = [n] * (n % 7)
        SEEN.add(n)
        CACHE.pop(n - 5, None)
        SEEN.discard(n - 3)
    CACHE.clear(), NAMES.clear(), SEEN.clear()
    return "ok"
""")
    in_threads(16, lambda n: [busy.get("/") for _ in range(4)])
    busy.take()
    busy.get("/")
    assert busy.places() == []
    busy.get("/openly")
    assert busy.places() == [("OPENLY", "grew")]
