"""`agentapp doctor --url`: a running server as its users reach it, through proxies set up well or badly."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from werkzeug.serving import make_server

from agentapp.app import create_app
from agentapp.cli.checks import served_checks
from agentapp.config import Settings
from tests.support.commands import Agentapp
from tests.support.server import free_port

PEM = Path(__file__).parents[1] / "support" / "localhost.pem"

WsgiApp = Callable[[dict[str, Any], Any], Iterable[bytes]]


CANNOT = "database: it cannot be reached or used"


@contextmanager
def served(app: WsgiApp, *, tls: bool = False) -> Iterator[str]:
    """The app on a port of this machine: the address that people would type."""
    context = (str(PEM), str(PEM)) if tls else None
    running = make_server("127.0.0.1", 0, app, ssl_context=context)  # type: ignore[arg-type]
    thread = threading.Thread(target=running.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"{'https' if tls else 'http'}://{'localhost' if tls else '127.0.0.1'}:{running.server_port}"
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def behind(app: WsgiApp, **changed: str) -> WsgiApp:
    """A proxy that passes these on instead of what came."""

    def proxy(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        return app({**environ, **changed}, start)

    return proxy


def found_at(url: str) -> dict[str, tuple[str, str]]:
    return {line.check: (line.state, line.text) for line in served_checks.check_served(url)}


def states(url: str) -> dict[str, str]:
    return {check.removeprefix("served "): state for check, (state, _) in found_at(url).items()}


ALL_WELL = {"served": "ok", "host": "ok", "forms": "ok", "https": "ok", "metrics": "ok"}


@pytest.fixture(autouse=True)
def trusted_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(PEM))


def test_a_server_on_this_machine_is_well(app: Flask) -> None:
    with served(app) as url:
        assert states(url) == ALL_WELL
        assert states(f"{url}/") == ALL_WELL


def test_a_server_behind_tls_is_well_and_one_that_does_not_know_of_it_is_not(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    with served(make_app(wanted=replace(settings, https=True, hosts=("localhost",))), tls=True) as url:
        assert states(url) == ALL_WELL
    plain = behind(make_app(), **{"wsgi.url_scheme": "http"})
    with served(plain, tls=True) as url:
        assert states(url) == ALL_WELL | {"forms": "do", "https": "do"}
        assert "AGENTAPP_HTTPS=1" in found_at(url)["served forms"][1]


def test_by_http_nobody_can_sign_in_to_a_server_for_tls(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    with served(make_app(wanted=replace(settings, https=True))) as url:
        state, text = found_at(url)["served https"]
        assert (state, "nobody can sign in by http://" in text) == ("do", True)


def test_a_host_that_the_server_does_not_answer_to(
    make_app: Callable[..., Flask], settings: Settings
) -> None:
    with served(make_app(wanted=replace(settings, hosts=("chat.example.org",)))) as url:
        lines = found_at(url)
        assert lines["served host"][0] == "do"
        assert "AGENTAPP_HOSTS must have it" in lines["served host"][1]
        assert set(lines) == {"served", "served host"}


def test_a_proxy_that_does_not_pass_the_host_on(app: Flask) -> None:
    with served(behind(app, HTTP_HOST="backend:8000")) as url:
        state, text = found_at(url)["served forms"]
        assert state == "do"
        assert "proxy_set_header Host $http_host" in text


def test_metrics_that_the_proxy_shows_to_everybody_and_passwords_that_travel_readable(
    make_app: Callable[..., Flask], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served_checks, "_is_this_machine", lambda host: False)
    with served(make_app()) as url:
        lines = found_at(url)
        assert (lines["served metrics"][0], lines["served https"][0]) == ("do", "do")
    with served(make_app(wanted=replace(settings, metrics_token="a token of mine"))) as url:
        assert found_at(url)["served metrics"][0] == "ok"
    with served(behind(make_app(), HTTP_X_FORWARDED_FOR="192.0.2.1")) as url:
        assert found_at(url)["served metrics"][0] == "ok"


def test_a_database_that_is_away(tmp_path: Path, settings: Settings) -> None:
    away = replace(settings, database_url=f"postgresql+psycopg://me@127.0.0.1:{free_port()}/x")
    app = create_app(away)
    with served(app) as url:
        assert found_at(url)["served"] == ("do", f"{url} is alive, but not ready ({CANNOT})")
    app.extensions["agentapp"].close()


def test_what_is_no_agentapp_and_what_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("502 Bad Gateway", [])
        return [b"nothing behind"]

    with served(other) as url:
        state, text = found_at(url)["served"]
        assert (state, "answers 502, and not as agentapp" in text) == ("do", True)
    gone = f"http://127.0.0.1:{free_port()}"
    assert found_at(gone) == {"served": ("do", f"{gone} cannot be reached (ConnectionRefusedError)")}
    with served(other) as url:
        tls = url.replace("http://", "https://")
        assert "TLS fails" in found_at(tls)["served"][1]
    assert found_at("http://127.0.0.1:99999")["served"][0] == "do"
    monkeypatch.delenv("SSL_CERT_FILE")
    with served(other, tls=True) as url:
        assert "TLS fails (CERTIFICATE_VERIFY_FAILED)" in found_at(url)["served"][1]


def test_nothing_is_changed_by_asking(app: Flask, agentapp: Agentapp, settings: Settings) -> None:
    def stored() -> list[bytes]:
        return [each.read_bytes() for each in sorted(settings.instance.glob("test.sqlite3*"))]

    with served(app) as url:
        app.test_client().get("/readyz")  # the server has the database open
        before = stored()
        done = agentapp("doctor", "--url", url)
        assert "ok    served forms" in done.stdout
        assert stored() == before
