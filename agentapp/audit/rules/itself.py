"""ISO090 to ISO099: suppressions, and files that cannot be read."""

from __future__ import annotations

from agentapp.audit.rules.rule import Rule

RULES = (
    Rule(
        "ISO090",
        "a suppression without a reason",
        "error",
        why="Nobody can tell later whether it still holds.",
        fix="Write why the object may be shared: `# agentapp: shared ok - <reason>`.",
        bad="""
            seen = set()  # agentapp: shared ok
        """,
        good="""
            seen = set()  # agentapp: shared ok - filled once by the loader thread
        """,
    ),
    Rule(
        "ISO091",
        "a suppression of nothing",
        "warning",
        why="What it excused is gone; left behind, it would excuse the next hazard on that line.",
        fix="Remove it.",
        bad="""
            LIMIT = 10  # agentapp: shared ok - only read
        """,
        good="""
            LIMIT = 10
        """,
    ),
    Rule(
        "ISO099",
        "a file that cannot be read as Python",
        "error",
        why="Nothing is known about it.",
        fix="Mend it, or exclude it in `[tool.agentapp.audit]`.",
        bad="""
            def broken(:
        """,
        good="""
            def mended():
                pass
        """,
    ),
)
