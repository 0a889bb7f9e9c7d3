"""`/admin/users/<user_id>/erase`: asks first, then removes every trace of a user but audit rows."""

from __future__ import annotations

from flask import Blueprint, render_template
from flask.typing import ResponseReturnValue

from agentapp.errors import Forbidden
from agentapp.retention.erasing import UserToErase
from agentapp.storage.names import normalise_name
from agentapp.storage.vacuum import LARGEST_WHILE_SERVING
from agentapp.web.admin.viewer import viewer
from agentapp.web.hooks import user_scope
from agentapp.web.incoming import field
from agentapp.web.parts import parts

MAX_NAME_CHARS = 256

blueprint = Blueprint("erasing", __name__, url_prefix="/users/<id:user_id>/erase")


@blueprint.get("")
def confirm(user_id: str) -> str:
    return render_template("admin/erase_user.html", erased=_found(user_id), problem_text="")


@blueprint.post("")
def erase(user_id: str) -> ResponseReturnValue:
    user = _found(user_id)
    if normalise_name(field("name", max_chars=MAX_NAME_CHARS, default="")) != user.name:
        other = "That is another name. Nothing was erased."
        return render_template("admin/erase_user.html", erased=user, problem_text=other), 400
    counts = parts().eraser.erase(user, user_scope())
    pages = parts().vacuum.run(LARGEST_WHILE_SERVING)
    return render_template("admin/user_erased.html", erased=user, counts=counts, pages=pages.value)


def _found(user_id: str) -> UserToErase:
    """Of the viewer's own tenant, unless that is an operator. Only operators erase operators."""
    user = parts().eraser.find(user_id, viewer().tenant_id)
    if user.role == "operator" and not viewer().is_operator:
        raise Forbidden("Only an operator can erase an operator.")
    return user
