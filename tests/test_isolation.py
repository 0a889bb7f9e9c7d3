"""The isolation kernel: one contract, both binders."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentapp.errors import MissingId, NotBound
from agentapp.isolation import Binder, ContextBinder, RequestScope, Scope, ThreadBinder, UserScope


def scope(name: str) -> Scope:
    return Scope(
        request_id=f"request-{name}", tenant_id="tenant", user_id=f"user-{name}", session_id=f"s-{name}"
    )


A, B = scope("a"), scope("b")


@pytest.fixture(params=[ThreadBinder, ContextBinder])
def binder(request: pytest.FixtureRequest) -> Iterator[Binder]:
    found: list[RequestScope] = []
    made: Binder = request.param(found.append)
    made.found = found  # type: ignore[attr-defined]
    yield made
    assert made.sweep() is None, "the test left a scope bound"


def leaks_of(binder: Binder) -> list[RequestScope]:
    return binder.found  # type: ignore[attr-defined,no-any-return]


@pytest.mark.parametrize("field", ["request_id", "tenant_id", "user_id", "session_id"])
@pytest.mark.parametrize("nothing", ["", None, 0, b"x"])
def test_a_missing_id_is_an_error_never_a_default(field: str, nothing: object) -> None:
    ids = dataclasses.asdict(A) | {field: nothing}
    with pytest.raises(MissingId, match=field):
        Scope(**ids)
    del ids[field]
    with pytest.raises(TypeError):
        Scope(**ids)


def test_a_scope_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        A.user_id = "somebody else"  # type: ignore[misc]


def test_an_anonymous_request_has_no_user_to_ask_for() -> None:
    assert not hasattr(RequestScope(request_id="r"), "user_id")
    assert not hasattr(UserScope(request_id="r", tenant_id="t", user_id="u"), "session_id")


def test_not_bound_is_an_error_that_says_what_to_do(binder: Binder) -> None:
    with pytest.raises(NotBound, match=r"binder\.bound"):
        binder.current()


def test_bound_restores_what_it_found(binder: Binder) -> None:
    with binder.bound(A):
        with binder.bound(B):
            assert binder.current() is B
        assert binder.current() is A
    with pytest.raises(NotBound):
        binder.current()


def test_bound_restores_after_an_exception(binder: Binder) -> None:
    with pytest.raises(ZeroDivisionError), binder.bound(A):
        _ = 1 / 0
    with pytest.raises(NotBound):
        binder.current()


def test_another_thread_sees_nothing(binder: Binder) -> None:
    seen: list[object] = []

    def look() -> None:
        try:
            seen.append(binder.current())
        except NotBound:
            seen.append(None)

    with binder.bound(A):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == [None]


def test_a_stream_is_bound_around_each_pull_and_never_between_two(binder: Binder) -> None:
    def items() -> Iterator[str]:
        for _ in range(3):
            scope = binder.current()
            assert isinstance(scope, Scope)
            yield scope.user_id

    stream = binder.streamed(A, items())
    assert next(stream) == "user-a"
    with pytest.raises(NotBound):
        binder.current()
    with binder.bound(B):
        assert next(stream) == "user-a"
        assert binder.current() is B
    assert list(stream) == ["user-a"]


def test_two_streams_interleaved_on_one_thread_keep_their_own_scopes(binder: Binder) -> None:
    def items() -> Iterator[RequestScope]:
        while True:
            yield binder.current()

    a, b = binder.streamed(A, items()), binder.streamed(B, items())
    assert [next(a), next(b), next(b), next(a)] == [A, B, B, A]
    a.close()
    b.close()


def test_closing_a_stream_runs_its_cleanup_bound(binder: Binder) -> None:
    seen: list[RequestScope] = []

    def items() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            seen.append(binder.current())

    stream = binder.streamed(A, items())
    next(stream)
    stream.close()
    assert seen == [A]


def test_closing_a_stream_that_was_never_pulled_still_closes_what_is_inside(binder: Binder) -> None:
    class Items(Iterator[int]):
        closed_for: RequestScope | None = None

        def __next__(self) -> int:
            raise AssertionError("never pulled")

        def close(self) -> None:
            self.closed_for = binder.current()

    items = Items()
    binder.streamed(A, items).close()
    assert items.closed_for is A


def test_an_error_in_a_stream_reaches_the_reader_and_leaves_nothing_bound(binder: Binder) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    stream = binder.streamed(A, items())
    next(stream)
    with pytest.raises(ZeroDivisionError):
        next(stream)
    with pytest.raises(NotBound):
        binder.current()


def test_a_job_is_carried_into_another_thread_and_leaves_it_clean(binder: Binder) -> None:
    def look() -> RequestScope | None:
        try:
            return binder.current()
        except NotBound:
            return None

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(binder.carried(A, look)).result() is A
        assert pool.submit(look).result() is None
        assert pool.submit(binder.carried(B, look)).result() is B


def test_tasks_of_one_loop_each_see_their_own_scope_at_every_step(binder: Binder) -> None:
    scopes = [scope(str(n)) for n in range(100)]

    async def job() -> list[RequestScope]:
        seen = []
        for _ in range(5):
            seen.append(binder.current())
            await asyncio.sleep(0)
        return seen

    async def main() -> list[list[RequestScope]]:
        return await asyncio.gather(*(binder.carried(s, job)() for s in scopes))

    assert asyncio.run(main()) == [[s] * 5 for s in scopes]


def test_while_a_task_waits_its_scope_is_not_bound_for_others(binder: Binder) -> None:
    async def main() -> None:
        go = asyncio.Event()

        async def waits() -> RequestScope:
            await go.wait()
            return binder.current()

        task = asyncio.ensure_future(binder.carried(A, waits)())
        await asyncio.sleep(0)
        with pytest.raises(NotBound):
            binder.current()
        go.set()
        assert await task is A

    asyncio.run(main())


def test_a_carried_task_can_be_cancelled_and_sees_it_bound(binder: Binder) -> None:
    seen: list[RequestScope] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append(binder.current())
            raise

    async def main() -> None:
        task = asyncio.ensure_future(binder.carried(A, waits)())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert seen == [A]


def test_the_sweep_finds_scrubs_and_reports_what_was_left(binder: Binder) -> None:
    assert binder.sweep() is None
    binder.bound(A).__enter__()
    assert binder.sweep() is A
    assert leaks_of(binder) == [A]
    with pytest.raises(NotBound):
        binder.current()


def test_the_sweep_scrubs_even_if_reporting_fails() -> None:
    def fails(scope: RequestScope) -> None:
        raise OSError("the log is full")

    binder = ThreadBinder(fails)
    binder.bound(A).__enter__()
    with pytest.raises(OSError):
        binder.sweep()
    with pytest.raises(NotBound):
        binder.current()


def test_unbinding_what_is_not_ones_own_is_reported(binder: Binder) -> None:
    outer = binder.bound(A)
    outer.__enter__()
    binder.bound(B).__enter__()  # never left
    outer.__exit__(None, None, None)
    assert leaks_of(binder) == [B]
    with pytest.raises(NotBound):
        binder.current()


def test_cleanups_run_bound_at_the_end_of_every_binding(binder: Binder) -> None:
    seen: list[RequestScope] = []
    binder.at_release(lambda: seen.append(binder.current()))
    with binder.bound(A):
        assert seen == []
    assert list(binder.streamed(B, [1])) == [1]
    assert seen[0] is A
    assert set(seen[1:]) == {B}


def test_a_failing_cleanup_stops_no_other_and_still_unbinds(binder: Binder) -> None:
    ran: list[str] = []
    binder.at_release(lambda: ran.append("first"))
    binder.at_release(lambda: 1 / 0)
    binder.at_release(lambda: ran.append("last"))
    with pytest.raises(ZeroDivisionError), binder.bound(A):
        pass
    assert sorted(ran) == ["first", "last"]
    with pytest.raises(NotBound):
        binder.current()
