"""The settings as terms: what each kind of cell is held to."""

from __future__ import annotations

from dataclasses import replace

from agentapp.config import Settings
from agentapp.guardrails.breaker import BreakerPolicy
from agentapp.guardrails.bucket import Rate
from agentapp.guardrails.budget import Allowance
from agentapp.guardrails.cell import NEVER, Terms
from agentapp.guardrails.outage import OutagePolicy
from agentapp.guardrails.sign_in import sign_in_terms


def terms(settings: Settings, lease: float) -> dict[str, Terms]:
    """``lease`` is how long a turn can be under way at most."""

    def breaker(failures: int) -> BreakerPolicy:
        return BreakerPolicy(failures, settings.breaker_cooldown, settings.breaker_cooldown_max, lease=lease)

    session = replace(
        breaker(settings.breaker_failures), share=settings.breaker_share, window=settings.breaker_window
    )
    return {
        "session": Terms(
            session, _rate(settings.rate_session), Allowance(settings.session_tokens), lease=lease
        ),
        "user": Terms(
            breaker(settings.breaker_user_failures),
            _rate(settings.rate_user),
            Allowance(settings.user_day_microusd, "day"),
            settings.concurrent_user,
            lease,
        ),
        "tenant": Terms(
            breaker(NEVER),
            _rate(settings.rate_tenant),
            Allowance(settings.tenant_month_microusd, "month"),
            settings.concurrent_tenant,
            lease,
        ),
        "provider": Terms(
            breaker(NEVER),
            lease=lease,
            outage=OutagePolicy(
                settings.provider_breaker_users,
                settings.provider_breaker_share,
                settings.provider_breaker_window,
            ),
        ),
        **sign_in_terms(_rate(settings.rate_login)),
    }


def _rate(rate: tuple[int, float] | None) -> Rate | None:
    return Rate(*rate) if rate else None
