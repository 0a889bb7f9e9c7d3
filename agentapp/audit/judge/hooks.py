"""Hooks that set a context variable or a thread-local for a request, if nothing resets it afterwards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from agentapp.audit.facts import STEP, Function, Module
from agentapp.audit.judge.calls import Calls
from agentapp.audit.judge.hazards import Hazard
from agentapp.audit.judge.makers import Makers
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import last_name
from agentapp.audit.judge.targets import Id, Target
from agentapp.audit.judge.violations import Key
from agentapp.audit.known_names import AFTER_REQUEST_HOOKS, BEFORE_REQUEST_HOOKS

At = tuple[Module, Function]
WRAPPER_NAMES = frozenset({"middleware", "wrapper", "app", "wsgi", "inner"})


class Hooks:
    def __init__(self, program: Program, calls: Calls, makers: Makers) -> None:
        self._program, self._calls, self._makers = program, calls, makers

    def hazards(self) -> Iterator[Hazard]:
        before, after = self._find_hooks()
        cleared = {
            key for hook in after for at in self._with_helpers(*hook) for key in self._find_touched(*at)
        }
        for hook in before:
            found = [(at, *each) for at in self._with_helpers(*hook) for each in self._find_assignments(*at)]
            for (module, _), key, line, name in found:
                is_set_again = sum(other == key for _, other, _, _ in found) > 1
                if key in cleared or is_set_again or self._resets(*hook, key):
                    continue
                rule = "ISO010" if key[0] == "context" else "ISO011"
                what = f"`{name}` is set by `{hook[1].name}` and not reset when the request ends"
                yield Hazard(module.path, line, rule, what)

    def _find_hooks(self) -> tuple[list[At], list[At]]:
        """The functions that run before or around a request, and those that run after it."""
        before, after = [], []
        registered = self._find_registered()
        for module, function in self._program.functions():
            if self._program.is_not_served(module):
                continue
            names = [self._program.decorator_name(module.name, path) for path in function.decorators]
            names += registered.get((module.name, function.name), ())
            last = last_name(function)
            if any(map(AFTER_REQUEST_HOOKS.search, names)) or last in (
                "process_response",
                "process_exception",
            ):
                after.append((module, function))
            elif any(map(BEFORE_REQUEST_HOOKS.search, names)) or _is_middleware(module, function, last):
                before.append((module, function))
        return before, after

    def _find_registered(self) -> dict[Id, list[str]]:
        """Functions that are registered by a call such as ``app.before_request(f)``."""
        found: dict[Id, list[str]] = defaultdict(list)
        for module, function in self._program.functions():
            for call in function.calls:
                last = call.path.rpartition(STEP)[2]
                if (
                    last.startswith(".")
                    and call.args
                    and (BEFORE_REQUEST_HOOKS.search(last) or AFTER_REQUEST_HOOKS.search(last))
                ):
                    for _, path in call.args:
                        hook = self._program.function_at(module.name, path, function.owner)
                        if hook is not None:
                            found[hook].append(last)
        return found

    def _with_helpers(self, module: Module, function: Function) -> Iterator[At]:
        """The function, and the functions that it calls directly."""
        yield module, function
        for call in function.calls:
            for callee in self._calls.find_callees(module.name, call.path, function.owner):
                yield self._program.modules[callee[0]], self._program.function(callee)

    def _find_assignments(self, module: Module, function: Function) -> Iterator[tuple[Key, int, str]]:
        for call in function.calls:
            if call.path.endswith("|.set"):
                target = self._program.resolve(module.name, call.path.removesuffix("|.set"))
                if target.kind == "var" and self._is_a(target, "ContextVar"):
                    yield ("context", *target.id), call.line, target.name
        for write in function.writes:
            if write.how == "attr" and write.value not in ("del", "N"):
                target = self._program.resolve(module.name, write.path)
                if target.kind == "var" and target.steps and self._is_thread_local(target):
                    attribute = target.steps[0]
                    yield ("local", *target.id, attribute), write.line, f"{target.name}{attribute}"

    def _is_thread_local(self, target: Target) -> bool:
        return self._is_a(target, "local") or self._makers.is_local_instance(target)

    def _is_a(self, target: Target, name: str) -> bool:
        return self._makers.maker_of_variable(target).rpartition(".")[2] == name

    def _find_touched(self, module: Module, function: Function) -> Iterator[Key]:
        """The context variables and thread-locals that a function uses in any way."""
        for call in function.calls:
            target = self._program.resolve(module.name, call.path)
            if target.kind == "var":
                yield ("context", *target.id)
                if ".clear" in target.steps or ".__dict__" in target.steps:
                    yield from (("local", *target.id, name) for name in self._attributes_of(target))
        for write in function.writes:
            target = self._program.resolve(module.name, write.path)
            if target.kind == "var" and target.steps:
                yield ("local", *target.id, target.steps[0])

    def _attributes_of(self, local: Target) -> set[str]:
        """All attributes that the program sets on a thread-local."""
        found = set()
        for module, function in self._program.functions():
            for write in function.writes:
                if write.how == "attr" and local.name in write.path:
                    other = self._program.resolve(module.name, write.path)
                    if other.kind == "var" and other.id == local.id and other.steps:
                        found.add(other.steps[0])
        return found

    def _resets(self, module: Module, function: Function, key: Key) -> bool:
        """Whether the hook, or a function that it calls or contains, resets the value."""
        inside = (
            (module, inner) for inner in module.functions.values() if inner.outer.startswith(function.name)
        )
        for at, each in [*self._with_helpers(module, function), *inside]:
            for call in each.calls:
                target = self._program.resolve(at.name, call.path)
                is_reset = target.kind == "var" and target.steps[-1:] in ((".reset",), (".clear",))
                if is_reset and target.id == key[1:3]:
                    return True
            for write in each.writes:
                if write.value in ("del", "N"):
                    target = self._program.resolve(at.name, write.path)
                    if (target.kind, target.id, target.steps[:1]) == ("var", key[1:3], key[3:4]):
                        return True
        return False


def _is_middleware(module: Module, function: Function, last: str) -> bool:
    if last in ("process_request", "process_view") or "call_next" in function.params:
        return True
    if function.owner and last in ("__call__", "dispatch"):
        class_ = module.classes.get(function.owner)
        names = (function.owner, *(class_.bases if class_ else ()))
        return any("iddleware" in name for name in names)
    outer = module.functions.get(function.outer)
    if outer is not None and "get_response" in outer.params:
        return True
    return "iddleware" in function.outer and last in WRAPPER_NAMES
