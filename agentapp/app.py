"""The application factory: the only place where the parts are put together."""

from __future__ import annotations

from socket import gethostname

from flask import Flask
from werkzeug.middleware.proxy_fix import ProxyFix

from agentapp import build, config, web
from agentapp.agents import providers
from agentapp.agents.drivers.shared import Deadlines
from agentapp.agents.drivers.threaded import ThreadedDriver
from agentapp.agents.loading import load_team
from agentapp.agents.loop import Limits
from agentapp.agents.prices import Prices
from agentapp.agents.team import Team
from agentapp.agents.tracing import NoTraces, Traces, TurnTraces
from agentapp.config import Settings
from agentapp.guardrails import Cells, Registry
from agentapp.guardrails.guard import Guardrails
from agentapp.guardrails.limit_admin import LimitAdmin
from agentapp.guardrails.new_chats import NewChats
from agentapp.guardrails.operator import BreakerAdmin
from agentapp.guardrails.pages import PAGES_WORKER, PageSlots
from agentapp.guardrails.policies import cell_policies, longest_turn
from agentapp.guardrails.seats import Seats
from agentapp.guardrails.sign_in import SignIns
from agentapp.guardrails.storage_quota import StorageQuota
from agentapp.guardrails.streams import StreamSlots
from agentapp.isolation import RequestScope, ThreadBinder, UserScope
from agentapp.retention.schedule import ScheduledCleanUp
from agentapp.storage.accounts import Accounts
from agentapp.storage.alert_outbox import AlertOutbox
from agentapp.storage.alerts import AlertStore
from agentapp.storage.audit_log import AuditLog
from agentapp.storage.audit_rows import AuditRows
from agentapp.storage.audit_tallies import AuditTallies
from agentapp.storage.background_jobs import BackgroundJobs
from agentapp.storage.branches import Branches
from agentapp.storage.breakers import SqlBreakerStore
from agentapp.storage.cells import CellStore
from agentapp.storage.chat_removal import ChatRemoval
from agentapp.storage.chats import Chats
from agentapp.storage.clock import DatabaseClock
from agentapp.storage.clock_watch import READ_SECONDS, WatchClock
from agentapp.storage.count_series import CountSeries
from agentapp.storage.db import Database
from agentapp.storage.hot_cells import RedisHotCells, find_hot_cells
from agentapp.storage.limits import SqlLimitStore
from agentapp.storage.live_objects import LiveObjects
from agentapp.storage.live_turns import SqlLiveTurnStore
from agentapp.storage.logins import Logins, SeenLogins
from agentapp.storage.minute_counts import IsolationScore, MinuteCountStore
from agentapp.storage.notes import Notes
from agentapp.storage.postgres_options import PostgresOptions
from agentapp.storage.readiness import Readiness
from agentapp.storage.redis_choice import find_redis
from agentapp.storage.redis_mailboxes import RedisMailboxes
from agentapp.storage.retention_parts import (
    make_all_chats,
    make_clean_up,
    make_eraser,
    make_retention_store,
)
from agentapp.storage.room import Room
from agentapp.storage.running_turns import RunningTurns
from agentapp.storage.schema_gate import LOOK_SECONDS as LOOK_AT_SCHEMA_SECONDS
from agentapp.storage.schema_gate import LookAtSchema
from agentapp.storage.search_index import SearchIndex
from agentapp.storage.turns import SqlTurnStore
from agentapp.storage.usage_days import OwnUsage
from agentapp.storage.usage_reports import UsageReports
from agentapp.storage.user_admin import UserAdmin
from agentapp.storage.vacuum import Vacuum
from agentapp.storage.violations import ViolationLog
from agentapp.storage.workers import WorkerStore
from agentapp.telemetry import Telemetry, bound_records
from agentapp.telemetry.conditions import (
    LOOK_SECONDS,
    FindConditions,
    LateThreads,
    ScoreBelowOne,
    SilentWorkers,
    UnsettledReservations,
    WrongClock,
)
from agentapp.telemetry.delivery import DELIVER_SECONDS, DeliverAlerts
from agentapp.telemetry.jobs import (
    REPORT_SECONDS,
    STORE_SECONDS,
    FindLeftovers,
    ReportWorker,
    StoreAlerts,
    StoreCounts,
    StoreViolations,
)
from agentapp.telemetry.live import OpenRequests
from agentapp.telemetry.measurements import Measurements
from agentapp.telemetry.spans import find_tracer
from agentapp.telemetry.webhook import Webhook
from agentapp.turns.heartbeat import Heartbeat, ScheduledJob
from agentapp.turns.kit import TurnKit
from agentapp.turns.leases import Leases
from agentapp.turns.live_agents import LiveAgents
from agentapp.turns.service import make_turn_service
from agentapp.web.admin_stores import AdminStores
from agentapp.web.markdown import rendered
from agentapp.web.parts import Parts

UNLIMITED_TOKENS = 10**9


def create_app(settings: Settings | None = None, team: Team | None = None) -> Flask:
    """A new app that shares nothing with any other. It opens no connection before the first request."""
    settings = settings or config.load()
    app = web.Application("agentapp", template_folder="web/templates", static_folder="web/static")
    app.secret_key = settings.secret_key
    app.extensions["agentapp"] = make_parts(settings, team or load_team(settings.team))
    web.init_app(app)
    if settings.trusted_proxies:
        hops = settings.trusted_proxies
        app.wsgi_app = ProxyFix(app.wsgi_app, x_for=hops, x_proto=hops, x_host=hops)  # type: ignore[method-assign]
    return app


def make_parts(settings: Settings, team: Team) -> Parts:
    telemetry = Measurements(lambda: db.clock.estimate())
    binder = ThreadBinder(lambda scope: _report_left_bound(telemetry, scope))
    bound_records.follow(binder)
    db = Database(
        settings.database_url,
        binder,
        settings.db_statement_timeout,
        settings.disk_reserve_bytes,
        telemetry=telemetry,
        postgres=PostgresOptions.of(settings),
    )
    redis = find_redis(settings.redis_url, settings.secret_key)
    room = Room(db, StorageQuota(settings.storage_user_bytes, settings.storage_tenant_bytes))
    hot = find_hot_cells(redis, db.clock.now)
    accounts, chats, cells, seen_logins = Accounts(db), Chats(db, room), CellStore(db, hot), SeenLogins(db)
    cell_kind = Cells(cell_policies(settings, longest_turn(settings)))
    guardrails = make_guardrails(settings, cell_kind, cells, db.clock, hot)
    kit = TurnKit(
        store=SqlTurnStore(db, cells, room),
        guardrails=guardrails,
        leases=Leases(),
        team=team,
        driver=ThreadedDriver(providers.make(settings), binder, deadlines_of(settings)),
        model=settings.model,
        limits=limits_of(settings),
        notes=Notes(db, room, telemetry),
        past_chats=chats,
        prices=Prices(settings.prices, free=config.provider_named(settings.provider).is_free),
        telemetry=telemetry,
        live_agents=LiveAgents(),
        render=rendered,
        traces=make_traces(settings),
    )
    audit_tallies = AuditTallies(db)
    all_chats = make_all_chats(db, kit.store, kit.ends, cells)
    clean_up = ScheduledCleanUp(
        make_clean_up(db, settings, cell_kind, cells), BackgroundJobs(db), db.clock.utc_now
    )
    seats = Seats(settings.threads + PAGES_WORKER)
    slots = StreamSlots(seats, settings.threads, settings.threads_reserved, settings.streams_user)
    live_turns, score = SqlLiveTurnStore(db), IsolationScore(db, telemetry)
    workers = WorkerStore(db, build.NAME)
    alerts = AlertStore(db, delivers=settings.alert_webhook is not None)
    parts: Parts
    report = ReportWorker(telemetry, workers, kit.leases.worker, lambda: parts.live(), db.clock.utc_now)
    conditions = FindConditions(
        telemetry,
        (
            ScoreBelowOne(score.now),
            LateThreads(kit.leases.worker, lambda: parts.turns.heartbeat.lateness()),
            SilentWorkers(workers, kit.leases.lives),
            UnsettledReservations(live_turns),
            WrongClock(gethostname(), db.clock.problem),
        ),
        db.clock.utc_now,
    )
    parts = Parts(
        settings=settings,
        binder=binder,
        db=db,
        readiness=Readiness(db),
        redis=redis,
        room=room,
        accounts=accounts,
        logins=Logins(db),
        seen_logins=seen_logins,
        own_usage=OwnUsage(db),
        sign_ins=SignIns(guardrails, cells, settings.rate_login),
        chats=chats,
        branches=Branches(db),
        new_chats=NewChats(guardrails, settings.rate_chats),
        seats=seats,
        pages=PageSlots(seats, settings.pages_user),
        turns=make_turn_service(
            kit,
            live_turns,
            accounts,
            SearchIndex(db),
            slots,
            binder,
            first_jobs=(ScheduledJob(LookAtSchema(db.schema), every=LOOK_AT_SCHEMA_SECONDS),),
            more_jobs=(
                ScheduledJob(WatchClock(db.clock, telemetry), every=READ_SECONDS),
                ScheduledJob(StoreCounts(telemetry, MinuteCountStore(db)), every=STORE_SECONDS),
                ScheduledJob(StoreViolations(telemetry, ViolationLog(db)), every=STORE_SECONDS),
                ScheduledJob(audit_tallies, every=STORE_SECONDS),
                ScheduledJob(report, every=REPORT_SECONDS),
                ScheduledJob(seen_logins, every=REPORT_SECONDS),
                ScheduledJob(FindLeftovers(telemetry, kit.live_agents.take_left_over), every=REPORT_SECONDS),
                ScheduledJob(conditions, every=LOOK_SECONDS),
                ScheduledJob(StoreAlerts(telemetry.pending_alerts, alerts), every=STORE_SECONDS),
                *webhook_jobs(settings, db, binder),
            ),
            mailboxes=RedisMailboxes(redis) if redis else None,
        ),
        telemetry=telemetry,
        open_requests=OpenRequests(),
        isolation=score,
        breakers=cells,
        audit_tallies=audit_tallies,
        admin=make_admin_stores(settings, db, cell_kind, cells, alerts, accounts, workers),
        all_chats=all_chats,
        eraser=make_eraser(db, all_chats, guardrails),
        vacuum=Vacuum(db),
        # Not one of those that turns wake up.
        cleaning=Heartbeat("clean-up", [ScheduledJob(clean_up)], binder, telemetry, on_failure=lambda: None),
    )
    return parts


def make_admin_stores(
    settings: Settings,
    db: Database,
    cell_kind: Cells,
    cells: CellStore,
    alerts: AlertStore,
    accounts: Accounts,
    workers: WorkerStore,
) -> AdminStores:
    return AdminStores(
        audit_log=AuditLog(db),
        audit_rows=AuditRows(db),
        retention=make_retention_store(db, settings),
        old_chats=ChatRemoval(db, cells),
        limits=LimitAdmin(cell_kind, SqlLimitStore(db, cells)),
        breakers=BreakerAdmin(cell_kind, SqlBreakerStore(db, cells), db.clock.now),
        counts=CountSeries(db),
        violations=ViolationLog(db),
        live_objects=LiveObjects(db, 3 * REPORT_SECONDS),
        alerts=alerts,
        users=UserAdmin(db, accounts.hash),
        running_turns=RunningTurns(db),
        workers=workers,
        usage=UsageReports(db),
    )


def webhook_jobs(settings: Settings, db: Database, binder: ThreadBinder) -> tuple[ScheduledJob, ...]:
    if settings.alert_webhook is None or settings.alert_webhook_secret is None:
        return ()
    receiver = Webhook(settings.alert_webhook, settings.alert_webhook_secret)
    deliver = DeliverAlerts(AlertOutbox(db), receiver, binder, db.clock.utc_now)
    return (ScheduledJob(deliver, every=DELIVER_SECONDS),)


def make_guardrails(
    settings: Settings,
    cell_kind: Cells,
    cells: CellStore,
    clock: DatabaseClock,
    hot: RedisHotCells | None,
) -> Guardrails:
    registry = Registry(
        cell_kind,
        cells,
        cap=settings.registry_cap,
        cleanup_every=settings.registry_cleanup_every,
    )
    return Guardrails(registry, settings.provider, clock.now, hot)


def make_traces(settings: Settings) -> Traces:
    tracer = find_tracer(settings.otlp_endpoint) if settings.otlp_endpoint else None
    if tracer is None:
        return NoTraces()
    return TurnTraces(tracer, settings.provider, with_content=settings.trace_content)


def deadlines_of(settings: Settings) -> Deadlines:
    return Deadlines(
        turn=settings.turn_deadline,
        first_token=settings.first_token_deadline,
        gap=settings.gap_deadline,
        tool=settings.tool_deadline,
    )


def limits_of(settings: Settings) -> Limits:
    return Limits(
        tokens=settings.turn_tokens or UNLIMITED_TOKENS,
        tool_calls_turn=settings.tool_calls_turn,
        tool_calls_session=settings.tool_calls_session,
    )


def _report_left_bound(telemetry: Telemetry, scope: RequestScope) -> None:
    """A request ended and its scope was not cleared. The sweep before the next request found it."""
    detail = f"request {scope.request_id} was still bound when its thread was used again"
    tenant_id = scope.tenant_id if isinstance(scope, UserScope) else ""
    telemetry.violation("left-bound", detail, scope.request_id, tenant_id=tenant_id)
