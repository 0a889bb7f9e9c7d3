from __future__ import annotations

from dataclasses import replace

from flask import Flask

from agentapp.app import create_app
from agentapp.config import Settings
from agentapp.web.parts import Parts
from agentapp.web.warm_up import warm_up


def test_no_request_is_the_first_to_compile_a_template_or_to_sort_the_addresses(app: Flask) -> None:
    warm_up(app)
    compiled = {name for _, name in app.jinja_env.cache or ()}
    assert compiled == set(app.jinja_env.list_templates())
    assert not app.url_map._remap


def test_it_leaves_a_connection_open_and_nothing_bound(app: Flask, parts: Parts) -> None:
    warm_up(app)
    assert parts.db.open_readers() == 0
    assert parts.db.engine.pool.checkedin() > 0  # type: ignore[attr-defined]
    assert parts.binder._get() is None


def test_a_database_that_is_away_is_no_reason_not_to_start(settings: Settings) -> None:
    away = create_app(replace(settings, database_url="sqlite:////nowhere/at/all.sqlite3"))
    warm_up(away)
    away.extensions["agentapp"].close()
