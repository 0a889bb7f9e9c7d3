"""Settings: what each variable does, what a bad value says, and the secret that is made once."""

from __future__ import annotations

import multiprocessing
import re
import stat
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from agentapp import config
from agentapp.errors import SettingError, StartError
from agentapp.instance import MIN_SECRET_BYTES
from agentapp.parsing import ADDRESSES, settings_of
from agentapp.server import options
from agentapp.telemetry import log_options
from tests.support.secrets import ROUNDS, load_secrets

SECRET = "s" * 32

GOOD: dict[str, tuple[str, str, Any]] = {
    "AGENTAPP_INSTANCE": ("/srv/one", "instance", Path("/srv/one")),
    "AGENTAPP_DATABASE_URL": ("postgresql+psycopg://u@h/d", "database_url", "postgresql+psycopg://u@h/d"),
    "AGENTAPP_DB_STATEMENT_TIMEOUT": ("2.5", "db_statement_timeout", 2.5),
    "AGENTAPP_DB_LOCK_TIMEOUT": ("3", "db_lock_timeout", 3.0),
    "AGENTAPP_DB_IDLE_TRANSACTION_TIMEOUT": ("7.5", "db_idle_transaction_timeout", 7.5),
    "AGENTAPP_DB_KEEPALIVE": ("20", "db_keepalive", 20),
    "AGENTAPP_DB_TCP_USER_TIMEOUT": ("30", "db_tcp_user_timeout", 30.0),
    "AGENTAPP_DB_POOL": ("40", "db_pool", 40),
    "AGENTAPP_DB_PGBOUNCER": ("1", "db_pgbouncer", "1"),
    "AGENTAPP_REDIS_URL": ("rediss://:p@h:6380/2", "redis_url", "rediss://:p@h:6380/2"),
    "AGENTAPP_SECRET_KEY": ("k" * 40, "secret_key", "k" * 40),
    "AGENTAPP_HOSTS": (
        "Chat.Example.org., 192.0.2.1,[2001:DB8::0:1],::1",
        "hosts",
        ("chat.example.org", "192.0.2.1", "2001:db8::1", "::1"),
    ),
    "AGENTAPP_HTTPS": ("1", "https", True),
    "AGENTAPP_TRUSTED_PROXIES": ("2", "trusted_proxies", 2),
    "AGENTAPP_METRICS_TOKEN": ("secret token", "metrics_token", "secret token"),
    "AGENTAPP_PROVIDER": ("demo", "provider", "demo"),
    "AGENTAPP_MODEL": ("other-model", "model", "other-model"),
    "ANTHROPIC_API_KEY": ("key", "anthropic_api_key", "key"),
    "ANTHROPIC_BASE_URL": ("http://127.0.0.1:9", "anthropic_base_url", "http://127.0.0.1:9"),
    "AGENTAPP_TEAM": ("pack.mod:team", "team", "pack.mod:team"),
    "AGENTAPP_TURN_DEADLINE": ("7.5", "turn_deadline", 7.5),
    "AGENTAPP_FIRST_TOKEN_DEADLINE": ("3", "first_token_deadline", 3.0),
    "AGENTAPP_GAP_DEADLINE": ("2", "gap_deadline", 2.0),
    "AGENTAPP_TOOL_DEADLINE": ("1", "tool_deadline", 1.0),
    "AGENTAPP_PROMPT_CACHE": ("0", "prompt_cache", False),
    "AGENTAPP_DEMO_DELAY": ("0", "demo_delay", 0.0),
    "AGENTAPP_THREADS": ("64", "threads", 64),
    "AGENTAPP_THREADS_RESERVED": ("0", "threads_reserved", 0),
    "AGENTAPP_HALF_SENT_ADDRESS": ("8", "half_sent_address", 8),
    "AGENTAPP_BREAKER_FAILURES": ("1", "breaker_failures", 1),
    "AGENTAPP_BREAKER_COOLDOWN": ("0.5", "breaker_cooldown", 0.5),
    "AGENTAPP_BREAKER_COOLDOWN_MAX": ("86400", "breaker_cooldown_max", 86_400.0),
    "AGENTAPP_BREAKER_SHARE": ("0.25", "breaker_share", 0.25),
    "AGENTAPP_BREAKER_WINDOW": ("10", "breaker_window", 10.0),
    "AGENTAPP_BREAKER_USER_FAILURES": ("100", "breaker_user_failures", 100),
    "AGENTAPP_PROVIDER_BREAKER_USERS": ("2", "provider_breaker_users", 2),
    "AGENTAPP_PROVIDER_BREAKER_SHARE": ("1", "provider_breaker_share", 1.0),
    "AGENTAPP_PROVIDER_BREAKER_WINDOW": ("90", "provider_breaker_window", 90.0),
    "AGENTAPP_RATE_SESSION": ("1/second", "rate_session", (1, 1.0)),
    "AGENTAPP_ALERT_WEBHOOK": ("http://h:8/a?b=c", "alert_webhook", "http://h:8/a?b=c"),
    "AGENTAPP_ALERT_WEBHOOK_SECRET": ("k" * 16, "alert_webhook_secret", b"k" * 16),
    "AGENTAPP_RATE_USER": ("300/2hours", "rate_user", (300, 7_200.0)),
    "AGENTAPP_RATE_TENANT": ("100000/day", "rate_tenant", (100_000, 86_400.0)),
    "AGENTAPP_RATE_CHATS": ("10/hour", "rate_chats", (10, 3_600.0)),
    "AGENTAPP_RATE_LOGIN": ("5/30minutes", "rate_login", (5, 1_800.0)),
    "AGENTAPP_BUDGET_TURN_TOKENS": ("1", "turn_tokens", 1),
    "AGENTAPP_BUDGET_SESSION_TOKENS": ("9000", "session_tokens", 9_000),
    "AGENTAPP_BUDGET_USER_DAY_USD": ("0.50", "user_day_microusd", 500_000),
    "AGENTAPP_BUDGET_TENANT_MONTH_USD": ("1000", "tenant_month_microusd", 1_000_000_000),
    "AGENTAPP_PRICES": (
        "a=3/15, b-2=0.5/0/0.05/1",
        "prices",
        (("a", 3.0, 15.0), ("b-2", 0.5, 0.0, 0.05, 1.0)),
    ),
    "AGENTAPP_CONCURRENT_USER": ("1", "concurrent_user", 1),
    "AGENTAPP_CONCURRENT_TENANT": ("50", "concurrent_tenant", 50),
    "AGENTAPP_STREAMS_USER": ("2", "streams_user", 2),
    "AGENTAPP_STORAGE_USER_MB": ("0.5", "storage_user_bytes", 500_000),
    "AGENTAPP_STORAGE_TENANT_MB": ("5000", "storage_tenant_bytes", 5_000_000_000),
    "AGENTAPP_DISK_RESERVE_MB": ("1", "disk_reserve_bytes", 1_000_000),
    "AGENTAPP_PAGES_USER": ("5", "pages_user", 5),
    "AGENTAPP_TOOL_CALLS_TURN": ("3", "tool_calls_turn", 3),
    "AGENTAPP_TOOL_CALLS_SESSION": ("30", "tool_calls_session", 30),
    "AGENTAPP_REGISTRY_CAP": ("4", "registry_cap", 4),
    "AGENTAPP_REGISTRY_CLEANUP_EVERY": ("1", "registry_cleanup_every", 1),
    "OTEL_EXPORTER_OTLP_ENDPOINT": ("http://127.0.0.1:4318", "otlp_endpoint", "http://127.0.0.1:4318"),
    "AGENTAPP_TRACE_CONTENT": ("1", "trace_content", True),
    "AGENTAPP_RETAIN_SESSIONS_DAYS": ("30", "retain_sessions_days", 30),
    "AGENTAPP_RETAIN_AUDIT_DAYS": ("1", "retain_audit_days", 1),
}
# What a variable cannot be set without.
NEEDED = {
    "AGENTAPP_ALERT_WEBHOOK": {"AGENTAPP_ALERT_WEBHOOK_SECRET": "k" * 16},
    "AGENTAPP_ALERT_WEBHOOK_SECRET": {"AGENTAPP_ALERT_WEBHOOK": "https://hooks.example.org"},
}
# `off` switches each of these off; what it is without being set comes beside it.
SWITCHABLE: dict[str, Any] = {
    "AGENTAPP_BREAKER_SHARE": None,
    "AGENTAPP_RATE_SESSION": (20, 60.0),
    "AGENTAPP_RATE_USER": (60, 60.0),
    "AGENTAPP_RATE_TENANT": (600, 60.0),
    "AGENTAPP_RATE_CHATS": (120, 60.0),
    "AGENTAPP_RATE_LOGIN": (10, 900.0),
    "AGENTAPP_BUDGET_TURN_TOKENS": 50_000,
    "AGENTAPP_BUDGET_SESSION_TOKENS": 1_000_000,
    "AGENTAPP_BUDGET_USER_DAY_USD": 5_000_000,
    "AGENTAPP_BUDGET_TENANT_MONTH_USD": 500_000_000,
    "AGENTAPP_CONCURRENT_USER": 4,
    "AGENTAPP_CONCURRENT_TENANT": None,
    "AGENTAPP_STREAMS_USER": 32,
    "AGENTAPP_STORAGE_USER_MB": 200_000_000,
    "AGENTAPP_STORAGE_TENANT_MB": None,
    "AGENTAPP_DISK_RESERVE_MB": 64_000_000,
    "AGENTAPP_PAGES_USER": 16,
    "AGENTAPP_TOOL_CALLS_TURN": 20,
    "AGENTAPP_TOOL_CALLS_SESSION": None,
    "AGENTAPP_RETAIN_SESSIONS_DAYS": None,
    "AGENTAPP_RETAIN_AUDIT_DAYS": 365,
}
RATES = tuple(variable for variable in SWITCHABLE if "_RATE_" in variable)
DOLLARS = tuple(variable for variable in SWITCHABLE if variable.endswith("_USD"))
SHARES = tuple(variable for variable in GOOD if variable.endswith("_SHARE"))
# The least and the most that each whole number may be.
WHOLE = {
    "AGENTAPP_TRUSTED_PROXIES": (0, 10),
    "AGENTAPP_THREADS": (1, 4096),
    "AGENTAPP_THREADS_RESERVED": (0, 4095),
    "AGENTAPP_BREAKER_FAILURES": (1, 1_000),
    "AGENTAPP_BREAKER_USER_FAILURES": (1, 100_000),
    "AGENTAPP_PROVIDER_BREAKER_USERS": (2, 200),
    "AGENTAPP_BUDGET_TURN_TOKENS": (1, 10**9),
    "AGENTAPP_BUDGET_SESSION_TOKENS": (1, 10**12),
    "AGENTAPP_CONCURRENT_USER": (1, 100_000),
    "AGENTAPP_CONCURRENT_TENANT": (1, 100_000),
    "AGENTAPP_STREAMS_USER": (1, 100_000),
    "AGENTAPP_PAGES_USER": (1, 100_000),
    "AGENTAPP_TOOL_CALLS_TURN": (1, 100_000),
    "AGENTAPP_TOOL_CALLS_SESSION": (1, 10**9),
    "AGENTAPP_REGISTRY_CAP": (4, 10_000_000),
    "AGENTAPP_REGISTRY_CLEANUP_EVERY": (1, 1_000_000),
    "AGENTAPP_RETAIN_SESSIONS_DAYS": (1, 36_500),
    "AGENTAPP_RETAIN_AUDIT_DAYS": (1, 36_500),
}

BAD_RATES = ("20", "20/", "/minute", "0/minute", "20/0minutes", "20/fortnight", "-1/minute", "1.5/minute")
BAD_RATES += ("20 / minute", "20/minute/hour", "20/MINUTE", "²/minute", "9999999999/minute", "nought")
BAD_DOLLARS = ("0", "0.00", "-1", "$5", "5 USD", "1e3", ".5", "5.", "0.0000001", "1,000", "nan", "inf")
BAD_PRICES = ("3/15", "a", "a=", "a=3", "a=3/", "a=-3/15", "a=3/15/2", "=3/15", "two words=3/15", "a=x/y")

BAD: list[tuple[str, str]] = [
    ("AGENTAPP_DATABASE_URL", "mysql://h/d"),
    ("AGENTAPP_DATABASE_URL", "postgresql://h/d"),
    ("AGENTAPP_DATABASE_URL", "sqlite://"),
    ("AGENTAPP_DATABASE_URL", "sqlite:///"),
    ("AGENTAPP_DATABASE_URL", "sqlite:///:memory:"),
    ("AGENTAPP_DATABASE_URL", "sqlite:///file::memory:?uri=true"),
    ("AGENTAPP_DB_STATEMENT_TIMEOUT", "0"),
    ("AGENTAPP_DB_STATEMENT_TIMEOUT", "off"),
    ("AGENTAPP_DB_IDLE_TRANSACTION_TIMEOUT", "0"),
    ("AGENTAPP_DB_KEEPALIVE", "1.5"),
    ("AGENTAPP_DB_POOL", "7"),
    ("AGENTAPP_DB_PGBOUNCER", "yes"),
    ("AGENTAPP_SECRET_KEY", "s" * 31),
    ("AGENTAPP_HOSTS", "https://chat.example.org"),
    ("AGENTAPP_HOSTS", "chat.example.org:8000"),
    ("AGENTAPP_HOSTS", "*"),
    ("AGENTAPP_HOSTS", "a b"),
    ("AGENTAPP_HTTPS", "yes"),
    ("AGENTAPP_TRUSTED_PROXIES", "²"),
    ("AGENTAPP_ALERT_WEBHOOK", "hooks.example.org"),
    ("AGENTAPP_ALERT_WEBHOOK", "ftp://hooks.example.org"),
    ("AGENTAPP_ALERT_WEBHOOK", "https://"),
    ("AGENTAPP_ALERT_WEBHOOK", "https://me:hidden@hooks.example.org"),
    ("AGENTAPP_ALERT_WEBHOOK", "https://hooks.example.org:port"),
    ("AGENTAPP_ALERT_WEBHOOK", "https://hooks.example.org/a b"),
    ("AGENTAPP_ALERT_WEBHOOK", "https://hooks.example.org/#part"),
    ("AGENTAPP_ALERT_WEBHOOK_SECRET", "whsec_no base64"),
    ("AGENTAPP_PROVIDER", "openai"),
    ("AGENTAPP_TEAM", "no-colon"),
    ("AGENTAPP_TEAM", "a..b:c"),
    ("AGENTAPP_TURN_DEADLINE", "0"),
    ("AGENTAPP_TURN_DEADLINE", "nan"),
    ("AGENTAPP_TURN_DEADLINE", "inf"),
    ("AGENTAPP_TURN_DEADLINE", "2 minutes"),
    ("AGENTAPP_FIRST_TOKEN_DEADLINE", "x"),
    ("AGENTAPP_GAP_DEADLINE", "x"),
    ("AGENTAPP_TOOL_DEADLINE", "3601"),
    ("AGENTAPP_BUDGET_TURN_TOKENS", "1e6"),
    ("AGENTAPP_DEMO_DELAY", "-1"),
    ("AGENTAPP_BREAKER_COOLDOWN", "0"),
    ("AGENTAPP_BREAKER_COOLDOWN", "off"),
    ("AGENTAPP_BREAKER_COOLDOWN_MAX", "86401"),
    ("AGENTAPP_BREAKER_COOLDOWN_MAX", "29"),
    ("AGENTAPP_BREAKER_WINDOW", "0"),
    ("AGENTAPP_BREAKER_FAILURES", "off"),
    ("AGENTAPP_PROVIDER_BREAKER_SHARE", "off"),
    ("AGENTAPP_PROVIDER_BREAKER_WINDOW", "an hour"),
    *((variable, bad) for variable in RATES for bad in BAD_RATES),
    *((variable, bad) for variable in DOLLARS for bad in BAD_DOLLARS),
    *((variable, bad) for variable in SHARES for bad in ("0", "1.01", "-0.5", "50%", "nan", "inf")),
    *(("AGENTAPP_PRICES", bad) for bad in BAD_PRICES),
    *((variable, str(low - 1)) for variable, (low, _) in WHOLE.items()),
    *((variable, str(high + 1)) for variable, (_, high) in WHOLE.items()),
]


def load(**environ: str) -> config.Settings:
    return config.load({"AGENTAPP_SECRET_KEY": SECRET, **environ})


@pytest.mark.parametrize("variable", GOOD)
def test_each_variable_sets_its_setting(variable: str) -> None:
    value, name, expected = GOOD[variable]
    settings = load(**{variable: f" {value} "}, **NEEDED.get(variable, {}))
    assert getattr(settings, name) == expected
    assert getattr(load(), name) != expected or variable == "AGENTAPP_PROVIDER"


def test_each_setting_has_a_variable() -> None:
    assert {name for _, name, _ in GOOD.values()} == {field.name for field in fields(config.Settings)}


def test_each_variable_read_is_tested_here() -> None:
    assert {declared.variable for declared in settings_of(config.Settings).values()} == set(GOOD)


def test_each_variable_is_named_once_in_the_code_that_declares_it() -> None:
    """Its default, parser and sentence stand beside it, so they are written once too."""
    source = "".join(Path(each.__file__).read_text() for each in (config.settings, options, log_options))
    named = re.findall(r'etting\(\s*"((?:AGENTAPP|ANTHROPIC|OTEL)_[A-Z_]+)"', source)
    of_server = [f"AGENTAPP_{name}" for name in ("BIND", "WORKERS", "PIN_WORKERS", "GRACE")]
    of_log = ["AGENTAPP_LOG_FORMAT", "AGENTAPP_LOG_LEVEL"]
    assert sorted(named) == sorted([*GOOD, *of_server, *of_log])


def test_a_setting_that_the_server_shares_has_the_same_default_in_both_places() -> None:
    assert settings_of(options.ServerOptions)["threads"] is settings_of(config.Settings)["threads"]
    assert options.load({}).threads == load().threads


@pytest.mark.parametrize("provider", config.PROVIDERS, ids=lambda provider: provider.name)
def test_each_provider_can_be_chosen_and_says_which_key_it_needs(provider: config.ModelProvider) -> None:
    if provider.key_variable is None:
        assert load(AGENTAPP_PROVIDER=provider.name).provider == provider.name
        return
    with pytest.raises(SettingError) as caught:
        load(AGENTAPP_PROVIDER=provider.name)
    assert caught.value.variable == provider.key_variable
    key = {provider.key_variable: "k"}
    assert load(AGENTAPP_PROVIDER=provider.name, **key).provider == provider.name


@pytest.mark.parametrize("variable", SWITCHABLE)
def test_a_limit_can_be_switched_off_and_has_its_default_if_nothing_is_said(variable: str) -> None:
    name = GOOD[variable][1]
    assert getattr(load(**{variable: "off"}), name) is None
    assert getattr(load(**{variable: "OFF"}), name) is None
    assert getattr(load(), name) == SWITCHABLE[variable]


def test_a_setting_made_in_code_has_the_same_defaults_as_one_read_from_the_environment() -> None:
    read = load()
    made = config.Settings(instance=read.instance, database_url=read.database_url, secret_key=read.secret_key)
    assert made == read


@pytest.mark.parametrize(("variable", "ends"), WHOLE.items())
def test_a_whole_number_may_be_its_least_and_its_most(variable: str, ends: tuple[int, int]) -> None:
    for end in ends:
        assert getattr(load(**{variable: str(end)}), GOOD[variable][1]) == end


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("20/minute", (20, 60.0)),
        ("20/minutes", (20, 60.0)),
        ("10/15minutes", (10, 900.0)),
        ("1/90seconds", (1, 90.0)),
        ("5/hour", (5, 3_600.0)),
        ("7/2days", (7, 172_800.0)),
    ],
)
def test_a_rate_is_so_many_within_so_long(value: str, expected: tuple[int, float]) -> None:
    assert load(AGENTAPP_RATE_USER=value).rate_user == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [("5", 5_000_000), ("0.1", 100_000), ("0.000001", 1), ("1.23", 1_230_000), ("0.29", 290_000)],
)
def test_dollars_are_counted_in_whole_millionths(value: str, expected: int) -> None:
    assert load(AGENTAPP_BUDGET_USER_DAY_USD=value).user_day_microusd == expected


def test_prices_may_be_none_and_end_in_a_comma() -> None:
    assert load(AGENTAPP_PRICES=" , ").prices == ()
    assert load(AGENTAPP_PRICES="a=1/2,").prices == (("a", 1.0, 2.0),)


def test_the_longest_pause_is_never_shorter_than_the_first() -> None:
    """Also if only the first is set, and to more than the longest is by default."""
    assert load(AGENTAPP_BREAKER_COOLDOWN="3600").breaker_cooldown_max == 3_600.0
    same = load(AGENTAPP_BREAKER_COOLDOWN="60", AGENTAPP_BREAKER_COOLDOWN_MAX="60")
    assert (same.breaker_cooldown, same.breaker_cooldown_max) == (60.0, 60.0)
    with pytest.raises(SettingError, match=r"^AGENTAPP_BREAKER_COOLDOWN_MAX: must be at least .* 60$"):
        load(AGENTAPP_BREAKER_COOLDOWN="60", AGENTAPP_BREAKER_COOLDOWN_MAX="59")


@pytest.mark.parametrize(("variable", "value"), BAD)
def test_bad_value_is_refused_in_one_line_that_names_the_variable(variable: str, value: str) -> None:
    with pytest.raises(SettingError) as caught:
        load(**{variable: value})
    assert caught.value.variable == variable
    assert str(caught.value).startswith(f"{variable}: ")
    assert "\n" not in str(caught.value)


def test_a_webhook_and_its_secret_come_together_or_not_at_all() -> None:
    for variable, needed in NEEDED.items():
        (other,) = needed
        with pytest.raises(SettingError, match=f"^{other}: needed because {variable} is set"):
            load(**NEEDED[other])


def test_a_key_in_base64_is_taken_as_it_is_meant() -> None:
    key = {"AGENTAPP_ALERT_WEBHOOK_SECRET": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
    found = load(**key, **NEEDED["AGENTAPP_ALERT_WEBHOOK_SECRET"]).alert_webhook_secret
    assert found is not None
    assert (len(found), found[:2]) == (24, b"1\xf2")


def test_the_address_of_a_webhook_is_a_secret_too() -> None:
    settings = load(AGENTAPP_ALERT_WEBHOOK="https://h/hunter2", AGENTAPP_ALERT_WEBHOOK_SECRET="k" * 16)
    assert "hunter2" not in repr(settings)
    with pytest.raises(SettingError) as caught:
        load(AGENTAPP_ALERT_WEBHOOK="https://h/hunter2 x", AGENTAPP_ALERT_WEBHOOK_SECRET="short")
    assert "hunter2" not in str(caught.value)


def test_blank_value_counts_as_unset() -> None:
    assert load(AGENTAPP_MODEL="  ", AGENTAPP_HTTPS="") == load()


def test_bad_secret_is_not_repeated() -> None:
    with pytest.raises(SettingError) as caught:
        load(AGENTAPP_SECRET_KEY="hunter2-hunter2")
    assert "hunter2" not in str(caught.value)


def test_secrets_do_not_show_when_settings_are_printed() -> None:
    settings = load(AGENTAPP_SECRET_KEY="hunter2" * 5, ANTHROPIC_API_KEY="sk-very-secret")
    assert "hunter2" not in repr(settings)
    assert "sk-very-secret" not in repr(settings)


def test_the_password_of_a_database_does_not_show_when_settings_are_printed_or_refused() -> None:
    assert "hunter2" not in repr(load(AGENTAPP_DATABASE_URL="postgresql+psycopg://u:hunter2@h/d"))
    with pytest.raises(SettingError) as caught:
        load(AGENTAPP_DATABASE_URL="postgresql://u:hunter2@h/d")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "provider"),
    [
        ({}, "demo"),
        ({"ANTHROPIC_API_KEY": "k"}, "anthropic"),
        ({"ANTHROPIC_API_KEY": "k", "AGENTAPP_PROVIDER": "demo"}, "demo"),
        ({"ANTHROPIC_API_KEY": "k", "AGENTAPP_PROVIDER": "anthropic"}, "anthropic"),
    ],
)
def test_provider_is_anthropic_if_there_is_a_key_unless_told_otherwise(
    environ: dict[str, str], provider: str
) -> None:
    assert load(**environ).provider == provider


def test_anthropic_without_a_key_asks_for_the_key() -> None:
    with pytest.raises(SettingError, match=r"^ANTHROPIC_API_KEY: "):
        load(AGENTAPP_PROVIDER="anthropic")


def test_database_is_a_file_in_the_instance_directory_by_default(tmp_path: Path) -> None:
    settings = load(AGENTAPP_INSTANCE=str(tmp_path / "here"))
    assert settings.database_url == f"sqlite:///{tmp_path}/here/agentapp.sqlite3"


def test_relative_instance_stays_where_it_was_when_the_process_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load().instance == tmp_path / "instance"


@pytest.mark.parametrize(
    "bind", ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "localhost:1", "unix:/run/agentapp.sock"]
)
def test_loopback_needs_no_secret(bind: str, tmp_path: Path) -> None:
    settings = config.load({"AGENTAPP_INSTANCE": str(tmp_path)}, bind=bind)
    assert len(settings.secret_key) >= MIN_SECRET_BYTES


@pytest.mark.parametrize(
    "bind", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1", "localhost.example.org:1", ":1", "fd://3"]
)
def test_any_other_address_needs_one_and_makes_none(bind: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^AGENTAPP_SECRET_KEY: required"):
        config.load({"AGENTAPP_INSTANCE": str(tmp_path / "instance")}, bind=bind)
    assert not (tmp_path / "instance").exists()
    assert config.load({"AGENTAPP_SECRET_KEY": SECRET}, bind=bind).secret_key == SECRET


def test_hosts_are_any_on_loopback_and_only_addresses_elsewhere_until_they_are_set(tmp_path: Path) -> None:
    environ = {"AGENTAPP_SECRET_KEY": SECRET}
    assert config.load(environ, bind="127.0.0.1:1").hosts == ()
    assert config.load(environ, bind="0.0.0.0:1").hosts == ("localhost", ADDRESSES)
    environ["AGENTAPP_HOSTS"] = "chat.example.org"
    assert config.load(environ, bind="0.0.0.0:1").hosts == ("chat.example.org",)


def test_made_secret_is_kept_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    environ = {"AGENTAPP_INSTANCE": str(tmp_path / "instance")}
    first, second = config.load(environ), config.load(environ)
    assert first.secret_key == second.secret_key
    assert stat.S_IMODE((tmp_path / "instance").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "instance" / "secret").stat().st_mode) == 0o600


def test_two_instances_have_two_secrets(tmp_path: Path) -> None:
    secrets = [config.load({"AGENTAPP_INSTANCE": str(tmp_path / name)}).secret_key for name in "ab"]
    assert secrets[0] != secrets[1]


def test_eight_processes_at_once_make_one_secret(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(8), spawn.Queue()
    processes = [spawn.Process(target=load_secrets, args=(tmp_path, barrier, answers)) for _ in range(8)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
        process.close()
    answers.close()
    answers.join_thread()
    assert len({tuple(secrets) for secrets in found}) == 1
    assert len(set(found[0])) == ROUNDS
    assert [path.name for path in (tmp_path / "0").iterdir()] == ["secret"]


def test_short_secret_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("short")
    with pytest.raises(StartError, match="holds less than 32 bytes"):
        config.load({"AGENTAPP_INSTANCE": str(tmp_path)})


def test_file_in_place_of_the_instance_directory_is_said_plainly(tmp_path: Path) -> None:
    (tmp_path / "instance").write_text("")
    with pytest.raises(StartError, match=f"^cannot make the directory {tmp_path}/instance: "):
        config.load({"AGENTAPP_INSTANCE": str(tmp_path / "instance")})


def test_listening_has_defaults_for_everything() -> None:
    assert options.load({}) == options.ServerOptions(
        bind="127.0.0.1:8000", workers=2, threads=512, grace=120 + options.GRACE_SECONDS_BEYOND_A_TURN
    )


def test_options_come_before_variables() -> None:
    environ = {"AGENTAPP_BIND": "[::1]:1", "AGENTAPP_WORKERS": "3", "AGENTAPP_THREADS": "4"}
    found = options.load(environ, {"bind": "127.0.0.2:2", "workers": "5", "threads": None})
    assert (found.bind, found.workers, found.threads) == ("127.0.0.2:2", 5, 4)


def test_listening_survives_the_way_through_the_environment() -> None:
    found = options.load({}, {"bind": "[::1]:9", "workers": "3", "threads": "4"})
    assert options.load(found.environ()) == found


@pytest.mark.parametrize("turn", [0.1, 300.5, 3600])
def test_workers_may_finish_the_longest_turn_when_they_are_stopped(turn: float) -> None:
    assert options.load({"AGENTAPP_TURN_DEADLINE": str(turn)}).grace > turn


def test_how_long_a_stopping_server_waits_can_be_chosen_whatever_a_turn_may_take() -> None:
    for turn in ("1", "300"):
        assert options.load({"AGENTAPP_TURN_DEADLINE": turn, "AGENTAPP_GRACE": "7.5"}).grace == 7.5


@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan", "inf"])
def test_a_bad_time_to_wait_names_its_variable(value: str) -> None:
    with pytest.raises(SettingError, match=r"^AGENTAPP_GRACE: must "):
        options.load({"AGENTAPP_GRACE": value})


BAD_ADDRESSES = ["8000", ":8000", "::1:8000", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "h:x", "a,b:1"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("bind", bad) for bad in [*BAD_ADDRESSES, "[::1", "http://h:1", "unix:relative"]]
    + [("workers", bad) for bad in ("0", "-1", "x", "65")]
    + [("threads", bad) for bad in ("0", "1.5", "5000")],
)
def test_bad_listening_value_names_the_variable_or_the_option(option: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"^AGENTAPP_{option.upper()}: must "):
        options.load({f"AGENTAPP_{option.upper()}": value})
    with pytest.raises(SettingError, match=f"^--{option}: must "):
        options.load({}, {option: value})


def test_blank_option_is_refused_and_not_ignored() -> None:
    with pytest.raises(SettingError, match=r"^--bind: must "):
        options.load({"AGENTAPP_BIND": "127.0.0.1:1"}, {"bind": ""})


@pytest.mark.parametrize(
    ("bind", "https", "url"),
    [
        ("127.0.0.1:8000", False, "http://127.0.0.1:8000"),
        ("[::1]:8000", False, "http://[::1]:8000"),
        ("chat.example.org:443", True, "https://chat.example.org:443"),
        ("unix:/run/agentapp.sock", False, "http://localhost"),
    ],
)
def test_shown_address_can_be_typed_into_a_browser(bind: str, https: bool, url: str) -> None:
    assert options.url_of(bind, https=https) == url


@pytest.mark.parametrize(
    ("hosts", "https", "url"),
    [
        (("chat.example.org", "192.0.2.1"), True, "https://chat.example.org"),
        (("2001:db8::1",), True, "https://[2001:db8::1]"),
        (("chat.example.org",), False, "http://chat.example.org:8000"),
        (("localhost", ADDRESSES), True, "https://localhost:8000"),
    ],
)
def test_behind_a_proxy_the_public_name_is_shown_and_not_where_the_proxy_asks(
    hosts: tuple[str, ...], https: bool, url: str
) -> None:
    assert options.url_of("127.0.0.1:8000", https=https, hosts=hosts) == url


@pytest.mark.parametrize("bind", ["0.0.0.0:8000", "[::]:8000"])
def test_address_that_means_every_address_is_shown_as_the_name_of_the_machine(
    bind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    assert options.url_of(bind, https=False) == "http://box:8000"
