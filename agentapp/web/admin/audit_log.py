"""`/admin/audit-log`: who did what and when, as a page and as a CSV file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from flask import Blueprint, Response, g, render_template

from agentapp.errors import BadRequest
from agentapp.storage.audit_actions import ACTIONS
from agentapp.storage.audit_log import AuditEntry
from agentapp.storage.audit_rows import OF_A_USER, AuditFilter, AuditRecord, Place
from agentapp.web.admin.audit_csv import csv_pieces
from agentapp.web.admin.audit_words import words
from agentapp.web.admin.paging import NO_SUCH_PAGE, PAGE_ROWS, Key, after, page_of
from agentapp.web.admin.viewer import viewer
from agentapp.web.checks import stream_check
from agentapp.web.hooks import user_scope
from agentapp.web.incoming import query_text
from agentapp.web.parts import parts, utc_now

MAX_FILTER_CHARS = 160
NAMES = ("action", "user", "subject", "from", "to", "request", "tenant")

blueprint = Blueprint("audit_log", __name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """The filter as it was typed: ``texts`` by the names of the fields, without the empty ones."""

    texts: Mapping[str, str]
    wanted: AuditFilter


@blueprint.get("/audit-log")
def show() -> str:
    asked = _asked()
    found = parts().admin.audit_rows.page(asked.wanted, _after(), PAGE_ROWS + 1)
    return render_template(
        "admin/audit_log.html",
        page=page_of(found, _key),
        asked=asked.texts,
        actions=[("", "All"), *((action, action) for action in ACTIONS)],
        words=words,
    )


@blueprint.get("/audit-log.csv")
def download() -> Response:
    """That it was asked for is in the log before the first byte is sent."""
    scope, asked = user_scope(), _asked()
    entry = AuditEntry.of(scope, "audit-exported", "audit-log")
    parts().admin.audit_log.add(replace(entry, detail=_told(asked.texts)))
    text = csv_pieces(parts().admin.audit_rows.pieces(asked.wanted))
    answer = Response(parts().binder.streamed(scope, text), mimetype="text/csv")
    answer.headers["Content-Disposition"] = f'attachment; filename="audit-log-{utc_now():%Y-%m-%d}.csv"'
    g.streams = True
    answer.call_on_close(stream_check(parts(), scope))
    return answer


def _asked() -> Asked:
    given = {name: query_text(name, max_chars=MAX_FILTER_CHARS) for name in NAMES}
    if not viewer().is_operator:
        given["tenant"] = ""
    texts = {name: text for name, text in given.items() if text}
    if texts.get("action", ACTIONS[0]) not in ACTIONS:
        raise BadRequest("There is no such action in the audit log.")
    return Asked(texts, _filter(texts))


def _filter(texts: Mapping[str, str]) -> AuditFilter:
    """A name that nobody has, or nobody whom the reader may see, is looked for as an id: nothing is found."""
    rows, tenant_id = parts().admin.audit_rows, viewer().tenant_id
    if tenant := texts.get("tenant"):
        tenant_id = rows.tenant_id(tenant) or tenant
    user, subject = texts.get("user", ""), texts.get("subject", "")
    if subject and ":" not in subject:
        subject = OF_A_USER + (rows.user_id(subject, tenant_id) or subject)
    return AuditFilter(
        tenant_id,
        action=texts.get("action", ""),
        user_id=(rows.user_id(user, tenant_id) or user) if user else "",
        subject=subject,
        request_id=texts.get("request", ""),
        first_day=_day(texts.get("from", "")),
        last_day=_day(texts.get("to", "")),
    )


def _told(texts: Mapping[str, str]) -> Mapping[str, str]:
    """What may be kept of a filter: not what was typed, which may be a name."""
    kept = {name: texts[name] for name in ("action", "from", "to") if name in texts}
    others = [name for name in texts if name not in kept]
    return {**kept, "filtered_by": ", ".join(others)} if others else kept


def _day(text: str) -> date | None:
    try:
        return date.fromisoformat(text) if text else None
    except ValueError:
        raise BadRequest("A day is written like 2026-03-31.") from None


def _after() -> Place | None:
    found = after(str, int)
    if found is None:
        return None
    at, id = found
    try:
        return Place(datetime.fromisoformat(str(at)).astimezone(UTC), int(id))
    except (ValueError, OverflowError):
        raise BadRequest(NO_SUCH_PAGE) from None


def _key(record: AuditRecord) -> Key:
    return record.at.isoformat(), record.id
