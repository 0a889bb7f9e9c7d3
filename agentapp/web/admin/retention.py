"""`/admin/retention`: for how long each tenant's chats and audit rows are kept.

Operators set the days. An admin only sees those of the own tenant: what is deleted cannot be brought back,
and the audit log is what an admin's own actions are seen by.
"""

from __future__ import annotations

from typing import NamedTuple

from flask import Blueprint, redirect, render_template, request
from flask.typing import ResponseReturnValue

from agentapp.errors import BadRequest, NotFound
from agentapp.retention.keeping import KEEP_EVERYTHING, MOST_DAYS, Keeping, TenantKeeping
from agentapp.web.admin.paging import PAGE_ROWS, after, page_of
from agentapp.web.admin.viewer import require_operator, viewer
from agentapp.web.hooks import user_scope
from agentapp.web.incoming import field
from agentapp.web.parts import parts, utc_now

MOST_COUNTED = 10_000
MAX_DAYS_CHARS = 8

blueprint = Blueprint("retention", __name__, url_prefix="/retention")


class Row(NamedTuple):
    what: str
    name: str  # of the field in the form
    keeping: Keeping
    goes: str  # how many the next clean-up would remove


@blueprint.get("")
def index() -> str:
    key = after(str)
    after_name = str(key[0]) if key else ""
    found = parts().admin.retention.tenants(viewer().tenant_id, after_name, PAGE_ROWS + 1)
    page = page_of(found, lambda tenant: (tenant.name,))
    return render_template("admin/retention.html", page=page, in_words=in_words)


@blueprint.get("/<id:tenant_id>")
def show(tenant_id: str) -> str:
    tenant = _tenant(tenant_id)
    notice = "Saved. The next clean-up, within the hour, goes by it." if "saved" in request.args else ""
    return render_template(
        "admin/retention_tenant.html", tenant=tenant, rows=_rows(tenant), in_words=in_words, notice=notice
    )


@blueprint.post("/<id:tenant_id>")
def change(tenant_id: str) -> ResponseReturnValue:
    require_operator()
    chats, audit = _days("chats_days"), _days("audit_days")
    parts().admin.retention.change(tenant_id, chats, audit, user_scope())
    return redirect(f"/admin/retention/{tenant_id}?saved", 303)


def in_words(days: int | None) -> str:
    if days is None:
        return "for ever"
    return "1 day" if days == 1 else f"{days:,} days"


def _tenant(tenant_id: str) -> TenantKeeping:
    if viewer().tenant_id not in (None, tenant_id):
        raise NotFound("There is no such tenant.")
    return parts().admin.retention.tenant(tenant_id)


def _rows(tenant: TenantKeeping) -> list[Row]:
    now, stores = utc_now(), parts().admin
    most = MOST_COUNTED + 1
    chats = tenant.chats.before(now)
    audit = tenant.audit.before(now)
    old_chats = stores.old_chats.count_old(tenant.tenant_id, chats, most) if chats else 0
    old_rows = stores.retention.old_audit_rows(tenant.tenant_id, audit, most) if audit else 0
    return [
        Row("Chats, after last use", "chats_days", tenant.chats, _counted(old_chats)),
        Row("Audit rows", "audit_days", tenant.audit, _counted(old_rows)),
    ]


def _counted(count: int) -> str:
    return f"more than {MOST_COUNTED:,}" if count > MOST_COUNTED else f"{count:,}"


def _days(name: str) -> int | None:
    """Nothing is what the settings say, 0 is for ever."""
    text = field(name, max_chars=MAX_DAYS_CHARS).strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and KEEP_EVERYTHING <= int(text) <= MOST_DAYS):
        raise BadRequest(f"Days are a whole number up to {MOST_DAYS:,}, 0 to keep everything, or nothing.")
    return int(text)
