"""Who may import whom, and who may keep what: the picture in docs/architecture.md, checked."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "agentapp"

# High to low. A module imports its own package and what is below: never what is above or beside it.
LAYERS = (
    {"app", "cli"},
    {"sessions", "web"},
    {"storage"},
    {"retention", "turns"},
    {"agents", "guardrails", "server"},
    {"config", "telemetry"},
    {"events", "instance", "isolation", "parsing", "processors"},
    {"audit", "build", "errors", "logs"},
)
# Third parties with an owner: nobody else may import them.
OWNERS = {
    "flask": ("app", "web"),
    "flask_login": ("web",),
    "flask_wtf": ("web",),
    "itsdangerous": ("web",),
    "werkzeug": ("app", "web"),
    "markupsafe": ("web",),
    "markdown_it": ("web.markdown",),
    "nh3": ("web.markdown",),
    "pygments": ("web.markdown",),
    "sqlalchemy": ("sessions.sql_sessions", "storage"),
    "redis": ("storage.redis_check", "storage.redis_client", "storage.redis_connection"),
    "argon2": ("storage.accounts",),
    "zxcvbn": ("storage.passwords",),
    "anthropic": ("agents.providers.anthropic",),
    "httpx2": ("agents.providers.anthropic",),
    "httptools": ("agents.providers.anthropic",),
    "pydantic": ("agents.tool",),
    "click": ("cli",),
    "alembic": ("storage.migrate",),
    "gunicorn": ("server",),
    "prometheus_client": ("telemetry.metrics",),
    "opentelemetry": ("telemetry.otel",),
    "structlog": ("telemetry.log_lines",),
}
MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MAKERS = {"list", "dict", "set", "defaultdict", "OrderedDict", "Counter", "deque", "local"}


def modules() -> dict[str, ast.Module]:
    names = {path: path.relative_to(PACKAGE).with_suffix("") for path in sorted(PACKAGE.rglob("*.py"))}
    return {
        ".".join(name.parts).removesuffix(".__init__"): ast.parse(path.read_text())
        for path, name in names.items()
        if name != Path("__init__")
    }


MODULES = modules()


def imports(tree: ast.Module) -> Iterator[str]:
    """Full names of everything imported. Imports for type checkers count too: a layer is a layer."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where something comes from"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(name: str) -> int:
    return next(n for n, layer in enumerate(LAYERS) if name.split(".")[0] in layer)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_what_is_below_it(name: str) -> None:
    for imported in imports(MODULES[name]):
        root, _, target = imported.partition(".")
        if root != "agentapp" or target.split(".")[0] in ("__version__", name.split(".")[0]):
            continue
        assert layer_of(name) < layer_of(target), f"{name} must not import {target}"


def module_of(imported: str) -> str | None:
    """The module that an import of ours is from; None if it is somebody else's."""
    root, _, target = imported.partition(".")
    if root != "agentapp":
        return None
    while target and target not in MODULES:
        target = target.rpartition(".")[0]
    return target or None


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions count too: they only hide a circle."""
    graph = {
        name: {found for each in imports(tree) if (found := module_of(each)) not in (None, name)}
        for name, tree in MODULES.items()
    }
    while leaves := {name for name, targets in graph.items() if not targets & graph.keys()}:
        graph = {name: targets for name, targets in graph.items() if name not in leaves}
    assert not graph


def test_the_house_is_small_enough_to_know() -> None:
    """Few layers, few modules at the root, no module that takes long to read."""
    assert len(LAYERS) <= 8
    assert len([path for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]) <= 10
    lengths = {path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {path: length for path, length in lengths.items() if length > 350} == {}


@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith(("audit", "cli"))])
def test_the_auditor_is_for_the_command_alone(name: str) -> None:
    audits = [each for each in imports(MODULES[name]) if f"{each}.".startswith("agentapp.audit.")]
    assert not [each for each in audits if not each.startswith("agentapp.audit.runtime")]


@pytest.mark.parametrize("name", MODULES)
def test_third_parties_are_imported_by_their_owners_only(name: str) -> None:
    for imported in imports(MODULES[name]):
        owners = OWNERS.get(imported.split(".")[0], (name,))
        assert name.startswith(owners), f"{name} must not import {imported}"


@pytest.mark.parametrize("name", MODULES)
def test_no_module_keeps_anything_that_can_change(name: str) -> None:
    """No module-level list, dict, set or cache, and no `global`: state lives in objects with a lifetime."""
    for node in MODULES[name].body:
        value = getattr(node, "value", None)
        if not isinstance(node, ast.Assign | ast.AnnAssign) or ast.unparse(node).startswith("__all__"):
            continue
        maker = ast.unparse(value.func).split(".")[-1] if isinstance(value, ast.Call) else ""
        assert not isinstance(value, MUTABLE), f"{name}:{node.lineno}"
        assert maker not in MAKERS, f"{name}:{node.lineno}"
    for node in ast.walk(MODULES[name]):
        assert not isinstance(node, ast.Global), f"{name}:{node.lineno}"
        decorators = [ast.unparse(d).partition("(")[0] for d in getattr(node, "decorator_list", ())]
        assert not any(d.endswith(("lru_cache", ".cache", "cached")) for d in decorators), name
