"""Which changes of shared objects the detector reports."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from werkzeug.middleware.proxy_fix import ProxyFix

from agentapp.audit.runtime import Change, LeakMiddleware, Watch
from tests.audit.support.sites import SECRET, Imports, Site

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


def test_a_cache_hit_is_no_change_and_a_replaced_entry_is(
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


def test_an_app_from_a_factory_is_watched_though_it_is_in_no_module(imported: Imports) -> None:
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


def test_excluded_objects_and_their_contents_may_change(site: Callable[..., Site]) -> None:
    source = LEAKS["a shared object"][0]
    one = site(source, exclude=["*.agent.user", "*.slotted"])
    one.get("/?name=a")
    assert sorted(one.places()) == [("agent.memory", "grew"), ("space.user", "rebound")]
    whole = site(source, exclude=["*.agent", "*.slotted", "*.space"])
    whole.get("/?name=a")
    assert whole.places() == []
