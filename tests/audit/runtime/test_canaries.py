"""The mode `canary`: marks of a request that are found after its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentapp.audit.runtime import HEADER, Watch, canary
from tests.audit.support.sites import Site, body_of, in_threads

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
    # It is reported only once.
    leaky.take()
    leaky.get("/openly")
    assert leaky.take() == []


@pytest.mark.parametrize(
    "kept", ["here.headers.get('X-Agentapp-Canary')", "here.full_path", "dict(here.environ)", "here"]
)
def test_every_request_gets_a_mark(site: Callable[..., Site], kept: str) -> None:
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


def test_a_mark_left_by_a_background_thread_is_found_by_the_next_request(site: Callable[..., Site]) -> None:
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


def test_a_mark_is_no_leak_while_its_request_is_in_progress(site: Callable[..., Site]) -> None:
    """Sixteen requests store a mark while they work and remove it; then sixteen do not remove it."""
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


def test_a_request_that_ends_during_a_search_is_not_reported(
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


def test_a_mark_in_a_cached_result_is_found(site: Callable[..., Site]) -> None:
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
