"""Who may change whose account, and to what."""

from __future__ import annotations

from agentapp.errors import Forbidden
from agentapp.storage.values import Role, User

ONESELF = "Your own account is changed on the account page, and your role by somebody else."
OPERATORS_ONLY = "Only operators change the accounts of operators."


def roles_given_by(actor: User) -> tuple[Role, ...]:
    """The roles that this person can give."""
    return ("member", "admin", "operator") if actor.role == "operator" else ("member", "admin")


def why_not(actor: User, target: User) -> str:
    """Why this person cannot change that account; empty if it can be done. The caller has made sure that the
    person sees the account at all.
    """
    if actor.id == target.id:
        return ONESELF
    if target.role == "operator" and actor.role != "operator":
        return OPERATORS_ONLY
    return ""


def check_may_change(actor: User, target: User) -> None:
    if reason := why_not(actor, target):
        raise Forbidden(reason)


def check_may_give(actor: User, role: Role) -> None:
    if role not in roles_given_by(actor):
        raise Forbidden("Only operators make operators.")
