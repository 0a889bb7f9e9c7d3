"""What a part can report, and the twin that reports to nobody."""

from __future__ import annotations

from typing import Protocol


class Telemetry(Protocol):
    """``name`` is a metric's name without the prefix; labels are few and never name a person."""

    def count(self, name: str, amount: float = 1, /, *, tenant_id: str = "", **labels: str) -> None:
        """Something happened, so many times; in this tenant, if its admins are to see it."""

    def observe(self, name: str, value: float, /, **labels: str) -> None:
        """Something took so long, or was so large."""

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        """There are so many of something now."""

    def check(self, amount: int = 1, /, *, tenant_id: str = "") -> None:
        """So many checks of isolation were made; in this tenant, as above."""

    def request_checked(self, *, tenant_id: str = "") -> None:
        """One more request has gone through all checks."""

    def violation(self, kind: str, detail: str, /, request_id: str = "", *, tenant_id: str = "") -> None:
        """A check has found that isolation was broken, or nearly was. That is an alert too."""

    def alert(self, kind: str, detail: str, /, *, subject: str = "", tenant_id: str | None = None) -> None:
        """A person has to look at this. ``kind`` is one of `telemetry.alerts.SEVERITIES`; alerts of one kind
        and subject are one until somebody has looked.
        """


class NullTelemetry:
    def count(self, name: str, amount: float = 1, /, *, tenant_id: str = "", **labels: str) -> None:
        pass

    def observe(self, name: str, value: float, /, **labels: str) -> None:
        pass

    def gauge(self, name: str, value: float, /, **labels: str) -> None:
        pass

    def check(self, amount: int = 1, /, *, tenant_id: str = "") -> None:
        pass

    def request_checked(self, *, tenant_id: str = "") -> None:
        pass

    def violation(self, kind: str, detail: str, /, request_id: str = "", *, tenant_id: str = "") -> None:
        pass

    def alert(self, kind: str, detail: str, /, *, subject: str = "", tenant_id: str | None = None) -> None:
        pass
