"""Measures the cost of the run-time leak detector: requests per second of a small Flask app.

    python bench/leaks.py

The app has 50 modules, each with functions, classes, tables and a shared object. A request calls ten of its
functions and appends to one list. The modes take turns, so that a busy machine disturbs all of them alike.
The result is the ratio of the medians.
"""

from __future__ import annotations

import importlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from werkzeug.test import create_environ

from agentapp.audit.runtime import LeakMiddleware, Watch

MODULES, ROUNDS = 50, 7
PART = """
import functools, logging, re, threading

log = logging.getLogger(__name__)
NAMES = [f"name-{n}" for n in range(50)]
PRICES = {f"item-{n}": {"price": n, "tags": ["a", "b"]} for n in range(50)}
SEEN = set(range(50))
PATTERN = re.compile("x+")
HISTORY = []

class Base:
    kinds = ["a", "b"]
    def name(self): return "base"
    def price(self, of=("x",)): return 1

class Item(Base):
    def __init__(self): self.tags, self.lock = [], threading.Lock()
    def price(self): return 2
    @property
    def size(self): return 3
    @classmethod
    def make(cls): return cls()

items = [Item() for _ in range(10)]

@functools.lru_cache
def known(n): return n

def counter():
    count = 0
    def step():
        nonlocal count
        return count
    return step

step = counter()
def look(n): return PRICES[f"item-{n % 50}"]["price"]
def add(one, other=1, *, third=2): return one + other + third
def upper(text): return text.upper()
"""
APP = """
from flask import Flask, request
from leaksbench import {parts}

app = Flask(__name__)
PARTS = ({parts},)

@app.get("/")
def home():
    for n, part in enumerate(PARTS[:10]):
        part.look(n)
    part00.HISTORY.append("x")
    return "ok"
"""


def import_app(directory: Path) -> Any:
    package = directory / "leaksbench"
    package.mkdir()
    names = [f"part{n:02}" for n in range(MODULES)]
    for name in names:
        (package / f"{name}.py").write_text(PART)
    (package / "__init__.py").write_text("")
    (package / "site.py").write_text(APP.format(parts=", ".join(names)))
    sys.path.insert(0, str(directory))
    return importlib.import_module("leaksbench.site")


def measure(app: Callable[..., Any], requests: int) -> float:
    began = time.perf_counter()
    for _ in range(requests):
        body = app(create_environ("/"), lambda *args: None)
        b"".join(body)
        body.close()
    return (time.perf_counter() - began) / requests


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        site = import_app(Path(directory))
    app, packages, ignore = site.app.wsgi_app, ("leaksbench",), lambda change: None
    snapshot = Watch(packages).snapshot()
    print(
        f"{MODULES} modules, {snapshot.objects} objects looked at, {len(snapshot.nodes)} kept in a snapshot"
    )
    modes: dict[str, tuple[Callable[..., Any], int]] = {
        "without": (app, 50),
        "changes": (LeakMiddleware(app, packages, ignore), 4),
        "canary": (LeakMiddleware(app, packages, ignore, mode="canary"), 4),
        "changes, traced": (LeakMiddleware(app, packages, ignore, trace=True), 1),
    }
    times: dict[str, list[float]] = {name: [] for name in modes}
    for _ in range(ROUNDS):
        site.part00.HISTORY.clear()
        for name, (mode, requests) in modes.items():
            times[name].append(measure(mode, requests))
    bare = statistics.median(times["without"])
    print(f"{'':20}{'requests/s':>12}{'ms a request':>14}{'ratio':>8}")
    for name, measured in times.items():
        middle = statistics.median(measured)
        print(f"{name:20}{1 / middle:>12.0f}{middle * 1e3:>14.2f}{middle / bare:>7.0f}x")


if __name__ == "__main__":
    main()
