"""What the load is to do, and what it reports: how the bench and the process of the load talk."""

from __future__ import annotations

import json
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Person:
    """``paths`` are where this one's messages go, one after the other and from the beginning again."""

    cookie: str
    csrf: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Phase:
    """``burst``: everybody sends one message, all begun at once, or within ``spread`` seconds. With
    ``comes_back``, who is refused with 503 sends again when Retry-After says so.
    ``loop``: everybody sends the next message when the last one is answered, for so many seconds after the
    ``warm_up``.
    """

    kind: str
    message: str
    reply: str
    people: int
    accept: str = "application/json"
    seconds: float = 0.0
    warm_up: float = 0.0
    spread: float = 0.0
    comes_back: bool = False
    timeout: float = 90.0
    pause: float = 0.0  # before it


@dataclass(frozen=True)
class Plan:
    ports: list[int]  # of each host one; people share them out
    bench_pid: int  # of which all processes of the bench come, but not PostgreSQL's
    group: int  # the server's process group
    database_pid: int  # 0 if the database is a part of the server
    ready_path: str
    people: list[Person]
    phases: list[Phase]
    way: str = "form"  # how one speaks to the server: a name in `ways.WAYS`


@dataclass
class Sent:
    """One try. ``code`` is empty if all of the answer came. Times are on the machine's monotonic clock."""

    person: int
    began: float
    ended: float
    status: int
    code: str
    first: float | None  # seconds to the first byte

    @property
    def took(self) -> float:
        """In seconds, with the time to connect."""
        return self.ended - self.began


@dataclass
class Outcome:
    """What happened in a phase."""

    began: float = 0.0
    ended: float = 0.0
    cpu: float = 0.0  # seconds, of the server
    database_cpu: float = 0.0
    others_cpu: float = 0.0  # of what has nothing to do with the bench
    sent: list[Sent] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def whole(self) -> list[Sent]:
        return [each for each in self.sent if not each.code]


def read_plan(text: str) -> Plan:
    plan = json.loads(text)
    people = [Person(each["cookie"], each["csrf"], tuple(each["paths"])) for each in plan.pop("people")]
    return Plan(**plan | {"people": people, "phases": [Phase(**each) for each in plan["phases"]]})


@dataclass
class Report:
    up_at: float  # when the server first answered
    start_cpu: float  # seconds of CPU that it took until then
    outcomes: list[Outcome]


def read_report(text: str) -> Report:
    found = json.loads(text)
    outcomes = [
        Outcome(**each | {"sent": [Sent(**sent) for sent in each["sent"]]}) for each in found["outcomes"]
    ]
    return Report(found["up_at"], found["start_cpu"], outcomes)
