"""Writes to objects outside the program: the application object, the process, modules of libraries."""

from __future__ import annotations

from agentapp.audit.facts import Module, Write
from agentapp.audit.judge.violations import Violation
from agentapp.audit.known_names import ENVIRON, REQUEST_OBJECTS

PROCESS_WIDE = frozenset({"sys.path", "os.environ", "sys.modules"})


def find_outside_violation(module: Module, write: Write, name: str) -> Violation | None:
    if "current_app" in name and write.how in ("attr", "item", "call") and "(" not in name:
        if write.how == "call" and not name.endswith(("config", "extensions")):
            return None
        return Violation("ISO012", ("ext", "current_app"), "the application object", module.name, write.line)
    if "()" in name or "." not in name:
        return None
    if ENVIRON.match(name) and write.how in ("item", "call"):
        return Violation("ISO014", ("ext", "os.environ"), "`os.environ`", module.name, write.line)
    base = name.rpartition(".")[0] if write.how == "attr" else name
    if REQUEST_OBJECTS.search(base) or ("[]" in name and write.how != "item"):
        return None
    if write.how == "call":
        is_known = name in PROCESS_WIDE
        return Violation("ISO014", ("ext", name), f"`{name}`", module.name, write.line) if is_known else None
    if name.startswith("sys.modules"):
        return None
    return Violation("ISO013", ("ext", module.name, name), f"`{name}`", module.name, write.line)
