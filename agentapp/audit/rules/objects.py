"""ISO001 to ISO009: objects that modules, classes or functions keep and all requests share."""

from __future__ import annotations

from agentapp.audit.rules.rule import Rule

RULES = (
    Rule(
        "ISO001",
        "a module-level object is changed",
        "error",
        why=(
            "Every request in the process sees and changes the same object, so one user's data ends up in "
            "another's answer."
        ),
        fix=(
            "Make it in the request and pass it on, or keep it in a database or Redis under the user's own "
            "key."
        ),
        bad="""
            HISTORY = []

            def chat(text):
                HISTORY.append(text)
        """,
        good="""
            def chat(history, text):
                return [*history, text]
        """,
    ),
    Rule(
        "ISO002",
        "a module-level name is rebound",
        "error",
        why="`global` makes the last request's value everybody's value, and read-then-write loses updates.",
        fix="Return the value, keep it in the request's own object, or in a ContextVar that is reset.",
        bad="""
            current_user = None

            def login(user):
                global current_user
                current_user = user
        """,
        good="""
            def login(request, user):
                request.user = user
        """,
    ),
    Rule(
        "ISO003",
        "a class attribute is changed",
        "error",
        why="A class attribute belongs to all instances: what one of them appends, all the others have.",
        fix="Set it in `__init__`, or use `field(default_factory=...)` in a dataclass.",
        bad="""
            class Cart:
                items = []

                def add(self, item):
                    self.items.append(item)
        """,
        good="""
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
        why="A module-level agent, breaker, limiter or history has one state for everybody.",
        fix=(
            "Make a new one for each request (a factory), or keep its state in a store under the session's "
            "key, or guard all of it with one lock."
        ),
        bad="""
            class Agent:
                def __init__(self):
                    self.turns = 0

                def run(self):
                    self.turns += 1

            agent = Agent()

            def view():
                agent.run()
        """,
        good="""
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
        why="Two first requests both find nothing and both make one; half-made objects are seen by others.",
        fix="Make it at import or at start-up, or ask again under a lock (double-checked).",
        bad="""
            _model = None

            def model():
                global _model
                if _model is None:
                    _model = load()
                return _model
        """,
        good="""
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
        why=(
            "A dict that requests fill grows for as long as the process lives, and serves what was true, or "
            "whose it was, when it was filled."
        ),
        fix=(
            "Use a bounded cache whose key names everything the value depends on, in a shared store if there "
            "are several workers."
        ),
        bad="""
            _prices = {}

            def price(sku):
                if sku not in _prices:
                    _prices[sku] = fetch(sku)
                return _prices[sku]
        """,
        good="""
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
        why=(
            "The first caller's result is handed to everybody; on a method it also keeps every instance "
            "alive."
        ),
        fix=(
            "Cache only pure functions of their arguments, pass the user in as an argument, and copy a "
            "result before changing it."
        ),
        bad="""
            from functools import lru_cache
            from flask import session

            @lru_cache
            def plan():
                return load_plan(session['user'])
        """,
        good="""
            from flask import session

            def plan():
                return load_plan(session['user'])
        """,
    ),
    Rule(
        "ISO008",
        "a mutable default argument is changed",
        "error",
        why=(
            "The default is made once, when the function is defined: every call without that argument gets "
            "the same one."
        ),
        fix="Default to `None` and make a new one inside.",
        bad="""
            def add(item, items=[]):
                items.append(item)
                return items
        """,
        good="""
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
        why="A decorator or factory that runs at import has one set of variables, which all requests share.",
        fix="Keep it in the request, in a store, or guard it with a lock in the same closure.",
        bad="""
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
        good="""
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
)
