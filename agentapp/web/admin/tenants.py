"""Of which tenant a page shows the rows, where operators may choose."""

from __future__ import annotations

from dataclasses import dataclass

from agentapp.storage.names import MAX_NAME_CHARS
from agentapp.web.admin.viewer import viewer
from agentapp.web.incoming import query_text
from agentapp.web.parts import parts


@dataclass(frozen=True, slots=True)
class ShownTenant:
    """``id`` is None and ``name`` is empty if it is all of them."""

    id: str | None
    name: str

    @property
    def in_words(self) -> str:
        return self.name or "All tenants"


def shown_tenant() -> ShownTenant:
    """An admin's own, whatever the address asks for; an operator's choice, by its name."""
    who = viewer()
    if not who.is_operator:
        return ShownTenant(who.user.tenant_id, who.user.tenant)
    name = query_text("tenant", max_chars=MAX_NAME_CHARS)
    if not name:
        return ShownTenant(None, "")
    found = parts().admin.limits.find("tenant", name, None)
    return ShownTenant(found.key.id, found.name)
