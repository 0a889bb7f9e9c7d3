"""What the detector does not report, and its options."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from agentapp.audit.runtime import LeakMiddleware, Watch, canary
from tests.audit.support.sites import HEAD, TAIL, Imports, Site, body_of

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


def test_changes_between_requests_are_not_reported(site: Callable[..., Site]) -> None:
    clean = site("HISTORY = []\n")
    clean.get("/")
    clean.module.HISTORY.append(1)
    clean.get("/")
    assert clean.places() == []


def test_requests_during_warmup_are_not_reported(site: Callable[..., Site]) -> None:
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
def test_a_package_that_is_not_loaded_gives_a_warning(caplog: pytest.LogCaptureFixture, mode: Any) -> None:
    body_of(LeakMiddleware(lambda environ, start: [b"x"], ("no_such_package",), mode=mode)).close()
    assert "no loaded module of no_such_package" in caplog.text


def test_without_a_report_function_changes_are_logged(
    imported: Imports, caplog: pytest.LogCaptureFixture
) -> None:
    module = imported(HEAD + TAIL)
    module.app.wsgi_app = LeakMiddleware(module.app.wsgi_app, (module.__name__,))
    module.app.test_client().get("/openly", buffered=True)
    (record,) = [record for record in caplog.records if record.name.startswith("agentapp.audit")]
    assert record.levelno == logging.WARNING
    assert f"{module.__name__}.OPENLY grew (list of 0 -> list of 1), during GET /openly" in record.message
