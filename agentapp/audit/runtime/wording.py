"""Texts about values, which may be personal data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentapp.audit.runtime.objects import ATOMS, MISSING, class_name, length
from agentapp.audit.runtime.states import State, halves


@dataclass(frozen=True, slots=True)
class Wording:
    """Describes values by type and length; shows the values themselves only with ``values``."""

    values: bool = False

    def of(self, value: Any) -> str:
        if value is MISSING:
            return "nothing"
        return self._shown(value, 2) if self.values else self._sort(value)

    def state(self, obj: Any, state: State, is_mapping: bool) -> str:
        """Describe the state of a container."""
        text = f"{self._type(obj)} of {state[0]}"
        if not self.values:
            return text
        items = state[1]
        if is_mapping:
            pairs = list(zip(*halves(items), strict=True))
            shown = [f"{self._shown(k, 1)}: {self._shown(v, 1)}" for k, v in pairs[-3:]]
        else:
            shown = [self._shown(each, 1) for each in items[-3:]]
        dots = "…, " if state[0] > len(shown) else ""
        return f"{text} ({dots}{', '.join(shown)})" if shown else text

    def key(self, key: Any) -> str:
        return f"[{self._shown(key, 1)}]" if self.values else "[...]"

    def _type(self, value: Any) -> str:
        return class_name(type(value))

    def _sort(self, value: Any) -> str:
        size = length(value)
        return self._type(value) if size is None else f"{self._type(value)} of {size}"

    def _shown(self, value: Any, depth: int) -> str:
        if id(type(value)) in ATOMS:
            text = repr(value[:80]) if type(value) in (str, bytes) else repr(value)
            return text if len(text) <= 90 else text[:89] + "…"
        if depth > 0 and (type(value) is list or type(value) is tuple):
            inside = ", ".join(self._shown(each, depth - 1) for each in value[:3])
            return f"{self._type(value)}({inside}{', …' if len(value) > 3 else ''})"
        return self._sort(value)
