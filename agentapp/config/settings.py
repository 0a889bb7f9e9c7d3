"""Settings: each declared in one place, and frozen.

To add one: a field of `Settings`, and its row in docs/reference.md, which a test compares with the field.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentapp.config.providers import PROVIDERS, choose_provider
from agentapp.config.redis_url import redis_url_or_none
from agentapp.config.webhook import SHORT_KEY_BYTES, signing_key, web_address
from agentapp.instance import MIN_SECRET_BYTES, long_enough_secret
from agentapp.parsing import (
    Price,
    directory,
    flag,
    host_names,
    long_seconds,
    megabytes,
    microusd,
    module_and_name,
    one_of,
    or_off,
    pause,
    price_list,
    rate,
    required_setting,
    seconds,
    setting,
    share,
    supported_database_url,
    text,
    text_or_none,
    web_address_or_none,
    whole,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting of the application. `load` makes one from the environment; tests make their own.

    ``off`` switches a limit off: then it is None.
    """

    instance: Path = required_setting(
        "AGENTAPP_INSTANCE", "instance", directory, "directory for the secret and the SQLite file"
    )
    anthropic_api_key: str | None = setting(
        "ANTHROPIC_API_KEY", "", text_or_none, "the SDK's own", secret=True
    )
    anthropic_base_url: str | None = setting("ANTHROPIC_BASE_URL", "", text_or_none, "the SDK's own")
    provider: str = setting(
        "AGENTAPP_PROVIDER",
        "auto",
        one_of("auto", *(each.name for each in PROVIDERS)),
        "`anthropic` if a key is set, else `demo`",
        default_value=choose_provider("auto", {}),
    )
    database_url: str = required_setting(
        "AGENTAPP_DATABASE_URL",
        "",
        supported_database_url,
        "or `postgresql+psycopg://user:password@host/name`",
        default_in_words="SQLite in the instance directory",
        secret=True,
    )
    db_statement_timeout: float = setting(
        "AGENTAPP_DB_STATEMENT_TIMEOUT",
        "10",
        seconds,
        "seconds the database may take over one statement; migrations may take longer",
    )
    db_lock_timeout: float = setting(
        "AGENTAPP_DB_LOCK_TIMEOUT",
        "10",
        seconds,
        "seconds that PostgreSQL waits for a row or table that somebody else has locked",
    )
    db_idle_transaction_timeout: float = setting(
        "AGENTAPP_DB_IDLE_TRANSACTION_TIMEOUT",
        "5",
        seconds,
        "seconds until PostgreSQL ends a transaction of which nothing is heard, so that its rows are free",
    )
    db_keepalive: int = setting(
        "AGENTAPP_DB_KEEPALIVE",
        "5",
        whole(1, 3_600),
        "seconds of silence after which TCP asks PostgreSQL's machine whether it is there",
    )
    db_tcp_user_timeout: float = setting(
        "AGENTAPP_DB_TCP_USER_TIMEOUT",
        "5",
        seconds,
        "seconds until a connection is given up on which PostgreSQL's machine acknowledges nothing",
    )
    db_pool: int = setting(
        "AGENTAPP_DB_POOL",
        "15",
        whole(8, 1_000),
        "connections of a worker to PostgreSQL at most; those not used for a minute are closed",
    )
    db_pgbouncer: str = setting(
        "AGENTAPP_DB_PGBOUNCER",
        "auto",
        one_of("auto", "0", "1"),
        "`1`: connections are shared between transactions by a pooler; `auto` finds out",
    )
    redis_url: str | None = setting(
        "AGENTAPP_REDIS_URL", "", redis_url_or_none, "such as `rediss://:password@host:6379/0`", secret=True
    )
    secret_key: str = required_setting(
        "AGENTAPP_SECRET_KEY",
        "",
        long_enough_secret,
        f"required on any other address; {MIN_SECRET_BYTES} bytes or more",
        default_in_words="made once in the instance directory (mode 0600) on loopback",
        secret=True,
    )
    hosts: tuple[str, ...] = setting(
        "AGENTAPP_HOSTS",
        "",
        host_names,
        "the names that this server answers to; others get 400",
        default_in_words="any on loopback; on another address `localhost` and IP addresses",
    )
    https: bool = setting("AGENTAPP_HTTPS", "0", flag, "`1` behind TLS: `__Host-` cookie, Secure, HSTS")
    trusted_proxies: int = setting(
        "AGENTAPP_TRUSTED_PROXIES",
        "0",
        whole(0, 10),
        "how many proxies in front may tell the client's address, host and scheme",
    )
    metrics_token: str | None = setting(
        "AGENTAPP_METRICS_TOKEN",
        "",
        text_or_none,
        "what Prometheus sends as `Authorization: Bearer`; without it /metrics answers this machine only",
        secret=True,
    )
    alert_webhook: str | None = setting(
        "AGENTAPP_ALERT_WEBHOOK",
        "",
        web_address,
        "where alerts are sent, signed: an http or https address",
        secret=True,
    )
    alert_webhook_secret: bytes | None = setting(
        "AGENTAPP_ALERT_WEBHOOK_SECRET",
        "",
        signing_key,
        f"what they are signed with, needed with the address; best {SHORT_KEY_BYTES} bytes or more",
        secret=True,
    )
    model: str = setting("AGENTAPP_MODEL", "claude-sonnet-4-6", text, "for agents that name none")
    prompt_cache: bool = setting(
        "AGENTAPP_PROMPT_CACHE", "1", flag, "`0` if a gateway to the provider knows no `cache_control`"
    )
    team: str = setting(
        "AGENTAPP_TEAM",
        "agentapp.agents.shipped:team",
        module_and_name,
        "your own team, as `package.module:name`",
    )
    turn_deadline: float = setting("AGENTAPP_TURN_DEADLINE", "120", seconds, "seconds a turn may take")
    first_token_deadline: float = setting(
        "AGENTAPP_FIRST_TOKEN_DEADLINE", "30", seconds, "seconds the model may take to begin"
    )
    gap_deadline: float = setting(
        "AGENTAPP_GAP_DEADLINE", "15", seconds, "seconds of silence in the middle of an answer"
    )
    tool_deadline: float = setting("AGENTAPP_TOOL_DEADLINE", "5", seconds, "seconds a tool may take")
    demo_delay: float = setting(
        "AGENTAPP_DEMO_DELAY", "0.02", pause, "seconds between two words of the demo model"
    )
    threads: int = setting(
        "AGENTAPP_THREADS",
        "512",
        whole(1, 4096),
        "threads in each; one is busy for as long as it streams an answer, "
        "a waiting one costs next to nothing",
    )
    threads_reserved: int = setting(
        "AGENTAPP_THREADS_RESERVED", "8", whole(0, 4095), "threads of each worker that turns never take"
    )
    half_sent_address: int | None = setting(
        "AGENTAPP_HALF_SENT_ADDRESS",
        "64",
        or_off(whole(1, 100_000)),
        "connections from one address whose request is not complete after 2 seconds; the oldest are closed",
    )
    breaker_cooldown: float = setting(
        "AGENTAPP_BREAKER_COOLDOWN",
        "30",
        seconds,
        "seconds it is paused, doubling while the tries after it fail, with jitter",
    )
    breaker_cooldown_max: float = setting(
        "AGENTAPP_BREAKER_COOLDOWN_MAX", "900", long_seconds, "the longest pause"
    )
    breaker_failures: int = setting(
        "AGENTAPP_BREAKER_FAILURES", "3", whole(1, 1_000), "failures in a row that pause a session"
    )
    breaker_share: float | None = setting(
        "AGENTAPP_BREAKER_SHARE",
        "off",
        or_off(share),
        "also pause a session when this share (over 0, up to 1) of its turns in the window failed",
    )
    breaker_window: float = setting("AGENTAPP_BREAKER_WINDOW", "60", seconds, "seconds of that window")
    breaker_user_failures: int = setting(
        "AGENTAPP_BREAKER_USER_FAILURES",
        "15",
        whole(1, 100_000),
        "failures in a row, over all sessions, that pause a user",
    )
    provider_breaker_users: int = setting(
        "AGENTAPP_PROVIDER_BREAKER_USERS",
        "5",
        whole(2, 200),
        "different users who must fail before the model counts as down",
    )
    provider_breaker_share: float = setting(
        "AGENTAPP_PROVIDER_BREAKER_SHARE", "0.5", share, "share of all turns that must fail for it"
    )
    provider_breaker_window: float = setting(
        "AGENTAPP_PROVIDER_BREAKER_WINDOW", "30", seconds, "seconds in which they must"
    )
    rate_session: tuple[int, float] | None = setting(
        "AGENTAPP_RATE_SESSION",
        "20/minute",
        or_off(rate),
        "messages; `10/15minutes`, `1000/day` and the like",
    )
    rate_user: tuple[int, float] | None = setting(
        "AGENTAPP_RATE_USER", "60/minute", or_off(rate), "messages of a user"
    )
    rate_tenant: tuple[int, float] | None = setting(
        "AGENTAPP_RATE_TENANT", "600/minute", or_off(rate), "messages of a tenant"
    )
    rate_chats: tuple[int, float] | None = setting(
        "AGENTAPP_RATE_CHATS", "120/minute", or_off(rate), "new chats of a user"
    )
    rate_login: tuple[int, float] | None = setting(
        "AGENTAPP_RATE_LOGIN",
        "10/15minutes",
        or_off(rate),
        "failed sign-ins for a name; five times as many for an address, six times as many sign-ins in all",
    )
    turn_tokens: int | None = setting(
        "AGENTAPP_BUDGET_TURN_TOKENS",
        "50000",
        or_off(whole(1, 10**9)),
        "tokens a turn may use, over all its model calls",
    )
    session_tokens: int | None = setting(
        "AGENTAPP_BUDGET_SESSION_TOKENS", "1000000", or_off(whole(1, 10**12)), "tokens a session may use"
    )
    user_day_microusd: int | None = setting(
        "AGENTAPP_BUDGET_USER_DAY_USD", "5", or_off(microusd), "dollars a user may spend in a day (UTC)"
    )
    tenant_month_microusd: int | None = setting(
        "AGENTAPP_BUDGET_TENANT_MONTH_USD",
        "500",
        or_off(microusd),
        "dollars a tenant may spend in a month (UTC)",
    )
    prices: tuple[Price, ...] = setting(
        "AGENTAPP_PRICES",
        "",
        price_list,
        "`claude-sonnet-4=3/15,my-model=0.5/1.5/0.05/0.6`: dollars per million tokens in and out (and read "
        "from and written to the provider's cache), by the beginning of the model's name",
        default_in_words="list prices",
    )
    concurrent_user: int | None = setting(
        "AGENTAPP_CONCURRENT_USER",
        "4",
        or_off(whole(1, 100_000)),
        "turns of a user that may run at once; of a session it is always one",
    )
    concurrent_tenant: int | None = setting(
        "AGENTAPP_CONCURRENT_TENANT",
        "off",
        or_off(whole(1, 100_000)),
        "turns of a tenant that may run at once",
    )
    streams_user: int | None = setting(
        "AGENTAPP_STREAMS_USER",
        "32",
        or_off(whole(1, 100_000)),
        "streams of a user that may be open at once; the oldest that only follows gives way to a new one",
    )
    pages_user: int | None = setting(
        "AGENTAPP_PAGES_USER",
        "16",
        or_off(whole(1, 100_000)),
        "requests of a user that may be under way at once, besides messages and streams",
    )
    tool_calls_turn: int | None = setting(
        "AGENTAPP_TOOL_CALLS_TURN", "20", or_off(whole(1, 100_000)), "calls of any one tool in a turn"
    )
    tool_calls_session: int | None = setting(
        "AGENTAPP_TOOL_CALLS_SESSION", "off", or_off(whole(1, 10**9)), "calls of any one tool in a session"
    )
    storage_user_bytes: int | None = setting(
        "AGENTAPP_STORAGE_USER_MB", "200", or_off(megabytes), "megabytes a user may keep"
    )
    storage_tenant_bytes: int | None = setting(
        "AGENTAPP_STORAGE_TENANT_MB", "off", or_off(megabytes), "megabytes all users of a tenant may keep"
    )
    disk_reserve_bytes: int | None = setting(
        "AGENTAPP_DISK_RESERVE_MB", "64", or_off(megabytes), "megabytes of SQLite's disk that stay free"
    )
    retain_sessions_days: int | None = setting(
        "AGENTAPP_RETAIN_SESSIONS_DAYS",
        "off",
        or_off(whole(1, 36_500)),
        "days after which an unused chat is deleted, unless it is pinned; a tenant may have its own",
    )
    retain_audit_days: int | None = setting(
        "AGENTAPP_RETAIN_AUDIT_DAYS",
        "365",
        or_off(whole(1, 36_500)),
        "days after which a row of the audit log is deleted; a tenant may have its own",
    )
    registry_cap: int = setting(
        "AGENTAPP_REGISTRY_CAP", "1000", whole(4, 10_000_000), "cells a worker keeps in memory"
    )
    registry_cleanup_every: int = setting(
        "AGENTAPP_REGISTRY_CLEANUP_EVERY",
        "100",
        whole(1, 1_000_000),
        "turns between two clean-ups of that memory",
    )
    otlp_endpoint: str | None = setting(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "",
        web_address_or_none,
        "OpenTelemetry's own: where traces are sent over HTTP, if `agentapp[otel]` is installed",
    )
    trace_content: bool = setting(
        "AGENTAPP_TRACE_CONTENT", "0", flag, "`1`: traces also carry what people, models and tools said"
    )
