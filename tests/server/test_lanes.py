"""Who gets a thread next: nobody waits for what somebody else has sent too much of."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest

from agentapp.server.lanes import Job, Lane, Lanes, name_signed_in_with


class Recorder:
    """A lane whose jobs say who they are for, and end when told to."""

    def __init__(self, threads: int, each: int, *waiting: int, beginning: int | None = None) -> None:
        self.lane = Lane("test", threads, each, *(waiting or (1_000,)), beginning=beginning)
        self.begun: list[str] = []
        self.refused: list[str] = []
        self._changed = threading.Condition()
        self._is_over = False
        self._ends: dict[str, list[threading.Event]] = {}

    def add(
        self, key: str, count: int = 1, part: str = "", group: str | None = None, came: float = 0.0
    ) -> None:
        for _ in range(count):
            job = Job(partial(self._run, key + part), partial(self.refused.append, key + part), came)
            self.lane.add(key, job, part, group)

    def end_one(self, key: str, part: str = "") -> None:
        self._ends[key + part].pop().set()
        self.lane.done(key, part)

    def wait_for(self, count: int) -> list[str]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, 30)
            return list(self.begun)

    def end_all(self) -> None:
        """Those that begin later end at once."""
        with self._changed:
            self._is_over = True
            for ends in self._ends.values():
                for end in ends:
                    end.set()

    def _run(self, key: str) -> None:
        end = threading.Event()
        with self._changed:
            if self._is_over:
                end.set()
            self._ends.setdefault(key, []).append(end)
            self.begun.append(key)
            self._changed.notify_all()
        end.wait(30)


@contextmanager
def recorded(threads: int, each: int, *waiting: int, beginning: int | None = None) -> Iterator[Recorder]:
    recorder = Recorder(threads, each, *waiting, beginning=beginning)
    try:
        yield recorder
    finally:
        recorder.end_all()
        recorder.lane.shutdown(wait=True)


def test_of_one_user_only_so_many_are_at_work_and_others_find_a_thread() -> None:
    with recorded(threads=4, each=2) as lane:
        lane.add("anna", 100)
        lane.add("berta")
        assert sorted(lane.wait_for(3)) == ["anna", "anna", "berta"]
        assert lane.lane.in_flight("anna") == 100
        assert not lane.lane.is_full


def test_users_take_turns_when_threads_are_short() -> None:
    with recorded(threads=1, each=1) as lane:
        lane.add("anna", 3)
        lane.add("berta", 2)
        lane.add("carl")
        for count in range(1, 6):
            lane.end_one(lane.wait_for(count)[-1])
        assert lane.wait_for(6) == ["anna", "berta", "carl", "anna", "berta", "anna"]


def test_within_a_key_its_parts_take_turns_and_of_each_one_is_at_work() -> None:
    with recorded(threads=2, each=2) as lane:
        lane.add("here", 100, ".anna")
        assert lane.wait_for(1) == ["here.anna"]
        assert not lane.lane.is_full, "the second thread waits for somebody else"
        lane.add("here", 2, ".berta")
        lane.add("here", 1, ".carl")
        lane.wait_for(2)
        lane.end_one("here", ".berta")
        lane.wait_for(3)
        lane.end_one("here", ".berta")
        assert lane.wait_for(4) == ["here.anna", "here.berta", "here.berta", "here.carl"]
        lane.end_one("here", ".anna")
        assert lane.wait_for(5)[-1] == "here.anna"


def test_keys_take_turns_however_many_parts_one_has() -> None:
    with recorded(threads=1, each=1) as lane:
        for number in range(50):
            lane.add("here", 1, f".{number}")
        lane.add("there", 1, ".anna")
        assert lane.wait_for(1) == ["here.0"]
        lane.end_one("here", ".0")
        assert lane.wait_for(2)[-1] == "there.anna"


def test_when_too_many_wait_the_newest_of_who_has_most_is_refused_and_nobody_else() -> None:
    with recorded(1, 1, 10) as lane:
        lane.add("anna", 11)
        lane.add("berta", 3)
        assert lane.refused == ["anna"] * 3
        assert (lane.lane.waiting, lane.lane.in_flight("anna"), lane.lane.in_flight("berta")) == (10, 8, 3)
        lane.add("carl", 50)
        assert lane.lane.in_flight("berta") == 3, "who has little loses nothing"
        assert lane.lane.waiting == 10


def test_the_group_with_most_in_flight_is_refused_first_and_one_with_little_nothing() -> None:
    """However many users it has, and though each of them has only one request."""
    with recorded(4, 4, 10) as lane:
        for number in range(14):
            lane.add(f"large{number}", group="large")
        lane.add("small", group="small")
        assert lane.refused == ["large13"], "the last of them"
        lane.add("alone")
        lane.add("small", group="small")
        assert lane.refused == ["large13", "large12", "large11"]
        assert lane.lane.in_flight("small") == 2
        for count in range(1, 5):
            lane.end_one(lane.wait_for(count)[count - 1])
        assert lane.lane._of_group["large"] == 7


def test_who_has_waited_for_long_is_not_refused_any_more() -> None:
    with recorded(1, 1, 10) as lane:
        lane.add("at work")
        lane.add("anna", 3, came=1.0)
        lane.add("berta", 2, came=2.0)
        lane.lane.let_wait(0, came_after=1.5)
        assert lane.refused == ["berta"] * 2
        lane.lane.let_wait(0, came_after=0.5)
        assert lane.refused == ["berta"] * 2 + ["anna"] * 3


def test_only_so_many_begin_at_once_and_the_next_when_one_has_begun() -> None:
    with recorded(10, 10, beginning=2) as lane:
        for key in "abcde":
            lane.add(key)
        assert (lane.wait_for(2), lane.lane.waiting) == (["a", "b"], 3)
        assert lane.lane.is_full
        assert not lane.lane.has_no_thread
        lane.lane.begun()
        assert lane.wait_for(3)[-1] == "c"
        lane._ends["a"].pop().set()
        lane.lane.done("a", has_begun=True)
        assert lane.lane.waiting == 2, "it had made room when it began"
        lane.end_one("b")
        assert lane.wait_for(4)[-1] == "d"
        assert (lane.lane.waiting, lane.lane.at_work) == (1, 2)


def test_of_one_key_only_so_many_wait() -> None:
    with recorded(1, 1, 10, 4) as lane:
        lane.add("anna", 100)
        assert lane.lane.waiting == 4
        lane.add("berta", 2)
        assert lane.refused == ["anna"] * 95


def test_of_a_key_the_part_that_has_most_is_refused() -> None:
    with recorded(1, 1, 6) as lane:
        lane.add("here", 6, ".anna")
        lane.add("here", 2, ".berta")
        assert lane.refused == ["here.anna"]
        lane.add("here", 5, ".anna")
        assert set(lane.refused) == {"here.anna"}


def test_a_lane_that_refused_everybody_keeps_nothing_of_them() -> None:
    with recorded(1, 1, 0) as lane:
        for key in map(str, range(20)):
            lane.add(key)
        assert (lane.wait_for(1), len(lane.refused)) == (["0"], 19)
        lane.end_one("0")
        assert not lane.lane._queues
        assert not lane.lane._at_work
        assert not lane.lane._next
        assert not lane.lane._groups
        assert not lane.lane._of_group
        assert not lane.lane.waiting


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"csrf_token=x&username=Ann&password=y", "ann"),
        (b"username=+a%6en+", "ann"),
        (b'{"password": "y", "username" : "Ann"}', "ann"),
        (b"username=%D0%B0nn", "\N{CYRILLIC SMALL LETTER A}nn"),
        (b"xusername=ann", "?"),
        (b"username=", "?"),
        (b"\xff\0", "?"),
        (b"username=" + b"%41" * 1_000, "a" * 85 + "%"),
        (b"password=" + b"x" * 20_000 + b"&username=ann", "?"),
        (b"", "?"),
    ],
)
def test_sign_ins_take_turns_by_the_name_in_them(body: bytes, name: str) -> None:
    assert name_signed_in_with(body) == name


def test_sign_ins_have_threads_of_their_own_whatever_cookie_comes_with_them() -> None:
    lanes = Lanes(4)
    try:
        ask = SimpleNamespace(path="/login", method="POST")
        assert lanes.lane_for(ask, "anna") is lanes.lane_for(ask, None)
        assert lanes.lane_for(ask, None) is not lanes.lane_for(
            SimpleNamespace(path="/login", method="GET"), None
        )
    finally:
        lanes.shutdown(wait=True)


def test_a_lane_that_was_emptied_keeps_nothing() -> None:
    with recorded(threads=2, each=1) as lane:
        for key in map(str, range(20)):
            lane.add(key)
        for count in range(1, 21):
            lane.end_one(lane.wait_for(count)[count - 1])
        assert not lane.lane._queues
        assert not lane.lane._at_work
        assert not lane.lane._next
        assert not lane.lane._groups
        assert not lane.lane._of_group
        assert (lane.lane._free, lane.lane._beginning) == (2, 0)


@pytest.mark.parametrize(
    ("path", "user", "others"),
    [
        ("/livez", None, ["/login", "/chat", "/readyz"]),
        ("/login", None, ["/chat", "/livez"]),
        ("/chat", "anna", ["/login", "/chat/x/messages"]),
        ("/chat/x/turns/y/events", "anna", ["/chat", "/login", "/chat/x/messages"]),
        ("/chat/x/turns/y/retry", "anna", ["/chat", "/login", "/chat/x/turns/y/events"]),
        ("/chat/x/turns/y/event%73", "anna", ["/chat", "/login"]),
        ("/chat/x/turns/y/stop", "anna", ["/chat", "/login", "/chat/x/messages"]),
    ],
)
def test_each_kind_of_request_has_threads_of_its_own(path: str, user: str | None, others: list[str]) -> None:
    lanes = Lanes(4)
    try:
        mine = lanes.lane_for(SimpleNamespace(path=path, method="GET"), user)
        for other in others:
            assert (
                lanes.lane_for(
                    SimpleNamespace(path=other, method="GET"), "anna" if "/chat" in other else None
                )
                is not mine
            )
    finally:
        lanes.shutdown(wait=True)


def test_a_stranger_who_asks_for_a_stream_is_a_stranger() -> None:
    lanes = Lanes(4)
    try:
        ask = SimpleNamespace(path="/chat/x/messages", method="POST")
        assert lanes.lane_for(ask, None) is lanes.lane_for(None, None)
        assert lanes.lane_for(ask, None) is not lanes.lane_for(ask, "anna")
    finally:
        lanes.shutdown(wait=True)
