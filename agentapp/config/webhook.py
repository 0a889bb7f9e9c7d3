"""The settings of the webhook that alerts are sent to: how they are read, and that they come together."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from agentapp.errors import SettingError
from agentapp.parsing import Setting

SHORT_KEY_BYTES = 16  # a shorter one can be guessed by who has seen a message
BASE64_KEY = "whsec_"


def web_address(value: str) -> str | None:
    """An http or https address."""
    if not value:
        return None
    try:
        parts = urlsplit(value)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_usable = False
    if not is_usable or "@" in parts.netloc or parts.fragment or not re.fullmatch(r"[!-~]+", value):
        raise ValueError("must be an http or https address without a user, a fragment or spaces")
    return value


def signing_key(value: str) -> bytes | None:
    """The bytes of the text; or those that it is the base64 of, if it begins as such keys are written."""
    key = value.encode()
    if value.startswith(BASE64_KEY):
        try:
            key = base64.b64decode(value.removeprefix(BASE64_KEY), validate=True)
        except ValueError:
            raise ValueError(f"must be base64 after {BASE64_KEY}") from None
    return key or None


def key_for(webhook: str | None, declared: Setting[bytes | None], environ: Mapping[str, str]) -> bytes | None:
    """With the address or not at all: alerts are never sent unsigned, and a secret alone would do nothing."""
    key = declared.read(environ)
    if webhook is not None and key is None:
        raise SettingError(declared.variable, "needed because AGENTAPP_ALERT_WEBHOOK is set")
    if webhook is None and key is not None:
        raise SettingError("AGENTAPP_ALERT_WEBHOOK", "needed because AGENTAPP_ALERT_WEBHOOK_SECRET is set")
    return key
