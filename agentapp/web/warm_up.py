"""What takes long only the first time is done before a worker takes its first request.

Otherwise, when many first requests come at once, each of their threads would do it at the same time as all
the others.
"""

from __future__ import annotations

from contextlib import suppress

from flask import Flask

from agentapp.errors import NotFound, StorageUnavailable
from agentapp.isolation import Scope, new_id
from agentapp.web.markdown import render
from agentapp.web.parts import Parts

A_REPLY = "A *word*, a [link](https://example.org) and\n\n```python\ncode = 1\n```\n"


def warm_up(app: Flask) -> None:
    """Call it in each worker, after `Parts.start`. Without a database the rest is done."""
    for name in app.jinja_env.list_templates():
        app.jinja_env.get_template(name)
    app.url_map.update()
    render(A_REPLY)
    with suppress(StorageUnavailable):
        _read_as_nobody(app.extensions["agentapp"])


def _read_as_nobody(parts: Parts) -> None:
    """What most pages read, for a user who does not exist: opens a connection, compiles the statements."""
    scope = Scope(request_id=new_id(), tenant_id=new_id(), user_id=new_id(), session_id=new_id())
    with parts.binder.bound(scope):
        parts.accounts.user_of(new_id())
        parts.chats.page(scope)
        parts.room.standing(scope)
        parts.turns.standing(scope)
        parts.branches.newest(scope)
        with suppress(NotFound):
            parts.chats.get(scope)
