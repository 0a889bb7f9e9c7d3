"""A user deletes all chats at once. No password is asked for: the same browser may delete them one by one."""

from __future__ import annotations

from flask import Blueprint, redirect, render_template
from flask.typing import ResponseReturnValue

from agentapp.web.hooks import user_scope
from agentapp.web.parts import parts

blueprint = Blueprint("all_chats", __name__, url_prefix="/account")


@blueprint.get("/delete-chats")
def confirm() -> str:
    return render_template("delete_chats.html", count=parts().admin.old_chats.count(user_scope()))


@blueprint.post("/delete-chats")
def delete() -> ResponseReturnValue:
    parts().all_chats.delete(user_scope())
    return redirect("/account?done=chats", 303)
