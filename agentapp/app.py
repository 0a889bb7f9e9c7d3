"""The factory: the only place where the parts are put together."""

from __future__ import annotations

import importlib

from flask import Flask
from werkzeug.middleware.proxy_fix import ProxyFix

from agentapp import config, web
from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.loop import Limits
from agentapp.agents.prices import Prices
from agentapp.agents.provider import Provider
from agentapp.agents.team import Team
from agentapp.config import Settings
from agentapp.errors import SettingError
from agentapp.guardrails import Cells, Registry
from agentapp.guardrails.guard import Guardrails
from agentapp.guardrails.policies import terms
from agentapp.guardrails.sign_in import SignIns
from agentapp.guardrails.streams import Seats
from agentapp.isolation import Binder, ThreadBinder
from agentapp.storage.accounts import Accounts
from agentapp.storage.cells import CellStore
from agentapp.storage.chats import Chats
from agentapp.storage.db import Database
from agentapp.storage.live_turns import JournalStore
from agentapp.storage.notes import Notes
from agentapp.storage.telling import Tellings
from agentapp.storage.turns import Turns
from agentapp.telemetry import Violations
from agentapp.turns.heartbeat import Journal
from agentapp.turns.leases import Leases
from agentapp.turns.local import Running
from agentapp.turns.remote import Mirrors
from agentapp.turns.service import Stage
from agentapp.turns.turn import Answering, deadlines_of, longest
from agentapp.web.parts import Parts

UNLIMITED_TOKENS = 10**9


def create_app(settings: Settings | None = None, team: Team | None = None) -> Flask:
    """An app of its own, with nothing opened yet: no connection exists before the first request."""
    settings = settings or config.load()
    app = Flask("agentapp", template_folder="web/templates", static_folder="web/static")
    app.secret_key = settings.secret_key
    app.extensions["agentapp"] = make_parts(settings, team or load_team(settings.team))
    web.init_app(app)
    if settings.trusted_proxies:
        hops = settings.trusted_proxies
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=hops, x_proto=hops, x_host=hops)  # type: ignore[method-assign]
    return app


def make_parts(settings: Settings, team: Team) -> Parts:
    violations = Violations()
    binder = ThreadBinder(violations.left_bound)
    db = Database(settings.database_url, binder)
    chats, cells = Chats(db), CellStore(db)
    deadlines = deadlines_of(settings)
    registry = Registry(
        Cells(terms(settings, longest(deadlines))),
        cells,
        cap=settings.registry_cap,
        cleanup_every=settings.registry_cleanup_every,
    )
    guardrails = Guardrails(registry, settings.provider)
    answering = Answering(
        turns=Turns(db, cells, guardrails),
        guardrails=guardrails,
        leases=Leases(),
        team=team,
        driver=ThreadedDriver(make_provider(settings), binder, deadlines),
        model=settings.model,
        limits=Limits(
            tokens=settings.turn_tokens or UNLIMITED_TOKENS,
            tool_calls_turn=settings.tool_calls_turn,
            tool_calls_session=settings.tool_calls_session,
        ),
        deadlines=deadlines,
        notes=Notes(db),
        past_chats=chats,
        report=violations.foreign_scope,
        prices=Prices(settings.prices, free=config.provider_named(settings.provider).is_free),
    )
    accounts = Accounts(db)
    return Parts(
        settings=settings,
        binder=binder,
        db=db,
        accounts=accounts,
        sign_ins=SignIns(guardrails, cells, settings.rate_login),
        chats=chats,
        answering=answering,
        stage=make_stage(settings, answering, accounts, db, binder),
        violations=violations,
    )


def make_stage(
    settings: Settings, answering: Answering, accounts: Accounts, db: Database, binder: Binder
) -> Stage:
    store, tellings = JournalStore(db), Tellings(db)
    running, mirrors = Running(binder), Mirrors(store, tellings)
    journal = Journal(store, answering.turns, accounts, running, mirrors, answering.leases, binder)
    seats = Seats(settings.threads, settings.threads_reserved)
    return Stage(answering, seats, running, mirrors, journal, tellings)


def make_provider(settings: Settings) -> Provider:
    if settings.provider == "demo":
        from agentapp.agents.providers.demo import DemoProvider

        return DemoProvider(settings.demo_delay)
    # Imported only when it is used: the SDK takes most of a second to import.
    from agentapp.agents.providers.anthropic import AnthropicProvider
    from agentapp.agents.providers.retrying import Retrying

    return Retrying(AnthropicProvider(settings.anthropic_api_key or "", settings.anthropic_base_url))


def load_team(where: str) -> Team:
    """The `Team` that ``package.module:name`` points to."""
    module_name, _, name = where.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as exc:
        raise SettingError("AGENTAPP_TEAM", f"cannot load {where!r}: {exc}") from exc
    if not isinstance(found, Team):
        raise SettingError(
            "AGENTAPP_TEAM", f"{where!r} is a {type(found).__name__}, not an agentapp.agents.Team"
        )
    return found
