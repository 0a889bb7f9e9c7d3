"""Redis: whether it can be used, and how quickly it answers."""

from __future__ import annotations

import time

from agentapp.cli.checks.line import Line, do, note, ok
from agentapp.config import Settings
from agentapp.errors import RedisAway
from agentapp.storage.redis_choice import find_redis

SLOW_SECONDS = 0.02  # every message asks it some times


def check_redis(settings: Settings) -> Line:
    redis = find_redis(settings.redis_url, settings.secret_key)
    if redis is None:
        return ok("redis", "none: AGENTAPP_REDIS_URL is not set")
    try:
        redis.call("PING")
        began = time.monotonic()
        redis.call("PING")
        took = time.monotonic() - began
    except RedisAway as error:
        return do("redis", f"{error}. Everything goes on without it, and is slower to follow")
    finally:
        redis.close()
    said = f"answers in {took * 1000:.1f} ms; all our keys begin with {redis.prefix}"
    if took > SLOW_SECONDS:
        return note("redis", f"{said}. Every message asks it some times, so it should be nearer")
    return ok("redis", said)
