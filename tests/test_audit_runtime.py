"""The run-time leak detector, on real Flask apps that are written to files and imported."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import itertools
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from werkzeug.local import LocalProxy
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.test import create_environ

from agentapp.audit.runtime import HEADER, Change, LeakMiddleware, Watch, canary

ROOT = Path(__file__).parent.parent
HEAD = """
import collections, contextvars, functools, logging, threading, time, types
from flask import Flask, Response, g, request, session, stream_with_context, render_template_string

app = Flask(__name__)
app.secret_key = "x"
"""
# Every app has this route too: it shows that the detector is awake.
TAIL = """

OPENLY = []

@app.get("/openly")
def openly():
    OPENLY.append(1)
    return "ok"
"""
SECRET = "alice@example.com"


class Imports:
    """Writes packages of one's own, imports them, and takes them out again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.numbers = itertools.count()
        self.names: list[str] = []

    def __call__(self, source: str, **more: str) -> ModuleType:
        """A package with this source, and more modules in it."""
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


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Imports]:
    directory = tmp_path / "src"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    imports = Imports(directory)
    yield imports
    imports.forget()


class Site:
    """An app under the detector, and what that reports."""

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
        """Where and how, without the name of the package."""
        return [(change.where.removeprefix(self.name + "."), change.kind) for change in self.found]

    def take(self) -> list[tuple[str, str]]:
        places = self.places()
        self.found.clear()
        return places


@pytest.fixture
def site(imported: Imports) -> Callable[..., Site]:
    def make(source: str, more: dict[str, str] | None = None, **options: Any) -> Site:
        return Site(imported(HEAD + source + TAIL, **(more or {})), **options)

    return make


def body_of(app: Callable[..., Iterable[bytes]], path: str = "/", **options: Any) -> Any:
    """What a server gets: an iterable that is still to be read and closed."""
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


# --- What is found -------------------------------------------------------------------------------------

BINDS = """
@app.get("/")
def home():
    global current
    current = request.args["name"]
    return "ok"
"""
LEAKS = {
    "a history": (
        """
HISTORY = []

@app.get("/")
def home():
    HISTORY.append(request.args["name"])
    return "ok"
""",
        [("HISTORY", "grew")],
    ),
    "the last visitor, in a dict, under the same key": (
        """
LAST = {"user": None}

@app.get("/")
def home():
    LAST["user"] = request.args["name"]
    return "ok"
""",
        [("LAST", "changed")],
    ),
    "a global": ("current = None\n" + BINDS, [("current", "rebound")]),
    "a global that was not there": (BINDS, [("current", "new")]),
    "a global that is taken away": (
        """
current = "x"

@app.get("/")
def home():
    global current
    del current
    return "ok"
""",
        [("current", "gone")],
    ),
    "a set, a deque, a bytearray, a Counter, a nested list": (
        """
SEEN, LAST, RAW = set(), collections.deque([1], maxlen=1), bytearray(b"x")
COUNTS, TABLE = collections.Counter(), {"a": [[]]}

@app.get("/")
def home():
    SEEN.add(request.args["name"])
    LAST.append(request.args["name"])
    RAW[0] = 65
    COUNTS[request.args["name"]] += 1
    TABLE["a"][0].append(1)
    return "ok"
""",
        [
            ("SEEN", "grew"),
            ("LAST", "changed"),
            ("RAW", "changed"),
            ("COUNTS", "grew"),
            ("TABLE[...][0]", "grew"),
        ],
    ),
    "something is taken out": (
        """
QUEUE = ["a", "b"]

@app.get("/")
def home():
    QUEUE.pop()
    return "ok"
""",
        [("QUEUE", "shrank")],
    ),
    "a class attribute, also of a base class": (
        """
class Base:
    items = []

class Cart(Base):
    owner = None

@app.get("/")
def home():
    Cart().items.append(request.args["name"])
    Cart.owner = request.args["name"]
    return "ok"
""",
        [("Base.items", "grew"), ("Cart.owner", "rebound")],
    ),
    "default arguments": (
        """
def remember(name, seen=[], *, by_name={}):
    seen.append(name)
    by_name[name] = 1

class Cart:
    def __init__(self, items=[]):
        self.items = items

@app.get("/")
def home():
    remember(request.args["name"])
    Cart().items.append(1)
    return "ok"
""",
        [
            ("remember(seen=...)", "grew"),
            ("remember(by_name=...)", "grew"),
            ("Cart.__init__(items=...)", "grew"),
        ],
    ),
    "closures": (
        """
def counter():
    count, names = 0, []
    def step(name):
        nonlocal count
        count += 1
        names.append(name)
    return step

step = counter()

@app.get("/")
def home():
    step(request.args["name"])
    return "ok"
""",
        [("counter.<locals>.step:count", "rebound"), ("counter.<locals>.step:names", "grew")],
    ),
    "a view inside a decorator of the app's own": (
        """
def remembered(view):
    names = []
    @functools.wraps(view)
    def wrapper():
        names.append(request.args["name"])
        return view()
    return wrapper

@app.get("/")
@remembered
def home():
    return "ok"
""",
        [("home:names", "grew")],
    ),
    "a shared object": (
        """
class Agent:
    def __init__(self):
        self.user, self.memory = None, []

class Slotted:
    __slots__ = ("user",)

agent, slotted, space = Agent(), Slotted(), types.SimpleNamespace(user=None)

@app.get("/")
def home():
    agent.user = slotted.user = space.user = request.args["name"]
    agent.memory.append(1)
    return "ok"
""",
        [
            ("agent.user", "rebound"),
            ("slotted.user", "new"),
            ("space.user", "rebound"),
            ("agent.memory", "grew"),
        ],
    ),
    "the class of a shared object, and its base, which no module has": (
        """
def make():
    class Base:
        seen = []

    class Agent(Base):
        names = []

    return Agent()

agent = make()

@app.get("/")
def home():
    agent.names.append(request.args["name"])
    agent.seen.append(request.args["name"])
    return "ok"
""",
        [("make.<locals>.Agent.names", "grew"), ("make.<locals>.Base.seen", "grew")],
    ),
    "a variable of an enclosing function that was not bound yet": (
        """
def make():
    def keep(name):
        nonlocal last
        last = name
    if False:
        last = None
    return keep

keep = make()

@app.get("/")
def home():
    keep(request.args["name"])
    return "ok"
""",
        [("make.<locals>.keep:last", "new")],
    ),
    "an object inside others": (
        """
class Agent:
    def __init__(self):
        self.memory = []

class Team:
    def __init__(self):
        self.agents = {"front": Agent()}

TEAMS = (Team(),)

@app.get("/")
def home():
    TEAMS[0].agents["front"].memory.append(request.args["name"])
    return "ok"
""",
        [("TEAMS[0].agents[...].memory", "grew")],
    ),
    "a cached function": (
        """
@functools.lru_cache
def price(name):
    return 1

@functools.cache
def settings():
    return {}

settings()

@app.get("/")
def home():
    price(request.args["name"])
    settings()["user"] = request.args["name"]
    return "ok"
""",
        [("price", "grew"), ("settings()", "grew")],
    ),
    "the app's configuration, and an attribute of the app": (
        """
@app.get("/")
def home():
    app.config["USER"] = request.args["name"]
    app.user = request.args["name"]
    return "ok"
""",
        [("app.config", "grew"), ("app.user", "new")],
    ),
    "an attribute of a function": (
        """
@app.get("/")
def home():
    home.last = request.args["name"]
    return "ok"
""",
        [("home.last", "new")],
    ),
    "the default of a context variable": (
        """
spans = contextvars.ContextVar("spans", default=[])

@app.get("/")
def home():
    spans.get().append(request.args["name"])
    return "ok"
""",
        [("spans(default)", "grew")],
    ),
    "a table that grows when it is only asked": (
        """
SEEN = collections.defaultdict(list)

@app.get("/")
def home():
    return str(len(SEEN[request.args["name"]]))
""",
        [("SEEN", "grew")],
    ),
    "a mapping of a library": (
        """
STORE, CHAIN = collections.UserDict(), collections.ChainMap({})

@app.get("/")
def home():
    STORE["user"] = CHAIN["user"] = request.args["name"]
    return "ok"
""",
        [("STORE.data", "grew"), ("CHAIN.maps[0]", "grew")],
    ),
    "a partial, a property, a bound method, a class of one's own for lists": (
        """
def remember(seen, name):
    seen.append(name)

class Names(list):
    pass

class Agent:
    def __init__(self):
        self.names = Names()
    def hear(self, name):
        self.names.append(name)
        self.names.last = name

keep, hear = functools.partial(remember, []), Agent().hear

@app.get("/")
def home():
    keep(request.args["name"])
    hear(request.args["name"])
    return "ok"
""",
        [("keep[0]", "grew"), ("hear.names", "grew"), ("hear.names.last", "new")],
    ),
}


@pytest.mark.parametrize("case", LEAKS)
def test_a_leak_is_reported_once_with_its_place_and_kind(site: Callable[..., Site], case: str) -> None:
    source, expected = LEAKS[case]
    leaky = site(source)
    leaky.get(f"/?name={SECRET}")
    assert sorted(leaky.places()) == sorted(expected)
    for change in leaky.found:
        (caller,) = change.requests
        assert (caller.method, caller.path, caller.endpoint) == ("GET", "/", "home")
        assert (change.method, change.path) == ("GET", "/")
        assert change.thread == caller.thread == threading.current_thread().name
        assert SECRET not in f"{change} {change!r}"


def test_equal_plain_values_are_no_change(site: Callable[..., Site]) -> None:
    leaky = site(LEAKS["the last visitor, in a dict, under the same key"][0])
    leaky.get("/?name=ann%20and%20bob")
    assert leaky.take() == [("LAST", "changed")]
    leaky.get("/?name=ann%20and%20bob")
    assert leaky.take() == []
    leaky.get("/?name=somebody")
    assert leaky.take() == [("LAST", "changed")]


def test_a_cache_that_only_answers_is_no_change_and_a_full_one_that_replaces_is(
    site: Callable[..., Site],
) -> None:
    leaky = site("""
@functools.lru_cache(maxsize=1)
def price(name):
    return 1

@app.get("/")
def home():
    price(request.args["name"])
    return "ok"
""")
    leaky.get("/?name=a")
    assert leaky.take() == [("price", "grew")]
    leaky.get("/?name=a")
    assert leaky.take() == []
    leaky.get("/?name=b")
    assert leaky.take() == [("price", "changed")]


def test_values_are_shown_only_if_asked_for(imported: Imports) -> None:
    module = imported("HISTORY, BY_NAME, CURRENT = [], {}, None\nDEEP = {'alice@example.com': []}")
    for values in (False, True):
        watch = Watch((module.__name__,), values=values)
        before = watch.snapshot()
        module.HISTORY.append(SECRET)
        module.BY_NAME[SECRET + str(values)] = 1
        module.CURRENT = [SECRET, values]
        module.DEEP[SECRET].append(1)
        texts = [f"{change} {change!r}" for change in watch.compare(before)]
        assert len(texts) == 4
        assert [SECRET in text for text in texts] == [values] * 4


def test_an_app_from_a_factory_is_found_though_no_module_has_it(imported: Imports) -> None:
    source = """
from flask import Flask

def create_app():
    app, names = Flask(__name__), []

    @app.get("/")
    def home():
        names.append(1)
        app.config["USER"] = 1
        return "ok"

    return app
"""
    for wrap in (lambda app: app, ProxyFix):
        module = imported(source)
        app = module.create_app()
        found: list[Change] = []
        app.wsgi_app = LeakMiddleware(wrap(app.wsgi_app), (module.__name__,), found.append)
        app.test_client().get("/", buffered=True)
        home = f"{module.__name__}.create_app.<locals>.home"
        assert sorted(change.where for change in found) == ["app.config", f"{home}:names"]


# --- What is no leak -----------------------------------------------------------------------------------

CLEAN = {
    "state of the request": """
class Cart:
    def __init__(self):
        self.items = []

@app.get("/")
def home():
    cart = Cart()
    cart.items.append(request.args["name"])
    g.cart = cart
    session["name"] = request.args["name"]
    return render_template_string("{{ request.args['name'] }}")
""",
    "thread-locals and context variables": """
local, var = threading.local(), contextvars.ContextVar("var", default=None)

class Own(threading.local):
    count = 0

own = Own()

@app.get("/")
def home():
    local.count = getattr(local, "count", 0) + 1
    local.last = own.last = request.args["name"]
    own.count += 1
    var.set([request.args["name"]])
    return "ok"
""",
    "caches that were filled when they were imported": """
TABLE = {n: n * n for n in range(100)}

@functools.cache
def settings():
    return TABLE

settings()

@app.get("/")
def home():
    return str(settings()[3])
""",
    "logging": """
log = logging.getLogger(__name__)

@app.get("/")
def home():
    log.warning("hello %s", request.args["name"])
    app.logger.info("hello")
    return "ok"
""",
    "a module that is imported by the first request": """
import importlib

@app.get("/")
def home():
    later = importlib.import_module(__name__ + ".later")
    return str(later.TABLE[1])
""",
    "something that is put there and taken away again": """
UNDER_WAY = {}

@app.get("/")
def home():
    UNDER_WAY["x"] = request.args["name"]
    try:
        return "ok"
    finally:
        del UNDER_WAY["x"]
""",
    "a set that is rebuilt, with the same members": """
NAMES = set(range(10))

@app.get("/")
def home():
    NAMES.update(range(10, 5000))
    NAMES.difference_update(range(10, 5000))
    return "ok"
""",
    "what forgets by itself": """
import weakref
CARTS = weakref.WeakValueDictionary()

class Cart:
    pass

@app.get("/")
def home():
    app._kept = CARTS["x"] = Cart()
    return "ok"
""",
    "a cached property of a library's object, and what it keeps to itself": """
@app.get("/")
def home():
    app._private = time.time()
    app.jinja_env
    return "ok"
""",
    "errors that are handled": """
@app.errorhandler(KeyError)
def lacks(error):
    return "lacks", 400

@app.get("/")
def home():
    return request.args["nothing"]

@app.errorhandler(404)
def nowhere(error):
    return "nowhere", 404
""",
    "a library's own cache": """
import urllib.parse
from urllib.parse import urlsplit

@app.get("/")
def home():
    return urlsplit("http://x/" + request.args["name"]).path
""",
}


@pytest.mark.parametrize("mode", ["changes", "canary"])
@pytest.mark.parametrize("case", CLEAN)
def test_a_clean_app_gives_no_report(site: Callable[..., Site], case: str, mode: Any) -> None:
    clean = site(CLEAN[case], {"later": "TABLE = [1, 2, 3]\n"}, mode=mode)
    for n in range(3):
        assert clean.get(f"/?name={case.replace(' ', '-')}-{n}-{canary()}")
        assert clean.get(f"/nowhere/{n}")
    assert clean.places() == []
    if mode == "changes":
        clean.get("/openly")
        assert clean.places() == [("OPENLY", "grew")]


def test_what_happens_between_requests_is_nobodys(site: Callable[..., Site]) -> None:
    clean = site("HISTORY = []\n")
    clean.get("/")
    clean.module.HISTORY.append(1)
    clean.get("/")
    assert clean.places() == []


def test_what_is_excluded_may_change_and_so_may_all_that_is_in_it(site: Callable[..., Site]) -> None:
    source = LEAKS["a shared object"][0]
    one = site(source, exclude=["*.agent.user", "*.slotted"])
    one.get("/?name=a")
    assert sorted(one.places()) == [("agent.memory", "grew"), ("space.user", "rebound")]
    whole = site(source, exclude=["*.agent", "*.slotted", "*.space"])
    whole.get("/?name=a")
    assert whole.places() == []


def test_warming_up_is_not_reported(site: Callable[..., Site]) -> None:
    leaky = site("", warmup=2)
    for _ in range(3):
        leaky.get("/openly")
    assert [str(change.before) for change in leaky.found] == ["list of 2"]


def test_wrong_options_are_refused() -> None:
    def app(environ: Any, start: Any) -> list[bytes]:
        return []

    with pytest.raises(TypeError):
        LeakMiddleware(app, "myapp")
    with pytest.raises(TypeError):
        Watch("myapp")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="mode"):
        LeakMiddleware(app, ("myapp",), mode="everything")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="traced"):
        LeakMiddleware(app, ("myapp",), mode="canary", trace=True)


@pytest.mark.parametrize("mode", ["changes", "canary"])
def test_a_package_that_is_not_there_is_said(caplog: pytest.LogCaptureFixture, mode: Any) -> None:
    body_of(LeakMiddleware(lambda environ, start: [b"x"], ("no_such_package",), mode=mode)).close()
    assert "no loaded module of no_such_package" in caplog.text


def test_without_a_listener_changes_are_logged(imported: Imports, caplog: pytest.LogCaptureFixture) -> None:
    module = imported(HEAD + TAIL)
    module.app.wsgi_app = LeakMiddleware(module.app.wsgi_app, (module.__name__,))
    module.app.test_client().get("/openly", buffered=True)
    (record,) = [record for record in caplog.records if record.name.startswith("agentapp.audit")]
    assert record.levelno == logging.WARNING
    assert f"{module.__name__}.OPENLY grew (list of 0 -> list of 1), during GET /openly" in record.message


# --- The request's life --------------------------------------------------------------------------------

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


def test_a_stream_that_is_closed_early_closes_what_is_inside(site: Callable[..., Site]) -> None:
    leaky = site(STREAM)
    body = body_of(leaky.middleware)
    next(body)
    body.close()
    assert leaky.module.CLOSED == [1]
    assert sorted(leaky.places()) == [("CLOSED", "grew"), ("HISTORY", "grew")]


def test_close_is_passed_on_once_even_if_nothing_was_pulled_and_if_it_raises() -> None:
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
def test_an_app_that_raises_does_so_and_is_reported(imported: Imports, mode: Any) -> None:
    module = imported("HISTORY = []\ndef app(environ, start):\n    HISTORY.append(str(environ))\n    1 / 0\n")
    found: list[Change] = []
    app = LeakMiddleware(module.app, (module.__name__,), found.append, mode=mode)
    with pytest.raises(ZeroDivisionError):
        body_of(app)
    kind = {"changes": ("HISTORY", "grew"), "canary": ("HISTORY[0]", "canary")}[mode]
    assert [(c.where, c.kind) for c in found] == [(f"{module.__name__}.{kind[0]}", kind[1])]


def test_what_the_app_answers_is_passed_on_unchanged(site: Callable[..., Site]) -> None:
    plain = site(STREAM + "\n@app.get('/made')\ndef made():\n    return 'yes', 201, {'X-Here': 'there'}\n")
    answer = plain.app.test_client().get("/made")
    assert (answer.text, answer.status_code, answer.headers["X-Here"]) == ("yes", 201, "there")
    assert plain.get("/") == "012"


def test_a_response_that_nobody_closes_is_settled(site: Callable[..., Site]) -> None:
    leaky = site("")
    client = leaky.app.test_client()
    kept = client.get("/openly")
    assert kept.text == "ok"
    assert leaky.found == []
    leaky.middleware.settle()
    assert leaky.take() == [("OPENLY", "grew")]
    # It was over: those that come later are not mixed up with it.
    leaky.get("/openly")
    assert [len(change.requests) for change in leaky.found] == [1]
    kept.close()


def test_a_response_that_was_forgotten_is_no_candidate_for_long(site: Callable[..., Site]) -> None:
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


def test_what_is_done_on_closing_is_found_however_late_that_is(site: Callable[..., Site]) -> None:
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


def test_a_listener_that_raises_changes_nothing_and_is_told_the_rest(
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


def test_a_detector_that_fails_changes_nothing(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watched = site("")

    def fail(*args: object) -> object:
        raise MemoryError

    monkeypatch.setattr("agentapp.audit.runtime.watch.Watch.snapshot", fail)
    assert watched.get("/openly") == "ok"
    assert "the leak detector failed" in caplog.text


def test_a_mark_in_a_cache_is_found_whatever_else_was_asked(site: Callable[..., Site]) -> None:
    leaky = site(
        """
@functools.cache
def greeting(name):
    return [f"hello {name}"]

greeting("__wrapped__")

@app.get("/")
def home():
    return greeting(request.args["agentapp_canary"])[0]
""",
        mode="canary",
    )
    assert leaky.get("/").startswith("hello")
    assert {kind for _, kind in leaky.places()} == {"canary"}


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


# --- Several at once -----------------------------------------------------------------------------------

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


def test_sixteen_requests_at_once_are_all_named_and_no_change_is_lost(site: Callable[..., Site]) -> None:
    leaky = site(MEETING, exclude=["*.meeting"])
    # They meet inside the app, twice: a lock held while the app works would keep them from it.
    in_threads(16, lambda n: leaky.get(f"/visitor-{n}"))
    assert set(leaky.places()) == {("HISTORY", "grew")}
    named = {caller.path for change in leaky.found for caller in change.requests}
    assert named == {f"/visitor-{n}" for n in range(16)}
    assert all(caller.path == f"/{caller.thread}" for change in leaky.found for caller in change.requests)
    steps = [[int(n) for n in re.findall(r"\d+", f"{c.before} {c.after}")] for c in leaky.found]
    assert sum(after - before for before, after in steps) == 16
    # And when they are gone, one alone is named alone.
    leaky.take()
    leaky.get("/openly")
    assert [len(change.requests) for change in leaky.found] == [1]


def test_only_those_are_named_that_were_under_way(site: Callable[..., Site]) -> None:
    leaky = site(STREAM)
    long = body_of(leaky.middleware, "/")  # nothing done yet
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


def test_a_change_before_another_request_began_is_not_blamed_on_it(site: Callable[..., Site]) -> None:
    leaky = site(STREAM)
    long = body_of(leaky.middleware, "/")
    next(long)
    leaky.get("/nowhere")
    assert [[caller.path for caller in change.requests] for change in leaky.found] == [["/"]]
    assert leaky.take() == [("HISTORY", "grew")]
    long.close()


def test_many_threads_that_change_things_while_they_are_looked_at(site: Callable[..., Site]) -> None:
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


# --- Who did it ----------------------------------------------------------------------------------------

TRACED = """
HISTORY, LAST, COUNT = [], {}, 0

class Agent:
    user = None

    def hear(self, name):
        x = len(name)
        self.user = name  # HEAR
        return x

agent = Agent()

def remember(name):
    HISTORY.append(name)  # REMEMBER
    return len(HISTORY)

@app.get("/")
def home():
    global COUNT
    name = request.args["name"]
    LAST[name] = 1  # LAST
    remember(name)
    agent.hear(name)
    COUNT += 1  # COUNT
    return "ok"

@app.get("/stream")
def stream():
    def items():
        yield "a"
        HISTORY.append(1)  # STREAM
        yield "b"
    return Response(items())

@app.get("/library")
def library():
    collections.UserList.append(USERS, 1)  # LIBRARY
    return "ok"

USERS = collections.UserList()
"""


def line_of(module: ModuleType, mark: str) -> int:
    lines = Path(str(module.__file__)).read_text().splitlines()
    (found,) = [n for n, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return found


def test_the_function_and_the_line_are_named(site: Callable[..., Site]) -> None:
    leaky = site(TRACED, trace=True)
    leaky.get("/?name=ann")
    assert {(where, *change.by) for (where, _), change in zip(leaky.places(), leaky.found, strict=True)} == {
        (where, f"{leaky.name}.{function} (__init__.py:{line_of(leaky.module, mark)})")
        for where, function, mark in [
            ("LAST", "home", "LAST"),
            ("HISTORY", "remember", "REMEMBER"),
            ("agent.user", "Agent.hear", "HEAR"),
            ("COUNT", "home", "COUNT"),
        ]
    }
    assert "by " + leaky.name in str(leaky.found[0])
    leaky.take()
    leaky.get("/library")
    assert [change.by for change in leaky.found] == [
        (f"{leaky.name}.library (__init__.py:{line_of(leaky.module, 'LIBRARY')})",)
    ]


def test_a_stream_is_traced_too_and_nothing_is_left_switched_on(site: Callable[..., Site]) -> None:
    leaky = site(TRACED, trace=True)
    body = body_of(leaky.middleware, "/stream")
    for _ in body:
        assert sys.getprofile() is None
    body.close()
    (change,) = leaky.found
    assert change.by == (
        f"{leaky.name}.stream.<locals>.items (__init__.py:{line_of(leaky.module, 'STREAM')})",
    )


def test_a_profiler_that_was_there_is_put_back_and_the_apps_own_is_left(site: Callable[..., Site]) -> None:
    def theirs(*args: object) -> None:
        pass

    leaky = site(
        "import sys\ndef mine(*args): pass\n"
        "@app.get('/')\ndef home():\n    sys.setprofile(mine)\n    return 'ok'\n",
        trace=True,
    )
    try:
        sys.setprofile(theirs)
        leaky.get("/openly")
        assert sys.getprofile() is theirs
        leaky.get("/")
        assert sys.getprofile() is leaky.module.mine
    finally:
        sys.setprofile(None)


def test_a_tracer_that_fails_does_not_fail_the_request(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise RuntimeError("broken")

    leaky = site("", trace=True)
    monkeypatch.setattr("agentapp.audit.runtime.tracing.changed", fails)
    assert leaky.get("/openly") == "ok"
    assert leaky.places() == [("OPENLY", "grew")]
    assert leaky.found[0].by == ()


def test_without_tracing_nothing_is_profiled(site: Callable[..., Site]) -> None:
    leaky = site("import sys\nSEEN = []\n@app.get('/')\ndef home():\n    return str(sys.getprofile())\n")
    assert leaky.get("/") == "None"


# --- Anything may be in there --------------------------------------------------------------------------

HOSTILE = '''
"""Objects that note every call of their methods, and raise."""
note = None

def hook(name):
    def method(self, *args, **kwargs):
        if note is not None:
            note(name)
            raise RuntimeError(name)
        return getattr(super(type(self), self), name)(*args, **kwargs)
    return method

def hostile(name, *bases, meta=type, **more):
    hooks = ("__getattribute__ __getattr__ __eq__ __ne__ __hash__ __len__ __iter__ __contains__ __bool__ "
             "__repr__ __str__ __format__ __reversed__ __getitem__ __call__ __sizeof__ __dir__ __index__ "
             "__bytes__ __missing__ __instancecheck__ __subclasscheck__ keys values items copy").split()
    names = {each: hook(each) for each in hooks}
    return meta(name, bases, {**names, "__module__": __name__, **more})

class Meta(type):
    pass

Plain = hostile("Plain")
List = hostile("List", list)
Dict = hostile("Dict", dict)
Set = hostile("Set", set)
Tuple = hostile("Tuple", tuple)
Text = hostile("Text", str)
Slots = hostile("Slots", __slots__=("inside",))
Lies = hostile("Lies", __class__=property(hook("__class__")))
Hides = hostile("Hides", __dict__=property(hook("__dict__")))
Odd = hostile("Odd", meta=Meta)
things = [object.__new__(cls) for cls in (Plain, Slots, Lies, Hides, Odd)]
things += [list.__new__(List), dict.__new__(Dict), set.__new__(Set), tuple.__new__(Tuple, ([],))]
things += [str.__new__(Text)]
table = {"plain": things[0], 3: Odd}
plain = things[0]
values = (plain, things)
'''


def test_no_method_of_any_object_is_called(imported: Imports) -> None:
    module = imported(HOSTILE)
    calls: list[str] = []
    meta: Any = module.Meta
    for name in ("__getattribute__", "__eq__", "__hash__", "__instancecheck__", "__subclasscheck__", "mro"):
        setattr(meta, name, module.hook(name))
    module.note = calls.append
    things = list.copy(module.things)
    try:
        for values in (False, True):
            watch = Watch((module.__name__,), values=values)
            before = watch.snapshot()
            assert before.complete
            list.append(things[5], 1)
            dict.__setitem__(things[6], f"a{values}", 2)
            set.add(things[7], f"x{values}")
            tuple.__getitem__(things[8], 0).append(1)
            vars(module)["values"] = object()
            changes = watch.compare(before)
            watch.find_marks()
            assert calls == []
            where = {change.where.removeprefix(module.__name__ + ".") for change in changes}
            assert where == {"things[5]", "things[6]", "things[7]", "things[8][0]", "values"}
            assert all(str(change) for change in changes)
        assert calls == []
    finally:
        module.note = None
        for name in (
            "__getattribute__",
            "__eq__",
            "__hash__",
            "__instancecheck__",
            "__subclasscheck__",
            "mro",
        ):
            delattr(meta, name)


def test_proxies_are_not_followed(imported: Imports) -> None:
    module = imported("HISTORY = []\n")
    asked: list[int] = []

    def current() -> list[int]:
        asked.append(1)
        return asked

    class Pretends:
        __module__ = module.__name__
        __class__ = property(lambda self: current().__class__)  # type: ignore[assignment]

        def __init__(self) -> None:
            self.kept: list[int] = []

    module.pretends = Pretends()  # type: ignore[attr-defined]
    module.proxy = LocalProxy(current)  # type: ignore[attr-defined]
    module.holder = [module.proxy, {"x": module.proxy}]  # type: ignore[attr-defined]
    watch = Watch((module.__name__,))
    before = watch.snapshot()
    module.HISTORY.append(1)
    module.pretends.kept.append(1)
    assert [change.where for change in watch.compare(before)] == [f"{module.__name__}.HISTORY"]
    watch.find_marks()
    assert asked == []


def test_lazy_and_odd_modules_stay_as_they_are(imported: Imports) -> None:
    package = imported("HISTORY = []\n", lazy="raise RuntimeError('loaded')\n")
    spec = importlib.util.find_spec(f"{package.__name__}.lazy")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = lazy
    spec.loader.exec_module(lazy)

    class Odd(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    sys.modules[f"{package.__name__}.odd"] = Odd("odd")
    sys.modules[f"{package.__name__}.none"] = None  # type: ignore[assignment]
    sys.modules[f"{package.__name__}.thing"] = object()  # type: ignore[assignment]
    watch = Watch((package.__name__,))
    before = watch.snapshot()
    package.HISTORY.append(1)
    assert [change.where for change in watch.compare(before)] == [f"{package.__name__}.HISTORY"]
    watch.find_marks()
    assert "LazyModule" in type(lazy).__name__


def test_cycles_end(imported: Imports) -> None:
    module = imported(
        "class Node: pass\nnode = Node()\nnode.me = node\nloop = [1]\nloop.append(loop)\n"
        "table = {}\ntable['x'] = (table, loop, node)\nnode.names = []\n"
    )
    watch = Watch((module.__name__,))
    before = watch.snapshot()
    assert before.objects < 50
    module.node.names.append(1)
    assert [change.where for change in watch.compare(before)] == [f"{module.__name__}.node.names"]


def test_huge_containers_cost_no_more_than_the_limit(imported: Imports) -> None:
    module = imported(
        "import collections\nBIG = list(range(300_000))\nTABLE = {n: [n] for n in range(300_000)}\n"
        "QUEUE = collections.deque(range(300_000))\nNAMES = set(range(300_000))\nRAW = bytearray(3_000_000)\n"
    )
    watch = Watch((module.__name__,), limit=100)
    before = watch.snapshot()
    assert max(len(node.held[1]) for node in before.nodes) <= 200
    assert before.objects < 200
    module.BIG.append(1)
    module.TABLE.popitem()
    module.QUEUE[-1] = "other"
    module.NAMES.add("other")
    module.RAW[-1] = 1
    kinds = {change.where.rpartition(".")[2]: change.kind for change in watch.compare(before)}
    assert kinds == {"BIG": "grew", "TABLE": "shrank", "QUEUE": "changed", "NAMES": "grew", "RAW": "changed"}


def test_too_many_objects_are_not_looked_at_and_that_is_said(
    imported: Imports, caplog: pytest.LogCaptureFixture
) -> None:
    module = imported("FIRST = []\nMANY = [[] for _ in range(1_000)]\n")
    watch = Watch((module.__name__,), most=100)
    before = watch.snapshot()
    assert not before.complete
    assert len(before.nodes) <= 110
    module.FIRST.append(1)
    assert [change.where for change in watch.compare(before)] == [f"{module.__name__}.FIRST"]
    for mode in ("changes", "canary"):
        caplog.clear()
        body_of(LeakMiddleware(lambda environ, start: [b""], watch=watch, mode=mode)).close()  # type: ignore[arg-type]
        assert "100 objects, and there are more" in caplog.text


def test_depth_is_bounded(imported: Imports) -> None:
    module = imported(
        "DEEP = []\ninner = DEEP\nfor _ in range(5000):\n    inner.append([]); inner = inner[0]\n"
    )
    del module.inner  # type: ignore[attr-defined]
    watch = Watch((module.__name__,), depth=5)
    assert len(watch.snapshot().nodes) == 6  # and the module
    before = watch.snapshot()
    module.DEEP[0][0].append(1)
    assert [change.where for change in watch.compare(before)] == [f"{module.__name__}.DEEP[0][0]"]


def test_what_was_deleted_meanwhile(imported: Imports) -> None:
    module = imported(
        "import sys\nclass Agent:\n    def __init__(self): self.names = []\nagent = Agent()\nLIST = [[]]\n"
    )
    watch = Watch((module.__name__,))
    before = watch.snapshot()
    del module.agent.names, module.LIST[0], module.Agent
    del sys.modules[module.__name__]
    kinds = {
        change.where.removeprefix(module.__name__ + "."): change.kind for change in watch.compare(before)
    }
    assert kinds == {"agent.names": "gone", "LIST": "shrank", "Agent": "gone"}


def test_an_address_used_again_is_no_hiding_place(imported: Imports) -> None:
    """A new object at the address of an old one is a change: the snapshot keeps the old one alive."""
    module = imported("class Cart: pass\nLAST = [Cart()]\n")
    watch = Watch((module.__name__,))
    for _ in range(50):
        before = watch.snapshot()
        module.LAST[0] = None
        module.LAST[0] = module.Cart()
        assert [change.kind for change in watch.compare(before)] == ["changed"]


# --- Canaries ------------------------------------------------------------------------------------------

KEPT = {
    "a list": ("KEPT = []", "KEPT.append(text)", "KEPT[0]"),
    "inside a text": ("KEPT = []", "KEPT.append('<b>' + text + '</b>')", "KEPT[0]"),
    "bytes": ("KEPT = {}", "KEPT['x'] = text.encode()", "KEPT[...]"),
    "a bytearray": ("KEPT = bytearray()", "KEPT.extend(text.encode())", "KEPT[0]"),
    "a key": ("KEPT = {}", "KEPT[text] = 1", "KEPT[...]"),
    "a set of tuples": ("KEPT = set()", "KEPT.add((1, text))", "KEPT[0][1]"),
    "a global": ("kept = None", "globals()['kept'] = text", "kept"),
    "an attribute": ("class Agent: pass\nagent = Agent()", "agent.user = [text]", "agent.user[0]"),
    "a class": ("class Agent: pass", "Agent.user = text", "Agent.user"),
    "a default": ("def keep(x, kept=[]): kept.append(x)", "keep(text)", "keep(kept=...)[0]"),
    "a cached result": ("@functools.lru_cache\ndef f(x): return [x]", "f(text)", "f()"),
    "a closure": (
        "def make():\n    kept = []\n    return lambda x: kept.append(x)\nf = make()",
        "f(text)",
        None,
    ),
    "a generator": (
        "KEPT = []\ndef items(x):\n    yield x\n    yield x",
        "i = items(text); next(i); KEPT.append(i)",
        None,
    ),
    "a library's object": (
        "KEPT = []\nimport email.message",
        "m = email.message.Message(); m['a'] = text; KEPT.append(m)",
        None,
    ),
    "an exception": ("KEPT = []", "KEPT.append(ValueError(text))", "KEPT[0].args[0]"),
    "the configuration": ("", "app.config['USER'] = text", "app.config[...]"),
    "a bound method, for later": (
        "LATER = []\nclass Job:\n    def run(self): pass",
        "j = Job(); j.text = text; LATER.append(j.run)",
        "LATER[0].text",
    ),
    "the end of a long list": ("KEPT = ['x'] * 100_000", "KEPT.append(text)", None),
    "a text of a class of its own": (
        "KEPT = []\nfrom markupsafe import Markup",
        "KEPT.append(Markup(text))",
        "KEPT[0]",
    ),
}


@pytest.mark.parametrize("case", KEPT)
def test_a_message_that_outlives_its_request_is_found(site: Callable[..., Site], case: str) -> None:
    before, inside, where = KEPT[case]
    leaky = site(
        f"{before}\n@app.post('/')\ndef home():\n    text = request.form['message']\n    {inside}\n"
        "    return text\n",
        mode="canary",
    )
    mark = canary()
    answer = leaky.app.test_client().post("/", data={"message": mark}, buffered=True)
    assert answer.text == mark
    assert leaky.found
    assert {change.kind for change in leaky.found} == {"canary"}
    if where is not None:
        assert where in [place for place, _ in leaky.places()]
    for change in leaky.found:
        assert change.requests[0].endpoint == "home"
        assert mark not in f"{change} {change!r}"
    # It is told once.
    leaky.take()
    leaky.get("/openly")
    assert leaky.take() == []


@pytest.mark.parametrize(
    "kept", ["here.headers.get('X-Agentapp-Canary')", "here.full_path", "dict(here.environ)", "here"]
)
def test_a_mark_comes_with_every_request_by_itself(site: Callable[..., Site], kept: str) -> None:
    leaky = site(
        f"KEPT = []\n@app.get('/')\ndef home():\n    here = request._get_current_object()\n"
        f"    KEPT.append({kept})\n    return request.args['name']\n",
        mode="canary",
    )
    assert leaky.get("/?name=ann&x=1") == "ann"
    assert leaky.found
    assert all(place.startswith("KEPT[0]") for place, _ in leaky.places())


def test_the_mark_is_the_same_everywhere_in_a_request_and_new_in_the_next(site: Callable[..., Site]) -> None:
    clean = site(
        """
from agentapp.audit.runtime import canary

@app.get("/")
def home():
    def items():
        yield canary()
    marks = {canary(), request.args["agentapp_canary"], request.headers["X-Agentapp-Canary"],
             request.environ["agentapp.canary"]}
    return Response(stream_with_context(x for x in [*marks, " ", *items()]))
""",
        mode="canary",
    )
    first, second = clean.get("/").split(), clean.get("/").split()
    assert len(set(first)) == len(set(second)) == 1
    assert first != second
    before = canary()
    assert canary() == before
    assert set(clean.get("/").split()) == {before}
    sent = "agentappcanary" + "0" * 24
    assert set(clean.get("/", headers={HEADER: sent}).split()) == {sent}
    assert set(clean.get("/", headers={HEADER: "something else"}).split()).isdisjoint({sent, "something"})
    assert clean.found == []


def test_what_is_left_behind_later_is_found_by_the_next_request(site: Callable[..., Site]) -> None:
    leaky = site(
        """
KEPT, go = [], threading.Event()

@app.get("/")
def home():
    text = request.headers["X-Agentapp-Canary"]
    def later():
        go.wait(30)
        KEPT.append(text)
    thread = home.thread = threading.Thread(target=later)
    thread.start()
    return "ok"
""",
        mode="canary",
        exclude=["*.home"],
    )
    leaky.get("/")
    assert leaky.take() == []
    leaky.module.go.set()
    leaky.module.home.thread.join(30)
    leaky.get("/openly")
    assert leaky.places() == [("KEPT[0]", "canary")]
    assert [change.path for change in leaky.found] == ["/"]


def test_a_mark_is_no_leak_while_its_request_is_under_way(site: Callable[..., Site]) -> None:
    """Sixteen requests keep something shared while they work and take it away; then sixteen forget to."""
    shared = site(
        """
UNDER_WAY, meeting = {}, threading.Barrier(16)

@app.get("/<forget>/<n>")
def home(forget, n):
    UNDER_WAY[n] = request.headers["X-Agentapp-Canary"]
    meeting.wait(30)
    app.test_client().get("/openly", buffered=True)
    meeting.wait(30)
    if forget == "no":
        del UNDER_WAY[n]
    return "ok"
""",
        mode="canary",
    )
    in_threads(16, lambda n: shared.get(f"/no/{n}"))
    assert shared.take() == []
    in_threads(16, lambda n: shared.get(f"/yes/{n}"))
    assert sorted(change.path for change in shared.found) == sorted(f"/yes/{n}" for n in range(16))


def test_a_stream_has_its_mark_until_it_is_closed(site: Callable[..., Site]) -> None:
    leaky = site(
        """
KEPT = []

@app.get("/")
def home():
    def items(text):
        KEPT.append(text)
        yield "a"
        yield "b"
        if request.args["keep"] == "no":
            KEPT.clear()
    return Response(stream_with_context(items(request.headers["X-Agentapp-Canary"])))
""",
        mode="canary",
    )
    for keep, places in (("no", []), ("yes", [("KEPT[0]", "canary")])):
        body = body_of(leaky.middleware, f"/?keep={keep}")
        next(body)
        leaky.get("/openly")
        assert leaky.take() == []
        assert b"".join(body) == b"b"
        leaky.get("/openly")
        assert leaky.take() == []
        body.close()
        assert leaky.take() == places


def test_a_request_that_ends_while_another_one_is_searched_for_is_not_accused(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    clean = site(
        """
KEPT = []

@app.get("/")
def home():
    KEPT.append(request.headers["X-Agentapp-Canary"])
    response = Response("x")
    response.call_on_close(KEPT.clear)
    return response
""",
        mode="canary",
    )
    under_way = body_of(clean.middleware, "/")
    search = Watch.find_marks

    def ends_meanwhile(watch: Watch) -> tuple[list[tuple[str, str]], bool]:
        found = search(watch)
        under_way.close()
        return found

    monkeypatch.setattr(Watch, "find_marks", ends_meanwhile)
    assert clean.get("/openly") == "ok"
    assert clean.module.KEPT == []
    assert clean.found == []


# --- Off unless it is used -----------------------------------------------------------------------------


def test_the_library_needs_neither_pytest_nor_flask() -> None:
    code = (
        "import sys, agentapp.audit.runtime as runtime\n"
        "runtime.Watch(('agentapp',)).compare(runtime.Watch(('agentapp',)).snapshot())\n"
        "assert not {'pytest', '_pytest', 'flask', 'werkzeug'} & set(sys.modules)\n"
        "assert sys.getprofile() is None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


PLUGIN_TESTS = """
import shared_things

pytest_plugins = ["agentapp.audit.runtime.pytest_plugin"]

def test_leaks(leak_watch):
    leak_watch("shared_things")
    shared_things.HISTORY.append("alice@example.com")

def test_is_allowed(leak_watch):
    leak_watch("shared_things", allow=["shared_things.HISTORY"])
    shared_things.HISTORY.append("alice@example.com")

def test_is_clean(leak_watch):
    guard = leak_watch("shared_things")
    shared_things.HISTORY.append(1)
    assert [change.kind for change in guard.changes()] == ["grew"]
    shared_things.HISTORY.pop()

def test_does_not_watch():
    shared_things.HISTORY.append(1)

def test_is_not_loaded(leak_watch):
    leak_watch("no_such_package")
"""


def test_the_fixture_fails_a_test_that_leaves_something(tmp_path: Path) -> None:
    (tmp_path / "shared_things.py").write_text("HISTORY = []\n")
    (tmp_path / "test_it.py").write_text(PLUGIN_TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    told = re.findall(r"^(PASSED|FAILED|ERROR) test_it\.py::(\w+)", run.stdout, re.M)
    verdicts = {name: verdict for verdict, name in told}
    assert verdicts == {
        "test_leaks": "ERROR",  # at its teardown
        "test_is_allowed": "PASSED",
        "test_is_clean": "PASSED",
        "test_does_not_watch": "PASSED",
        "test_is_not_loaded": "FAILED",
    }, run.stdout
    assert "shared_things.HISTORY grew (list of 0 -> list of 1)" in run.stdout
    assert "import it before you watch it" in run.stdout


def test_the_pages_examples_run(imported: Imports) -> None:
    page = (ROOT / "docs/auditor-runtime.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.S)
    assert len(blocks) == 4
    module = imported(HEAD + TAIL)
    for block in blocks:
        exec(compile(block.replace("myapp", module.__name__), "page", "exec"), {"__name__": "page"})
