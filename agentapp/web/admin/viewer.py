"""Who looks at an admin page, and whose rows that person may see."""

from __future__ import annotations

from dataclasses import dataclass

from flask import g

from agentapp.errors import Forbidden
from agentapp.storage.values import User
from agentapp.web.hooks import user_scope


@dataclass(frozen=True, slots=True)
class Viewer:
    user: User

    @property
    def is_operator(self) -> bool:
        return self.user.role == "operator"

    @property
    def tenant_id(self) -> str | None:
        """Whose rows to show, for the WHERE of every query: None means all tenants'."""
        return None if self.is_operator else self.user.tenant_id


def require_admin() -> None:
    """The role is read from the database with every request, so a demoted admin is refused at once."""
    user_scope()
    if not may_see_admin_pages():
        raise Forbidden("This page is for admins.")


def may_see_admin_pages() -> bool:
    return "user" in g and g.user.role in ("admin", "operator")


def viewer() -> Viewer:
    require_admin()
    return Viewer(g.user)


def require_operator() -> None:
    if not viewer().is_operator:
        raise Forbidden("This page is for operators, who look after the server itself.")
