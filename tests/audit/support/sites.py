"""Flask apps under the run-time detector: written to files, imported, and visited."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from werkzeug.test import create_environ

from agentapp.audit.runtime import Change, LeakMiddleware

HEAD = """
import collections, contextvars, functools, logging, threading, time, types
from flask import Flask, Response, g, request, session, stream_with_context, render_template_string

app = Flask(__name__)
app.secret_key = "x"
"""
# Every app also has this route, which shows that the detector works.
TAIL = """

OPENLY = []

@app.get("/openly")
def openly():
    OPENLY.append(1)
    return "ok"
"""
SECRET = "alice@example.com"


class Imports:
    """Writes packages, imports them, and removes them from ``sys.modules`` again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.numbers = itertools.count()
        self.names: list[str] = []

    def __call__(self, source: str, **more: str) -> ModuleType:
        """Import a new package with this source, and with more modules."""
        name = f"leaky{next(self.numbers)}_{self.directory.parent.name.replace('-', '_')}"
        (self.directory / name).mkdir()
        for part, text in {"__init__": source, **more}.items():
            (self.directory / name / f"{part}.py").write_text(text)
        self.names.append(name)
        importlib.invalidate_caches()
        return importlib.import_module(name)

    def forget(self) -> None:
        for name in list(sys.modules):
            if name.partition(".")[0] in self.names:
                del sys.modules[name]


class Site:
    """An app under the detector, and the changes that are reported."""

    def __init__(self, module: ModuleType, **options: Any) -> None:
        self.module, self.name = module, module.__name__
        self.found: list[Change] = []
        self.app = module.app
        self.bare = self.app.wsgi_app
        self.middleware = LeakMiddleware(self.bare, (self.name,), self.found.append, **options)
        self.app.wsgi_app = self.middleware

    def get(self, path: str = "/", **options: Any) -> str:
        answer: str = self.app.test_client().get(path, buffered=True, **options).text
        return answer

    def places(self) -> list[tuple[str, str]]:
        """Place and kind of each change, without the name of the package."""
        return [(change.where.removeprefix(self.name + "."), change.kind) for change in self.found]

    def take(self) -> list[tuple[str, str]]:
        places = self.places()
        self.found.clear()
        return places


def body_of(app: Callable[..., Iterable[bytes]], path: str = "/", **options: Any) -> Any:
    """The response body as a server gets it: not read and not closed yet."""
    return app(create_environ(path, **options), lambda *args: None)


def in_threads(number: int, job: Callable[[int], object]) -> None:
    failures: list[BaseException] = []

    def run(n: int) -> None:
        try:
            job(n)
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(n,), name=f"visitor-{n}") for n in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures, failures[0]
