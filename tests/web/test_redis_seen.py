"""What operators see of Redis: /readyz, /metrics, the log and `agentapp doctor`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from flask import Flask

from agentapp.cli.checks.redis_checks import check_redis
from agentapp.config import Settings
from agentapp.web.parts import Parts
from tests.support.redis_server import redis_server
from tests.support.server_users import wait_for
from tests.support.users import person


def test_while_redis_is_away_all_goes_on_and_everything_says_so(
    make_app: Callable[..., Flask], settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with redis_server("--requirepass", "of-redis") as server:
        url = f"redis://:of-redis@127.0.0.1:{server.port}/0"
        wanted = replace(settings, redis_url=url)
        app = make_app(wanted=wanted)
        parts: Parts = app.extensions["agentapp"]
        client, ann = app.test_client(), person(app, "ann")
        chat = ann.new_chat()

        def up() -> str:
            lines = client.get("/metrics").text.splitlines()
            return next(line for line in lines if line.startswith("agentapp_redis_up "))

        def ready() -> tuple[int, str]:
            answer = client.get("/readyz")
            return answer.status_code, answer.text

        assert parts.redis is not None
        parts.redis.start()
        wait_for(lambda: up().endswith(" 1.0"))
        assert ready() == (200, "ready\n")
        assert check_redis(wanted).state == "ok"
        with server.stopped():
            wait_for(lambda: up().endswith(" 0.0"))
            assert ready() == (200, "ready, degraded: redis is away\n")
            assert ann.ask(chat, "hello")["status"] == "completed"
            line = check_redis(wanted)
            assert (line.state, "goes on without it" in line.text) == ("do", True)
        wait_for(lambda: up().endswith(" 1.0"))
        assert ready() == (200, "ready\n")
        assert ann.ask(chat, "hello")["status"] == "completed"
        assert "of-redis" not in caplog.text + line.text
        assert caplog.text.count("Redis is away") == 2, "one of the app, one of doctor"


def test_without_redis_there_is_no_metric_of_it(app: Flask, settings: Settings) -> None:
    assert "redis_up" not in app.test_client().get("/metrics").text
    assert check_redis(settings).state == "ok"
