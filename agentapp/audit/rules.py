"""The rules: what each finds, why that is a hazard, and what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Rule:
    code: str
    title: str
    severity: Severity
    why: str
    fix: str
    bad: str
    good: str


def _rules(*rules: Rule) -> Mapping[str, Rule]:
    """The examples without the line break that they begin with here."""
    plain = (replace(rule, bad=rule.bad.lstrip("\n"), good=rule.good.lstrip("\n")) for rule in rules)
    return MappingProxyType({rule.code: rule for rule in plain})


RULES = _rules(
    Rule(
        "ISO001",
        "a module-level object is changed",
        "error",
        (
            "Every request in the process sees and changes the same object, so one user's data ends up in "
            "another's answer."
        ),
        (
            "Make it in the request and pass it on, or keep it in a database or Redis under the user's own "
            "key."
        ),
        """
HISTORY = []

def chat(text):
    HISTORY.append(text)
""",
        """
def chat(history, text):
    return [*history, text]
""",
    ),
    Rule(
        "ISO002",
        "a module-level name is rebound",
        "error",
        "`global` makes the last request's value everybody's value, and read-then-write loses updates.",
        "Return the value, keep it in the request's own object, or in a ContextVar that is reset.",
        """
current_user = None

def login(user):
    global current_user
    current_user = user
""",
        """
def login(request, user):
    request.user = user
""",
    ),
    Rule(
        "ISO003",
        "a class attribute is changed",
        "error",
        "A class attribute belongs to all instances: what one of them appends, all the others have.",
        "Set it in `__init__`, or use `field(default_factory=...)` in a dataclass.",
        """
class Cart:
    items = []

    def add(self, item):
        self.items.append(item)
""",
        """
class Cart:
    def __init__(self):
        self.items = []

    def add(self, item):
        self.items.append(item)
""",
    ),
    Rule(
        "ISO004",
        "an instance that all requests share is changed",
        "error",
        "A module-level agent, breaker, limiter or history has one state for everybody.",
        (
            "Make a new one for each request (a factory), or keep its state in a store under the session's "
            "key, or guard all of it with one lock."
        ),
        """
class Agent:
    def __init__(self):
        self.turns = 0

    def run(self):
        self.turns += 1

agent = Agent()

def view():
    agent.run()
""",
        """
class Agent:
    def __init__(self):
        self.turns = 0

    def run(self):
        self.turns += 1

def view():
    Agent().run()
""",
    ),
    Rule(
        "ISO005",
        "lazy initialisation without a lock",
        "warning",
        "Two first requests both find nothing and both make one; half-made objects are seen by others.",
        "Make it at import or at start-up, or ask again under a lock (double-checked).",
        """
_model = None

def model():
    global _model
    if _model is None:
        _model = load()
    return _model
""",
        """
from threading import Lock

_model = None
_lock = Lock()

def model():
    global _model
    if _model is None:
        with _lock:
            if _model is None:
                _model = load()
    return _model
""",
    ),
    Rule(
        "ISO006",
        "a memo cache that never ends",
        "warning",
        (
            "A dict that requests fill grows for as long as the process lives, and serves what was true, or"
            " whose it was, when it was filled."
        ),
        (
            "Use a bounded cache whose key names everything the value depends on, in a shared store if "
            "there are several workers."
        ),
        """
_prices = {}

def price(sku):
    if sku not in _prices:
        _prices[sku] = fetch(sku)
    return _prices[sku]
""",
        """
from functools import lru_cache

@lru_cache(maxsize=1024)
def price(sku):
    return fetch(sku)
""",
    ),
    Rule(
        "ISO007",
        "a cache that depends on the caller, or whose results are changed",
        "error",
        ("The first caller's result is handed to everybody; on a method it also keeps every instance alive."),
        (
            "Cache only pure functions of their arguments, pass the user in as an argument, and copy a "
            "result before changing it."
        ),
        """
from functools import lru_cache
from flask import session

@lru_cache
def plan():
    return load_plan(session['user'])
""",
        """
from flask import session

def plan():
    return load_plan(session['user'])
""",
    ),
    Rule(
        "ISO008",
        "a mutable default argument is changed",
        "error",
        (
            "The default is made once, when the function is defined: every call without that argument gets "
            "the same one."
        ),
        "Default to `None` and make a new one inside.",
        """
def add(item, items=[]):
    items.append(item)
    return items
""",
        """
def add(item, items=None):
    items = [] if items is None else items
    items.append(item)
    return items
""",
    ),
    Rule(
        "ISO009",
        "a variable of an enclosing function is changed",
        "error",
        "A decorator or factory that runs at import has one set of variables, which all requests share.",
        "Keep it in the request, in a store, or guard it with a lock in the same closure.",
        """
def counted(fn):
    calls = 0

    def inner(*args):
        nonlocal calls
        calls += 1
        return fn(*args)
    return inner

@counted
def view():
    return 'ok'
""",
        """
def logged(fn):
    def inner(*args):
        log.info('called')
        return fn(*args)
    return inner

@logged
def view():
    return 'ok'
""",
    ),
    Rule(
        "ISO010",
        "a context variable that leaks",
        "error",
        (
            "A mutable default is one object for all contexts; a value set by a hook and never reset stays "
            "for whoever runs next in that context."
        ),
        "Default to `None`, and `reset` with the token when the request ends.",
        """
from contextvars import ContextVar

spans = ContextVar('spans', default=[])

def trace(name):
    spans.get().append(name)
""",
        """
from contextvars import ContextVar

spans = ContextVar('spans', default=())

def trace(name):
    spans.set((*spans.get(), name))
""",
    ),
    Rule(
        "ISO011",
        "a thread-local that is not cleared",
        "error",
        "Threads are reused: the next request on this thread finds what the last one left.",
        "Clear it in `teardown_request`, or in a `finally` of the middleware that set it.",
        """
import threading
from flask import Flask, request

app = Flask(__name__)
local = threading.local()

@app.before_request
def remember():
    local.user = request.headers.get('X-User')
""",
        """
import threading
from flask import Flask, request

app = Flask(__name__)
local = threading.local()

@app.before_request
def remember():
    local.user = request.headers.get('X-User')

@app.teardown_request
def forget(error):
    local.user = None
""",
    ),
    Rule(
        "ISO012",
        "the application object is changed by a request",
        "error",
        (
            "`app`, its config and its state belong to the process: what a handler puts there, every other "
            "request gets."
        ),
        (
            "Use `g`, `request.state` or the session for what belongs to a request; set the application up "
            "once, before it serves."
        ),
        """
from flask import Flask

app = Flask(__name__)

@app.get('/debug')
def debug():
    app.config['DEBUG_USER'] = 'ann'
    return 'ok'
""",
        """
from flask import Flask, g

app = Flask(__name__)

@app.get('/debug')
def debug():
    g.debug_user = 'ann'
    return 'ok'
""",
    ),
    Rule(
        "ISO013",
        "a module, class or function is patched at run time",
        "error",
        (
            "Whatever is assigned to somebody else's module or class holds for all requests, also for those"
            " that are running."
        ),
        "Pass it as an argument, or make an object of your own that holds it.",
        """
import openai

def ask(key, text):
    openai.api_key = key
    return openai.complete(text)
""",
        """
from openai import OpenAI

def ask(key, text):
    return OpenAI(api_key=key).complete(text)
""",
    ),
    Rule(
        "ISO014",
        "process-wide state is changed",
        "error",
        ("Environment, working directory, locale, random seed and `sys.path` are one for the whole process."),
        "Pass it on as an argument (`env=`, `cwd=`, an own `random.Random`), or set it once at start-up.",
        """
import os

def handler(key):
    os.environ['API_KEY'] = key
""",
        """
def handler(key):
    return Client(api_key=key)
""",
    ),
    Rule(
        "ISO015",
        "sometimes locked, sometimes not",
        "warning",
        "A lock protects only if everybody takes the same one, for reading too.",
        "Take the same lock wherever the object is reached.",
        """
from threading import Lock

lock = Lock()
seats = {}

def book(seat, user):
    with lock:
        seats[seat] = user

def cancel(seat):
    seats.pop(seat, None)
""",
        """
from threading import Lock

lock = Lock()
seats = {}

def book(seat, user):
    with lock:
        seats[seat] = user

def cancel(seat):
    with lock:
        seats.pop(seat, None)
""",
    ),
    Rule(
        "ISO016",
        "a shared client is reconfigured",
        "error",
        (
            "A client at module level may be used by all; one request's token or header on it is sent with "
            "everybody's calls."
        ),
        "Pass headers and keys with the call, or make a client for the request.",
        """
import httpx

client = httpx.Client()

def me(token):
    client.headers['Authorization'] = token
    return client.get('/me')
""",
        """
import httpx

client = httpx.Client()

def me(token):
    return client.get('/me', headers={'Authorization': token})
""",
    ),
    Rule(
        "ISO090",
        "a suppression without a reason",
        "error",
        "Nobody can tell later whether it still holds.",
        "Write why the object may be shared: `# agentapp: shared ok - <reason>`.",
        """
seen = set()  # agentapp: shared ok
""",
        """
seen = set()  # agentapp: shared ok - filled once by the loader thread
""",
    ),
    Rule(
        "ISO091",
        "a suppression of nothing",
        "warning",
        "What it excused is gone; left behind, it would excuse the next hazard on that line.",
        "Remove it.",
        """
LIMIT = 10  # agentapp: shared ok - only read
""",
        """
LIMIT = 10
""",
    ),
    Rule(
        "ISO099",
        "a file that cannot be read as Python",
        "error",
        "Nothing is known about it.",
        "Mend it, or exclude it in `[tool.agentapp.audit]`.",
        """
def broken(:
""",
        """
def mended():
    pass
""",
    ),
)
