"""The pages for those who look after the server: an admin sees the own tenant, an operator all of them."""

from __future__ import annotations

from flask import Blueprint, Flask

from agentapp.web.admin import (
    alerts,
    audit_log,
    breakers,
    erasing,
    isolation,
    limits,
    overview,
    retention,
    turns,
    usage,
    users,
    workers,
)
from agentapp.web.admin.navigation import PAGES, AdminPage
from agentapp.web.admin.viewer import may_see_admin_pages, require_admin, viewer

# Each has a `blueprint` of its own, whose address begins after /admin.
MODULES = (
    overview,
    isolation,
    alerts,
    breakers,
    limits,
    usage,
    turns,
    users,
    erasing,
    workers,
    audit_log,
    retention,
)


def init_app(app: Flask) -> None:
    admin = Blueprint("admin", __name__, url_prefix="/admin")
    admin.before_request(require_admin)  # of the pages below it too
    admin.context_processor(_template_values)
    for module in MODULES:
        admin.register_blueprint(module.blueprint)
    app.register_blueprint(admin)


def _template_values() -> dict[str, object]:
    if not may_see_admin_pages():  # the page is about the refusal
        return {}
    return {
        "viewer": viewer(),
        "admin_pages": pages_for(viewer().is_operator),
        "open_alerts": alerts.badge(),
    }


def pages_for(is_operator: bool) -> list[AdminPage]:
    return [page for page in PAGES if is_operator or not page.operators_only]
