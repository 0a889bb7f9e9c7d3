"""What was measured, as one table: ratios to the bare app first, then the figures themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

BARE = "bare"


@dataclass(frozen=True)
class Row:
    """``more_is_better`` decides which of several repetitions is the worst. The other systems are compared
    with those in ``bases``.
    """

    name: str
    unit: str = ""
    digits: int = 1
    more_is_better: bool = False
    bases: tuple[str, ...] = (BARE,)


@dataclass
class Figures:
    systems: list[str]
    rows: dict[Row, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)  # share of the processors that others had, each time

    def add(self, system: str, row: Row, value: float) -> None:
        self.rows.setdefault(row, {}).setdefault(system, []).append(value)

    def medians(self, system: str, name_ends: str) -> dict[str, float]:
        """What was measured of a system so far, in rows whose names end so."""
        found = {row.name: values[system] for row, values in self.rows.items() if system in values}
        return {name: median(values) for name, values in found.items() if name.endswith(name_ends)}

    def note(self, text: str) -> None:
        self.notes.append(text)

    def table(self) -> str:
        bases = dict.fromkeys(base for row in self.rows for base in row.bases)
        parts = [self._ratios(base) for base in bases] + [self._values()]
        notes = list(self.notes)
        if self.disturbed:
            usual, worst = median(self.disturbed), max(self.disturbed)
            notes.append(f"other work had {usual:.0%} of the processors while it was measured [{worst:.0%}]")
        if notes:
            parts.append(["Notes", *(f"- {note}" for note in notes)])
        return "\n\n".join("\n".join(lines) for lines in parts if lines)

    def _ratios(self, base: str) -> list[str]:
        """Of runs that were made right after each other; in brackets the worst of them."""
        others = [
            name
            for name in self.systems
            if name != base and (base == BARE or name.startswith(("postgres", "redis")))
        ]
        found = []
        for row, values in self.rows.items():
            if base not in row.bases or base not in values:
                continue
            shown = Row(row.name, "x", 2, row.more_is_better)
            pairs = [zip(values.get(name, ()), values[base], strict=False) for name in others]
            cells = [_cell(shown, [a / b for a, b in each if b]) for each in pairs]
            if any(cell != EMPTY for cell in cells):
                found.append(_line(row.name, cells))
        return [_line(f"RATIO TO {base}: median [worst]", others), *found] if found else []

    def _values(self) -> list[str]:
        lines = [_line("MEASURED: median [worst]", self.systems)]
        for row, values in self.rows.items():
            lines.append(_line(row.name, [_cell(row, values.get(name, [])) for name in self.systems]))
        return lines


EMPTY = "-"


def _cell(row: Row, values: list[float]) -> str:
    if not values:
        return EMPTY
    worst = min(values) if row.more_is_better else max(values)
    shown = f"{median(values):,.{row.digits}f}{row.unit}"
    return shown if len(values) == 1 else f"{shown} [{worst:,.{row.digits}f}]"


def _line(name: str, cells: list[str]) -> str:
    return f"{name:52}" + "".join(f"{cell:>22}" for cell in cells)
