"""The settings as policies: which limits the cells of each scope are held to."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from agentapp.config import Settings
from agentapp.guardrails.breaker import BreakerPolicy
from agentapp.guardrails.bucket import Rate
from agentapp.guardrails.budget import Allowance
from agentapp.guardrails.cell import NEVER, CellPolicy
from agentapp.guardrails.new_chats import new_chat_policies
from agentapp.guardrails.outage import OutagePolicy
from agentapp.guardrails.sign_in import sign_in_policies


def cell_policies(settings: Settings, longest_turn: float) -> dict[str, CellPolicy]:
    """``longest_turn`` is how many seconds a turn can take at most. After that, what a turn reserved and did
    not give back is forgotten.
    """

    def breaker(failures: int) -> BreakerPolicy:
        return BreakerPolicy(
            failures, settings.breaker_cooldown, settings.breaker_cooldown_max, lease=longest_turn
        )

    outage = OutagePolicy(
        settings.provider_breaker_users, settings.provider_breaker_share, settings.provider_breaker_window
    )
    return {
        "session": CellPolicy(
            breaker=replace(
                breaker(settings.breaker_failures),
                share=settings.breaker_share,
                window=settings.breaker_window,
            ),
            rate=_rate(settings.rate_session),
            allowance=Allowance(settings.session_tokens),
            lease=longest_turn,
        ),
        "user": CellPolicy(
            breaker=breaker(settings.breaker_user_failures),
            rate=_rate(settings.rate_user),
            allowance=Allowance(settings.user_day_microusd, "day"),
            concurrent=settings.concurrent_user,
            lease=longest_turn,
        ),
        "tenant": CellPolicy(
            breaker=breaker(NEVER),
            rate=_rate(settings.rate_tenant),
            allowance=Allowance(settings.tenant_month_microusd, "month"),
            concurrent=settings.concurrent_tenant,
            lease=longest_turn,
            outage=outage,
        ),
        "provider": CellPolicy(
            breaker=breaker(NEVER),
            lease=longest_turn,
            # No tenant has more than half of the votes, so that none opens it for the others.
            outage=replace(outage, users_per_tenant=ceil(outage.users / 2)),
        ),
        **sign_in_policies(_rate(settings.rate_login)),
        **new_chat_policies(_rate(settings.rate_chats)),
    }


def _rate(rate: tuple[int, float] | None) -> Rate | None:
    return Rate(*rate) if rate else None


def longest_turn(settings: Settings) -> float:
    """Longer than a turn can possibly take, in seconds."""
    silence = max(settings.first_token_deadline, settings.gap_deadline)
    return settings.turn_deadline + silence + settings.tool_deadline + 15
