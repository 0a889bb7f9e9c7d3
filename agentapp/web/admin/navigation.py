"""The list of the admin pages, as it stands at the top of each of them."""

from __future__ import annotations

from typing import NamedTuple


class AdminPage(NamedTuple):
    path: str
    title: str
    about: str  # one sentence for the overview
    operators_only: bool = False


PAGES: tuple[AdminPage, ...] = (
    AdminPage("/admin/isolation", "Isolation", "Whether it holds: the score, checks, violations, leaks."),
    AdminPage("/admin/alerts", "Alerts", "What somebody has to look at, until somebody has."),
    AdminPage("/admin/breakers", "Breakers", "Who is stopped, why and until when; reset and force."),
    AdminPage("/admin/limits", "Limits", "What was refused; limits of users and tenants, to be changed."),
    AdminPage("/admin/usage", "Usage", "What was spent: by day, user, model and agent."),
    AdminPage("/admin/turns", "Turns", "Answers that are being made now, and how to stop one."),
    AdminPage("/admin/users", "Users", "Accounts: add, roles, disable, end logins, new passwords."),
    AdminPage("/admin/workers", "Workers", "The processes that serve: threads, memory, connections.", True),
    AdminPage("/admin/audit-log", "Audit log", "Who did what, and when; filters, CSV."),
    AdminPage("/admin/retention", "Retention", "For how long chats and audit rows are kept."),
)
