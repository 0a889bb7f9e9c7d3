"""The replies of a page as HTML: as it was kept with them, or rendered now and kept from now on."""

from __future__ import annotations

import logging

from markupsafe import Markup

from agentapp.errors import DiskFull, StorageUnavailable
from agentapp.events import Rendered
from agentapp.isolation import Scope
from agentapp.storage.values import BranchPage
from agentapp.web.markdown import rendered
from agentapp.web.parts import parts

log = logging.getLogger(__name__)


def replies_as_html(scope: Scope, page: BranchPage) -> dict[str, Markup]:
    """By the id of the turn. A reply from before its HTML was kept, or of an older renderer, is rendered."""
    replies = [message for message in page.messages if message.role == "assistant"]
    parts().db.release()  # rendering may take long, and no connection is held meanwhile
    made = {reply.seq: rendered(reply.content, reply.rendered) for reply in replies}
    _keep(scope, {reply.seq: made[reply.seq] for reply in replies if made[reply.seq] is not reply.rendered})
    return {reply.turn_id: Markup(made[reply.seq].html) for reply in replies}  # noqa: S704 - sanitised


def _keep(scope: Scope, new: dict[int, Rendered]) -> None:
    if not new:
        return
    try:
        parts().branches.keep_html(scope, new)
    except DiskFull:
        return  # it is in the log already
    except StorageUnavailable as error:
        log.warning("the HTML of a chat could not be kept: %s", error)
