"""Whether there is a Redis, and what its keys begin with."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING

from agentapp.errors import SettingError

if TYPE_CHECKING:
    from agentapp.storage.redis_client import Redis

VARIABLE = "AGENTAPP_REDIS_URL"


def find_redis(url: str | None, secret_key: str) -> Redis | None:
    """None without a URL. Nothing is connected here."""
    if url is None:
        return None
    try:
        from agentapp.storage.redis_client import Redis
    except ImportError as error:
        raise SettingError(VARIABLE, "needs redis: install agentapp with its extra redis") from error
    return Redis(url, prefix_for(secret_key))


def prefix_for(secret_key: str) -> str:
    """All hosts of one installation have the same secret key, and two that share a Redis do not."""
    digest = hmac.new(secret_key.encode(), b"agentapp: keys in Redis", hashlib.sha256).hexdigest()
    return f"agentapp:{digest[:16]}:"
