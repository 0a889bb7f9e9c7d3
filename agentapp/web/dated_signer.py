"""Signed texts that carry the time of their signing, by the database's clock: any host may be shown them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from itsdangerous import SignatureExpired, TimestampSigner


class DatedSigner(TimestampSigner):
    """itsdangerous' own, with a clock. It also refuses what is from the future. We do not: the signature is
    ours, so the host was a moment ahead, or is of an older release and went by its own clock.
    """

    def __init__(self, *args: Any, clock: Callable[[], float], **options: Any) -> None:
        super().__init__(*args, **options)
        self._clock = clock

    def get_timestamp(self) -> int:
        return int(self._clock())

    def unsign(  # type: ignore[override]
        self, signed_value: str | bytes, max_age: int | None = None, return_timestamp: bool = False
    ) -> tuple[bytes, datetime] | bytes:
        value, signed_at = super().unsign(signed_value, return_timestamp=True)
        if max_age is not None and self._clock() - signed_at.timestamp() > max_age:
            raise SignatureExpired("this is too old", payload=value, date_signed=signed_at)
        return (value, signed_at) if return_timestamp else value
