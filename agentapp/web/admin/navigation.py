"""The list of the admin pages, as it stands at the top of each of them."""

from __future__ import annotations

from typing import NamedTuple


class AdminPage(NamedTuple):
    path: str
    title: str
    about: str  # one sentence for the overview
    operators_only: bool = False


PAGES: tuple[AdminPage, ...] = (
    AdminPage("/admin/alerts", "Alerts", "What somebody has to look at, until somebody has."),
)
