"""ISO010 to ISO016: the surroundings of a request: context, thread, application, process, locks, clients."""

from __future__ import annotations

from agentapp.audit.rules.rule import Rule

RULES = (
    Rule(
        "ISO010",
        "a context variable that leaks",
        "error",
        why=(
            "A mutable default is one object for all contexts; a value set by a hook and never reset stays "
            "for whoever runs next in that context."
        ),
        fix="Default to `None`, and `reset` with the token when the request ends.",
        bad="""
            from contextvars import ContextVar

            spans = ContextVar('spans', default=[])

            def trace(name):
                spans.get().append(name)
        """,
        good="""
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
        why="Threads are reused: the next request on this thread finds what the last one left.",
        fix="Clear it in `teardown_request`, or in a `finally` of the middleware that set it.",
        bad="""
            import threading
            from flask import Flask, request

            app = Flask(__name__)
            local = threading.local()

            @app.before_request
            def remember():
                local.user = request.headers.get('X-User')
        """,
        good="""
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
        why=(
            "`app`, its config and its state belong to the process: what a handler puts there, every other "
            "request gets."
        ),
        fix=(
            "Use `g`, `request.state` or the session for what belongs to a request; set the application up "
            "once, before it serves."
        ),
        bad="""
            from flask import Flask

            app = Flask(__name__)

            @app.get('/debug')
            def debug():
                app.config['DEBUG_USER'] = 'ann'
                return 'ok'
        """,
        good="""
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
        why=(
            "Whatever is assigned to somebody else's module or class holds for all requests, also for those "
            "that are running."
        ),
        fix="Pass it as an argument, or make an object of your own that holds it.",
        bad="""
            import openai

            def ask(key, text):
                openai.api_key = key
                return openai.complete(text)
        """,
        good="""
            from openai import OpenAI

            def ask(key, text):
                return OpenAI(api_key=key).complete(text)
        """,
    ),
    Rule(
        "ISO014",
        "process-wide state is changed",
        "error",
        why=(
            "Environment, working directory, locale, random seed and `sys.path` are one for the whole "
            "process."
        ),
        fix="Pass it on as an argument (`env=`, `cwd=`, an own `random.Random`), or set it once at start-up.",
        bad="""
            import os

            def handler(key):
                os.environ['API_KEY'] = key
        """,
        good="""
            def handler(key):
                return Client(api_key=key)
        """,
    ),
    Rule(
        "ISO015",
        "sometimes locked, sometimes not",
        "warning",
        why="A lock protects only if everybody takes the same one, for reading too.",
        fix="Take the same lock wherever the object is reached.",
        bad="""
            from threading import Lock

            lock = Lock()
            seats = {}

            def book(seat, user):
                with lock:
                    seats[seat] = user

            def cancel(seat):
                seats.pop(seat, None)
        """,
        good="""
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
        why=(
            "A client at module level may be used by all; one request's token or header on it is sent with "
            "everybody's calls."
        ),
        fix="Pass headers and keys with the call, or make a client for the request.",
        bad="""
            import httpx

            client = httpx.Client()

            def me(token):
                client.headers['Authorization'] = token
                return client.get('/me')
        """,
        good="""
            import httpx

            client = httpx.Client()

            def me(token):
                return client.get('/me', headers={'Authorization': token})
        """,
    ),
)
