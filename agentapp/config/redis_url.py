"""The address of a Redis: `redis://` or `rediss://`, with a user, a password and the number of a database."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, urlsplit

# What may follow a `?`. All of them are about TLS: time-outs and tries are decided by `storage.redis_client`.
OPTIONS = ("ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile", "ssl_check_hostname", "ssl_keyfile")


def redis_url_or_none(value: str) -> str | None:
    return redis_url(value) if value else None


def redis_url(value: str) -> str:
    """The error says nothing of the address, which may carry a password."""
    parts = urlsplit(value)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname or parts.fragment:
        raise ValueError("must look like redis://:password@host:6379/0, or rediss:// with TLS")
    try:
        parts.port  # noqa: B018 - it is checked when it is read
    except ValueError:
        raise ValueError("must name a port from 0 to 65535") from None
    if not re.fullmatch(r"/?|/[0-9]{1,4}", parts.path):
        raise ValueError("must end in the number of a database, such as /0, or in none")
    for name, _ in parse_qsl(parts.query, keep_blank_values=True):
        if name not in OPTIONS:
            raise ValueError(f"may be followed only by the options {', '.join(OPTIONS)}")
    if parts.query and parts.scheme != "rediss":
        raise ValueError("has options of TLS, so it must begin with rediss://")
    return value
