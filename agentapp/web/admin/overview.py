"""`/admin`: which pages there are."""

from __future__ import annotations

from flask import Blueprint, render_template

blueprint = Blueprint("overview", __name__)


@blueprint.get("")
def index() -> str:
    return render_template("admin/overview.html")
