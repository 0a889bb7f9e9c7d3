"""What was measured, as one table: ratios to the bare app first, then the figures themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

BARE = "bare"


@dataclass(frozen=True)
class Row:
    """``more_is_better`` decides which one of several repetitions is the worst."""

    name: str
    unit: str = ""
    digits: int = 1
    more_is_better: bool = False
    has_ratio: bool = True


@dataclass
class Figures:
    systems: list[str]
    rows: dict[Row, dict[str, list[float]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def add(self, system: str, row: Row, value: float) -> None:
        self.rows.setdefault(row, {}).setdefault(system, []).append(value)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def table(self) -> str:
        lines = []
        if BARE in self.systems and len(self.systems) > 1:
            lines += [*self._ratios(), ""]
        lines += self._values()
        if self.notes:
            lines += ["", "Notes", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines)

    def _ratios(self) -> list[str]:
        """Of the runs that were made right after each other; in brackets the worst of them."""
        others = [name for name in self.systems if name != BARE]
        lines = [_line("Ratio to bare: median [worst]", others)]
        for row, values in self.rows.items():
            if not row.has_ratio or BARE not in values:
                continue
            cells = []
            for name in others:
                pairs = zip(values.get(name, ()), values[BARE], strict=False)
                cells.append(_cell(Row(row.name, "x", 2, row.more_is_better), [a / b for a, b in pairs if b]))
            lines.append(_line(row.name, cells))
        return lines

    def _values(self) -> list[str]:
        lines = [_line("Measured: median [worst]", self.systems)]
        for row, values in self.rows.items():
            lines.append(_line(row.name, [_cell(row, values.get(name, [])) for name in self.systems]))
        return lines


def _cell(row: Row, values: list[float]) -> str:
    if not values:
        return "-"
    worst = min(values) if row.more_is_better else max(values)
    shown = f"{median(values):,.{row.digits}f}{row.unit}"
    return shown if len(values) == 1 else f"{shown} [{worst:,.{row.digits}f}]"


def _line(name: str, cells: list[str]) -> str:
    return f"{name:46}" + "".join(f"{cell:>22}" for cell in cells)
