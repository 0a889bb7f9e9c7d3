"""Pass two: which objects outlive a request, which writes to them it can reach, and whether that is safe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from agentapp.audit.facts import MAIN, MODULE, STEP, Call, Function, Module, Read, Write
from agentapp.audit.known import (
    APPLICATION,
    APPS,
    CACHES,
    CALLER,
    CHANGED_BY,
    CONTAINERS,
    COPYING,
    ENVIRON,
    GLANCES,
    HOOKS,
    INITS,
    MUTATORS,
    PER_THREAD,
    PROCESS_CALLS,
    REQUEST_OWN,
    SAFE_MADE,
    SCRIPTS,
    SERVING,
    STARTS,
    STATEFUL,
    TEARDOWNS,
    VALIDATORS,
)
from agentapp.audit.program import Id, Program, Target


@dataclass(slots=True)
class State:
    """An object that outlives requests."""

    key: tuple[str, ...]
    name: str  # as people would call it
    module: str
    line: int
    writes: list[Touch] = field(default_factory=list)


class Touch(NamedTuple):
    rule: str
    module: Module
    function: Function
    line: int
    locks: frozenset[str]
    lazy: int
    is_in_place: bool  # whoever reads meanwhile may see half of it


@dataclass(frozen=True, slots=True, order=True)
class Hazard:
    path: str
    line: int
    rule: str
    message: str
    function: str = ""
    what: str = ""  # the object, as people would call it


def grouped(hazards: Iterable[Hazard]) -> list[Hazard]:
    """One for each function and rule: what it does to several objects is one thing to mend."""
    groups: dict[tuple[str, str, str], list[Hazard]] = defaultdict(list)
    for hazard in sorted(hazards):
        groups[hazard.path, hazard.rule, hazard.function or hazard.message].append(hazard)
    found = []
    for first, *others in groups.values():
        names = list(dict.fromkeys(other.what for other in others if other.what and other.what != first.what))
        more = f"; the same goes for {', '.join(names[:3])}" if names else ""
        more += f" and {len(names) - 3} more" if len(names) > 3 else ""
        found.append(replace(first, message=first.message + more))
    return sorted(found)


class Judge:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.states: dict[tuple[str, ...], State] = {}
        self.shared: dict[Id, str] = {}  # classes of which an instance outlives requests, and where that is
        self._held: dict[Id, frozenset[str]] = {}
        self._making: dict[Id, bool] = {}
        self._params: dict[Id, dict[str, list[tuple[tuple[str, ...], Write]]]] = {}

    def hazards(self) -> list[Hazard]:
        program = self.program
        self._find_shared()
        self._sum_up_params()
        for module, function in program.functions():
            if (module.name, function.name) in program.reached:
                self._look_at(module, function)
            elif function.name == MODULE and not program.is_not_served(module):
                self._look_at_later(module, function)
        found = list(self._cached_misuse())
        found += self._hooks()
        for state in self.states.values():
            found += self._judged(state)
        return grouped(set(found))

    # -- which classes have an instance that is shared

    def _find_shared(self) -> None:
        program, left = self.program, list[tuple[Id, str]]()
        for module in program.modules.values():
            if program.is_not_served(module):
                continue
            for name, (value, line) in module.names.items():
                if (made := program.made(module.name, value)) is not None:
                    left.append((made, f"`{name}` ({module.path}:{line})"))
            for class_ in module.classes.values():
                for name, (value, line, _) in class_.attributes.items():
                    if (made := program.made(module.name, value)) is not None:
                        left.append((made, f"`{class_.name}.{name}` ({module.path}:{line})"))
                if self._is_singleton(module, class_.name):
                    left.append(
                        (
                            (module.name, class_.name),
                            f"the only `{class_.name}` ({module.path}:{class_.line})",
                        )
                    )
            for function in module.functions.values():
                left += self._kept_instances(module, function)
                left += self._given_away(module, function)
        while left:
            id, home = left.pop()
            if id in self.shared or self._is_per_thread(id):
                continue
            self.shared[id] = home
            for at in program.bases(id):
                for name, value in program._own_values.get(at, {}).items():
                    made = program.made(at[0], value, at[1])
                    if made is not None and made not in self.shared:
                        left.append((made, f"{home}, in its `{name}`"))

    def _kept_instances(self, module: Module, function: Function) -> Iterator[tuple[Id, str]]:
        program = self.program
        where = f"{module.path}:{function.line}"
        for name, value in function.defaults.items():
            if (made := program.made(module.name, value)) is not None:
                yield made, f"the default of `{name}` ({where})"
        for write in function.writes:
            if (made := program.made(module.name, write.value, function.owner)) is None:
                continue
            target = program.resolve(module.name, write.path, function.owner)
            is_app = (target.kind == "var" and self._is_app(target)) or self._names_app(write.path, target)
            if (
                target.kind in ("var", "class", "module") and (write.how == "rebind" or target.steps)
            ) or is_app:
                yield made, f"`{spoken(write.path)}` ({module.path}:{write.line})"
        if program.is_cached(module.name, function):
            for path in function.returns:
                target = program.resolve(module.name, path, function.owner)
                if target.kind == "inst" and not target.steps:
                    yield target.id, f"what `{function.name}` caches ({where})"
        if self._is_made_once(module, function):
            for name, value in function.locals.items():
                if (made := program.made(module.name, value)) is not None and self._is_captured(
                    module, function, name
                ):
                    yield made, f"`{name}` of `{function.name}` ({where})"

    def _given_away(self, module: Module, function: Function) -> Iterator[tuple[Id, str]]:
        """Instances that are made before anything is served, and handed to somebody or put into something."""
        id = (module.name, function.name)
        if id in self.program.reached or not self._runs_before_serving(id, 5):
            return
        for path in function.mentions:
            if path.endswith("()"):
                target = self.program.resolve(module.name, path, function.owner)
                if target.kind == "inst" and not target.steps:
                    yield target.id, f"`{spoken(path)}` ({module.path}:{function.line})"

    def _runs_before_serving(self, id: Id, depth: int) -> bool:
        """At import or while the application is made; a script that serves nothing does not count."""
        name = id[1].rpartition(".")[2]
        if name == MODULE or name in STARTS - SCRIPTS or id in self.program.starts:
            return True
        callers = self.program.callers.get(id, ())
        return depth > 0 and any(self._runs_before_serving(caller, depth - 1) for caller, _ in callers)

    def _is_captured(self, module: Module, function: Function, name: str) -> bool:
        path = f"f:{function.name}:{name}"
        for inner in module.functions.values():
            if inner.outer.startswith(function.name) and any(
                call.path.startswith(path) for call in inner.calls
            ):
                return True
        return False

    def _is_singleton(self, module: Module, class_: str) -> bool:
        program, id = self.program, (module.name, class_)
        facts = program.class_(id)
        if self._is_served_by_one(id):
            return True
        if any("ingleton" in path for path in (*facts.decorators, *facts.keywords.values(), *facts.bases)):
            return True
        meta = facts.keywords.get("metaclass")
        if meta is not None:
            target = program.resolve(module.name, meta)
            if target.kind == "class":
                call = program.method(target.id, "__call__")
                if call is not None and any(w.how in ("item", "attr") for w in program.function(call).writes):
                    return True
        for name in facts.methods:
            function = module.functions.get(f"{class_}.{name}")
            for write in function.writes if function else ():
                is_class = write.path.startswith("c|.") or write.path.startswith(f"g:{class_}|.")
                if (
                    write.path in ("s|.__dict__", "s")
                    and write.how == "attr"
                    and write.value.startswith("P:")
                ):
                    return True
                made = write.value.startswith(
                    ("C:s|.__new__", "C:c|.__new__", "C:c", f"C:g:{class_}", "C:g:object|.__new__")
                )
                if is_class and made and write.how in ("attr", "item"):
                    return True
        return False

    def _is_served_by_one(self, id: Id) -> bool:
        """Middleware, and views that are told so, are made once by the framework."""
        program = self.program
        facts = program.class_(id)
        if facts.attributes.get("init_every_request", ("",))[0] == "K":
            return True
        init, call = (
            program.method(id, "__init__"),
            next((found for name in SERVING if (found := program.method(id, name))), None),
        )
        first = program.function(init).params[1:2] if init else ()
        if first == ("get_response",):
            return True
        is_one = facts.name.endswith("Middleware") or any(
            "Middleware" in name for name in program.outside_bases(id)
        )
        return is_one and call is not None

    def _is_per_thread(self, id: Id) -> bool:
        return any(PER_THREAD.search(name) for name in self.program.outside_bases(id))

    # -- looking at one function

    def _look_at(self, module: Module, function: Function) -> None:
        for write in function.writes:
            self._note(module, function, write)
        for call in function.calls:
            change = self._as_write(call) or self._changed_by(module, call)
            if change is not None and not self._keeps_task(function, change):
                self._note(module, function, change)
            if call.args:
                self._through_params(module, function, call)
            if call.path[:2] == "g:":
                self._process_wide(module, function, call)

    def _look_at_later(self, module: Module, function: Function) -> None:
        """What is only begun at import: generators, and functions that are bound to arguments."""
        for call in function.calls:
            target = self.program.resolve(module.name, call.path)
            is_partial = target.kind == "ext" and target.name.rpartition(".")[2] == "partial"
            is_generator = (
                target.kind == "func" and not target.steps and self.program.function(target.id).yields
            )
            if is_partial or is_generator:
                self._through_params(module, function, call)

    def _keeps_task(self, function: Function, write: Write) -> bool:
        """A set that keeps a background task alive until it is done, and is asked for nothing else."""
        return write.value == "add" and any(
            call.path.endswith(".add_done_callback") for call in function.calls
        )

    def _changed_by(self, module: Module, call: Call) -> Write | None:
        """A function outside that changes what it is given."""
        if call.path[:2] == "g:" and call.args and call.args[0][0] == "0":
            target = self.program.resolve(module.name, call.path)
            if target.kind == "ext" and target.name in CHANGED_BY:
                return Write(call.args[0][1], "call", call.line, call.locks)
        return None

    def _as_write(self, call: Call) -> Write | None:
        base, _, last = call.path.rpartition(STEP)
        if base and last[1:] in MUTATORS:
            return Write(base, "call", call.line, call.locks, call.lazy, last[1:])
        return None

    def _note(self, module: Module, function: Function, write: Write) -> None:
        if write.path.endswith("~") or (write.how == "aug" and write.value != "M" and write.path.count(STEP)):
            return
        owner = self.program.owner_of(module, function)
        target = self._target(module, write, owner)
        found = None if target.steps[-1:] == ("~",) else self._state_of(module, function, write, target)
        if found is None:
            return
        rule, key, name, home, line = found
        state = self.states.setdefault(key, State(key, name, home, line))
        locks = self._locks_held(module, function) | self._locks(module, function, write.locks)
        state.writes.append(
            Touch(rule, module, function, write.line, locks, write.lazy, in_place(write, target))
        )

    def _target(self, module: Module, write: Write, owner: str) -> Target:
        """What is written to. An attribute is written to its object, whatever it was before."""
        base, _, last = write.path.rpartition(STEP)
        if write.how == "attr" and base:
            target = self.program.resolve(module.name, base, owner)
            if target.kind in ("module", "class", "func", "self") and not target.steps:
                if target.kind != "module":
                    return target._replace(steps=(last,))
                named = self.program.named(target.module, last[1:])
                return named if named.kind == "var" else Target("patched", target.module, last[1:])
        target = self.program.resolve(module.name, write.path, owner)
        if target.kind == "module" and write.how in ("item", "call"):
            return Target("patched", target.module, "its names")
        return target

    def _state_of(
        self, module: Module, function: Function, write: Write, target: Target
    ) -> tuple[str, tuple[str, ...], str, str, int] | None:
        match target.kind:
            case "param" | "self" if (
                len(target.steps) > 1 and target.steps[0] in APPLICATION and "()" not in target.steps
            ):
                return "ISO012", ("app", "state"), "the application's state", module.name, write.line
            case "var":
                return self._of_var(write, target)
            case "class" if target.steps and write.how != "next":
                return self._of_class(function, write, target)
            case "self" if target.steps:
                return self._of_self(module, function, write, target)
            case "patched":
                home = self.program.modules.get(target.module, module)
                return "ISO013", ("patched", *target.id), f"`{target.module}.{target.name}`", home.name, 1
            case "cached" if "()" not in target.steps and (write.how != "attr" or target.steps):
                line = self.program.function(target.id).line
                return "ISO007", ("cached", *target.id), f"what `{target.name}` caches", target.module, line
            case "cell":
                return self._of_cell(module, function, write, target)
            case "func" if target.steps and write.how in ("attr", "item") and self._is_patched(write, target):
                return (
                    "ISO013",
                    ("function", *target.id),
                    f"`{target.name}`",
                    target.module,
                    self.program.function(target.id).line,
                )
            case "param":
                return self._of_default(module, function, write, target)
            case "ext":
                return self._of_outside(module, write, target)
        return None

    def _is_patched(self, write: Write, target: Target) -> bool:
        """Whether it is a function that others have too, and not one that was just made here."""
        return "()" not in target.steps and not write.path.startswith("d:")

    def _of_var(self, write: Write, target: Target) -> tuple[str, tuple[str, ...], str, str, int] | None:
        home = self.program.modules[target.module]
        value, line = home.names[target.name]
        key, name = ("var", *target.id), f"`{target.name}`"
        made = self._made_by(target.module, value)
        if self.program.is_not_served(home):
            return None
        if PER_THREAD.search(made) or self._is_local_instance(target):
            if "#M" in value and target.steps[:1] == ("[]",):
                return "ISO010", key, f"the default of {name}", target.module, line
            return None
        if write.how == "next":
            return None
        if APPS.search(made) and write.how in ("attr", "item", "call", "aug"):
            if write.how == "call" and not target.steps:
                return None
            return "ISO012", key, f"the application object {name}", target.module, line
        if write.how == "rebind" or (write.how == "attr" and not target.steps):
            return ("ISO005" if write.lazy else "ISO002"), key, name, target.module, line
        if "()" in target.steps and self.program.class_of(target._replace(steps=())) is None:
            return None  # what a client gives is new
        if SAFE_MADE.search(made):
            return None
        of = self.program.class_of(target)
        if write.how == "aug" and not target.steps and not self._is_container(value, made):
            return None  # what cannot be changed is replaced
        if write.how == "call":
            if of is not None and not target.steps:
                return None
            if not self._is_container(value, made) and not (target.steps and value[0] == "M"):
                return None
        rule = "ISO001"
        if (
            write.how in ("attr", "item")
            and value.startswith("C:")
            and of is None
            and not CONTAINERS.search(made)
        ):
            rule = "ISO016" if target.steps else "ISO001"
        if of is not None:
            if target.steps and target.steps[0].startswith("."):
                return "ISO004", ("attr", *of, target.steps[0][1:]), f"{name}", target.module, line
            rule = "ISO004"
        if rule == "ISO001" and write.lazy and write.how in ("item", "call"):
            rule = "ISO006"
        return rule, key, name, target.module, line

    def _made_by(self, module: str, value: str, depth: int = 4) -> str:
        """The name of what is called to make a value, as far as that is outside of the program."""
        if value == "M":
            return "list"
        if not value.startswith("C:"):
            return ""
        path = value[2:].partition("#")[0]
        target = self.program.resolve(module, path)
        if target.kind == "ext":
            return target.name
        if target.kind == "var" and depth:
            inner = self._made_by(
                target.module, self.program.modules[target.module].names[target.name][0], depth - 1
            )
            return f"{inner}()" if inner else ""
        return ""

    def _is_container(self, value: str, made: str) -> bool:
        return value == "M" or CONTAINERS.search(made) is not None

    def _is_local_instance(self, target: Target) -> bool:
        of = self.program.class_of(target._replace(steps=()))
        return of is not None and self._is_per_thread(of)

    def _is_app(self, target: Target) -> bool:
        value = self.program.modules[target.module].names[target.name][0]
        return APPS.search(self._made_by(target.module, value)) is not None

    def _names_app(self, path: str, target: Target) -> bool:
        return (
            "current_app" in target.name
            or "|.app|" in path
            or path.startswith(("p:app|", "f:create_app:app"))
        )

    def _of_class(
        self, function: Function, write: Write, target: Target
    ) -> tuple[str, tuple[str, ...], str, str, int] | None:
        program = self.program
        classes = program.modules[target.module].classes
        if target.name not in classes or not target.steps[0].startswith(".") or "()" in target.steps:
            return None
        attribute = target.steps[0][1:]
        found = program.attribute(target.id, attribute)
        at, (value, line, _) = found if found else (target.id, ("?", program.class_(target.id).line, False))
        made = self._made_by(at[0], value)
        if PER_THREAD.search(made) or SAFE_MADE.search(made):
            return None
        if write.how == "call" and not self._is_container(value, made) and len(target.steps) == 1:
            return None
        if attribute == "*" and self._is_never_given_anything(target.id, function):
            return None
        rule = "ISO003"
        if write.lazy and len(target.steps) == 1 and write.how == "attr":
            rule = "ISO005"
        return rule, ("class", *at, attribute), f"`{at[1]}.{attribute}`", at[0], line

    def _is_never_given_anything(self, id: Id, function: Function) -> bool:
        """A constructor that keeps its arguments on the class, and never gets any here."""
        if not function.name.endswith(".__init__"):
            return False
        counts = self._constructions.get(id, [])
        return bool(counts) and not any(counts)

    @cached_property
    def _constructions(self) -> dict[Id, list[int]]:
        """With how many arguments a class is called, each time."""
        found: dict[Id, list[int]] = defaultdict(list)
        for module, function in self.program.functions():
            for call in function.calls:
                target = self.program.resolve(module.name, call.path, function.owner)
                if target.kind == "class" and not target.steps:
                    found[target.id].append(call.given)
        return found

    def _of_self(
        self, module: Module, function: Function, write: Write, target: Target
    ) -> tuple[str, tuple[str, ...], str, str, int] | None:
        program, id = self.program, target.id
        if target.name not in module.classes or not target.steps[0].startswith(".") or "()" in target.steps:
            return None
        attribute = target.steps[0][1:]
        is_rebound = write.how == "attr" and len(target.steps) == 1
        set_in_init = self._is_set_in_init(id, attribute)
        found = program.attribute(id, attribute)
        if not is_rebound and (default := self._kept_default(id, attribute)) is not None:
            return default
        for below in program.subclasses.get(id, ()):
            other = program.class_(below).attributes.get(attribute)
            if other is not None and other[0] == "M" and not self._is_set_in_init(below, attribute):
                found = below, other
        if found is not None and not set_in_init and not is_rebound:
            at, (value, line, annotated) = found
            made = self._made_by(at[0], value)
            own = (annotated or attribute.startswith("_")) and self._copies_defaults(id)
            if (self._is_container(value, made) or (write.how == "item" and value[0] == "M")) and not own:
                return "ISO003", ("class", *at, attribute), f"`{at[1]}.{attribute}`", at[0], line
        last = function.name.rpartition(".")[2].partition("@")[0]
        home = self._shared_home(id)
        if home is None or last in INITS or self._only_from_init(module, function):
            return None
        if any(VALIDATORS.search(program.decorator(module.name, path)) for path in function.decorators):
            return None  # it belongs to making the object
        value = program.instance_values(id).get(attribute, "?")
        if target.steps[1:2] == ("[]",) and program.made(target.module, value, target.name) is not None:
            return None  # what an object of its own gives need not be what it has
        kept = value.startswith("P:p:")
        made = self._made_by(target.module, value)
        if PER_THREAD.search(made) or SAFE_MADE.search(made):
            return None
        if write.how == "call" and not (
            self._is_container(value, made) or kept or (len(target.steps) > 1 and value == "M")
        ):
            return None
        if (
            write.how in ("attr", "item", "call")
            and len(target.steps) > 1
            and made
            and not self._is_container(value, made)
            and write.how != "attr"
        ):
            return None
        rule = "ISO005" if write.lazy and is_rebound else "ISO004"
        class_ = program.class_(id)
        return (
            rule,
            ("attr", *id, attribute),
            f"`{class_.name}.{attribute}` of {home}",
            target.module,
            class_.line,
        )

    def _kept_default(self, id: Id, attribute: str) -> tuple[str, tuple[str, ...], str, str, int] | None:
        """``self.items = items``, where ``items`` has a mutable default."""
        for module, class_ in self.program.bases(id):
            init = self.program.modules[module].functions.get(f"{class_}.__init__")
            for write in init.writes if init else ():
                if init and write.path == f"s|.{attribute}" and write.value.startswith("P:p:"):
                    name = write.value[4:]
                    if init.defaults.get(name) == "M":
                        return (
                            "ISO008",
                            ("default", module, init.name, name),
                            f"the default of `{name}`",
                            module,
                            init.line,
                        )
        return None

    def _shared_home(self, id: Id) -> str | None:
        """Where an instance of the class, or of one made from it, is kept."""
        for other in (id, *self.program.subclasses.get(id, ())):
            if other in self.shared:
                return self.shared[other]
        return None

    def _only_from_init(self, module: Module, function: Function, depth: int = 4) -> bool:
        """Whether nobody calls it but those who make the object."""
        id = (module.name, function.name)
        known = self._making.get(id)
        if known is None:
            self._making[id] = False
            callers = [caller for caller, _ in self.program.callers.get(id, ())]
            known = (
                bool(callers)
                and id not in self.program.mentioned
                and depth > 0
                and all(
                    caller[1].rpartition(".")[2] in INITS
                    or caller[1] in (MODULE, MAIN)
                    or self._only_from_init(
                        self.program.modules[caller[0]], self.program.function(caller), depth - 1
                    )
                    for caller in callers
                )
            )
            self._making[id] = known
        return known

    def _is_set_in_init(self, id: Id, attribute: str) -> bool:
        for module, class_ in self.program.bases(id):
            for name, function in self.program.modules[module].functions.items():
                if (
                    function.owner == class_
                    and (
                        name.rpartition(".")[2] in INITS
                        or self._only_from_init(self.program.modules[module], function)
                    )
                    and any(
                        write.path == f"s|.{attribute}" and write.how == "attr" for write in function.writes
                    )
                ):
                    return True
        return False

    def _copies_defaults(self, id: Id) -> bool:
        """Whether every instance gets copies of the class's values, as in pydantic."""
        outside = self.program.outside_bases(id)
        if any(name.rpartition(".")[2] in COPYING for name in outside):
            return True
        return any(
            "dataclass" in path or "attr" in path or "define" in path
            for at in self.program.bases(id)
            for path in self.program.class_(at).decorators
        )

    def _of_cell(
        self, module: Module, function: Function, write: Write, target: Target
    ) -> tuple[str, tuple[str, ...], str, str, int] | None:
        outer, _, variable = target.name.rpartition(":")
        facts = module.functions.get(outer)
        if facts is None or not self._is_made_once(module, facts):
            return None
        if function.outer == outer and not self._escapes(module, function):
            return None
        value = facts.locals.get(variable, "?")
        made = self._made_by(module.name, value)
        if PER_THREAD.search(made) or SAFE_MADE.search(made) or variable in facts.params:
            return None
        if write.how == "call" and not self._is_container(value, made):
            return None
        if write.how == "next":
            return None
        key = ("cell", module.name, outer, variable)
        if APPS.search(made) and write.how in ("attr", "item", "call", "aug"):
            return (
                ("ISO012", key, f"the application object `{variable}`", module.name, facts.line)
                if write.how != "call"
                else None
            )
        return "ISO009", key, f"`{variable}` of `{outer}`", module.name, facts.line

    def _escapes(self, module: Module, function: Function) -> bool:
        return (module.name, function.name) in self.program.mentioned

    def _is_made_once(self, module: Module, outer: Function) -> bool:
        """Whether the function runs when modules are imported or the application is made, and not later."""
        id = (module.name, outer.name)
        callers = [caller for caller, _ in self.program.callers.get(id, ())]
        if outer.outer and not callers:
            around = module.functions.get(outer.outer)
            return (
                around is not None
                and f"d:{outer.name}" in around.returns
                and self._is_made_once(module, around)
            )
        if id not in self.program.reached:
            return True
        if callers:
            return False
        return self._is_decorator(module, outer)

    def _is_decorator(self, module: Module, outer: Function) -> bool:
        """Whether something that it gives back calls what it was given."""
        if not any(path.startswith("d:") for path in outer.returns):
            return False
        for inner in module.functions.values():
            if inner.outer and (inner.outer == outer.name or inner.outer.startswith(f"{outer.name}.")):
                for call in inner.calls:
                    if call.path.startswith(f"f:{outer.name}") and call.path.count(STEP) == 0:
                        return True
                    if (
                        call.path.startswith("f:")
                        and call.path.count(STEP) == 0
                        and any(f"d:{name}" in outer.returns for name in [call.path[2:].rpartition(":")[0]])
                    ):
                        return True
        return False

    def _of_default(
        self, module: Module, function: Function, write: Write, target: Target
    ) -> tuple[str, tuple[str, ...], str, str, int] | None:
        value = function.defaults.get(target.name, "?")
        made = self._made_by(module.name, value)
        if not self._is_container(value, made) and self.program.made(module.name, value) is None:
            return None
        if write.how == "attr" and value == "M":
            return None
        return (
            "ISO008",
            ("default", module.name, function.name, target.name),
            f"the default of `{target.name}`",
            module.name,
            function.line,
        )

    def _of_outside(
        self, module: Module, write: Write, target: Target
    ) -> tuple[str, tuple[str, ...], str, str, int] | None:
        name = target.name
        if write.path == "g:" and write.how == "item":
            return "ISO002", ("globals", module.name), "the module's globals", module.name, 1
        if "current_app" in name and write.how in ("attr", "item", "call") and "(" not in name:
            if write.how == "call" and not name.endswith(("config", "extensions")):
                return None
            return "ISO012", ("ext", "current_app"), "the application object", module.name, write.line
        if "()" in name or not name or ("." not in name and write.how != "item"):
            return None
        if ENVIRON.match(name) and write.how in ("item", "call"):
            return "ISO014", ("ext", "os.environ"), "`os.environ`", module.name, write.line
        base = name.rpartition(".")[0] if write.how == "attr" else name
        if REQUEST_OWN.search(base) or ("[]" in name and write.how != "item"):
            return None
        if write.how == "call":
            return (
                ("ISO014", ("ext", name), f"`{name}`", module.name, write.line)
                if name in ("sys.path", "os.environ", "sys.modules")
                else None
            )
        if "." not in name or name.startswith("sys.modules"):
            return None
        return "ISO013", ("ext", module.name, name), f"`{name}`", module.name, write.line

    # -- through parameters

    def _sum_up_params(self) -> None:
        """Which functions change what they are given, themselves or by passing it on."""
        passing: list[tuple[Module, Function, Call]] = []
        for module, function in self.program.functions():
            mine: dict[str, list[tuple[tuple[str, ...], Write]]] = defaultdict(list)
            changes = list(function.writes)
            for call in function.calls:
                if call.path.startswith("p:") and (change := self._as_write(call)) is not None:
                    changes.append(change)
                if any(path.startswith("p:") for _, path in call.args):
                    passing.append((module, function, call))
            for write in changes:
                if write.path.startswith("p:") and not write.path.endswith("~"):
                    root, *steps = write.path.split(STEP)
                    mine[root[2:]].append((tuple(steps), write))
            if mine:
                self._params[module.name, function.name] = dict(mine)
        for _ in range(2):
            for module, function, call in passing:
                self._pass_on(module, function, call)

    def _pass_on(self, module: Module, function: Function, call: Call) -> None:
        for path, steps, write in self._passed(module, function, call):
            if path.startswith("p:") and path.count(STEP) == 0:
                mine = self._params.setdefault((module.name, function.name), {}).setdefault(path[2:], [])
                if len(mine) < 8 and all(known[1].line != write.line for known in mine):
                    mine.append((steps, write))

    def _passed(
        self, module: Module, function: Function, call: Call
    ) -> Iterator[tuple[str, tuple[str, ...], Write]]:
        if not call.args:
            return
        for callee, shift in self._callees(module, function, call):
            params = self._params.get(callee)
            if not params:
                continue
            facts = self.program.function(callee)
            offset = shift + (1 if facts.owner and "g:staticmethod" not in facts.decorators else 0)
            for where, path in call.args:
                if where.isdigit():
                    index = int(where) + offset
                    if index < 0:
                        continue
                    name = facts.params[index] if index < len(facts.params) else ""
                else:
                    name = where
                for steps, write in params.get(name, ()):
                    yield path, steps, write

    def _callees(self, module: Module, function: Function, call: Call) -> Iterator[tuple[Id, int]]:
        """Who is called, also later by somebody who is given the function and its arguments."""
        called = self.program.called(module.name, call.path, function.owner)
        yield from ((callee, 0) for callee in called)
        if not called:
            for where, path in call.args:
                if where.isdigit() and path[0] in "gds":
                    target = self.program.resolve(module.name, path, function.owner)
                    if target.kind == "func" and not target.steps:
                        yield target.id, -int(where) - 1

    def _through_params(self, module: Module, function: Function, call: Call) -> None:
        owner = self.program.owner_of(module, function)
        for path, steps, write in self._passed(module, function, call):
            if path[0] not in "gscf" or path.endswith("~"):
                continue
            for callee, _ in self._callees(module, function, call):
                at, facts = self.program.modules[callee[0]], self.program.function(callee)
                target = self.program.resolve(module.name, STEP.join((path, *steps)), owner)
                if target.kind == "self" and function.name.rpartition(".")[2] in INITS:
                    continue
                moved = write._replace(path=STEP.join((path, *steps)), locks=())
                found = self._state_of(module, function, moved, target)
                if found is None:
                    continue
                rule, key, name, home, line = found
                state = self.states.setdefault(key, State(key, name, home, line))
                locks = self._locks_held(module, function) | self._locks(module, function, call.locks)
                locks |= self._locks(at, facts, write.locks)
                state.writes.append(
                    Touch(rule, at, facts, write.line, locks, write.lazy, in_place(write, target))
                )

    def _process_wide(self, module: Module, function: Function, call: Call) -> None:
        target = self.program.resolve(module.name, call.path)
        if target.kind == "ext" and target.name in PROCESS_CALLS:
            key: tuple[str, ...] = ("ext", target.name)
            state = self.states.setdefault(key, State(key, f"`{target.name}`", module.name, call.line))
            state.writes.append(Touch("ISO014", module, function, call.line, frozenset(), 0, False))
        elif target.kind == "var" and target.steps and target.steps[0].startswith("."):
            value, line = self.program.modules[target.module].names[target.name]
            made = self._made_by(target.module, value)
            is_session = made.endswith("sessionmaker()") or made in ("sqlalchemy.orm.Session",)
            if STATEFUL.search(made) or is_session:
                key = ("var", *target.id)
                state = self.states.setdefault(key, State(key, f"`{target.name}`", target.module, line))
                locks = self._locks_held(module, function) | self._locks(module, function, call.locks)
                state.writes.append(Touch("ISO004", module, function, call.line, locks, 0, True))

    # -- locks

    def _locks(self, module: Module, function: Function, paths: tuple[str, ...]) -> frozenset[str]:
        return frozenset(
            name for path in paths if (name := self.program.lock(module, function, path)) is not None
        )

    def _locks_held(self, module: Module, function: Function, depth: int = 0) -> frozenset[str]:
        """The locks that everybody holds who calls it, or that a decorator takes for it."""
        id = (module.name, function.name)
        known = self._held.get(id)
        if known is not None:
            return known
        self._held[id] = frozenset()
        taken = self._taken_by_decorators(module, function)
        if self._is_logging(module, function):
            taken |= {"logging.Handler.lock"}
        callers = [each for each in self.program.callers.get(id, ()) if each[0] in self.program.reached]
        if callers and id not in self.program.mentioned and depth < 5:
            common: frozenset[str] | None = None
            for caller, locks in callers:
                at, facts = self.program.modules[caller[0]], self.program.function(caller)
                held = self._locks(at, facts, locks) | self._locks_held(at, facts, depth + 1)
                common = held if common is None else common & held
            taken |= common or frozenset()
        self._held[id] = taken
        return taken

    def _is_logging(self, module: Module, function: Function) -> bool:
        """`logging` holds the handler's lock around ``emit``."""
        if not function.name.endswith(".emit") or function.owner not in module.classes:
            return False
        bases = self.program.outside_bases((module.name, function.owner))
        return any(base.endswith("Handler") for base in bases)

    def _taken_by_decorators(self, module: Module, function: Function) -> frozenset[str]:
        found = set()
        for path in function.decorators:
            target = self.program.resolve(module.name, path.removesuffix("|()"))
            if target.kind != "func":
                name = self.program.decorator(module.name, path)
                if any(
                    word in name.rpartition(".")[2].lower() for word in ("synchronized", "locked", "lock")
                ):
                    found.add(f"decorator {name}")
                continue
            home = self.program.modules[target.module]
            for inner in home.functions.values():
                if inner.outer == target.name or inner.outer.startswith(f"{target.name}."):
                    for call in inner.calls:
                        if call.path.startswith("f:") and call.path.count(STEP) == 0 and call.locks:
                            found |= {self._own_lock(home, inner, path, function) for path in call.locks} - {
                                ""
                            }
        return frozenset(found)

    def _own_lock(self, home: Module, inner: Function, path: str, function: Function) -> str:
        """A lock that the decorator makes is another one for each function it is put on."""
        name = self.program.lock(home, inner, path) or ""
        if name and path.startswith("f:"):
            outer, _, variable = path.partition(STEP)[0][2:].rpartition(":")
            if variable not in home.functions[outer].params:
                return f"{name} for {function.name}"
        return name

    # -- verdicts

    def _judged(self, state: State) -> Iterator[Hazard]:
        writes = state.writes
        unlocked = [touch for touch in writes if not touch.locks]
        common = frozenset.intersection(*(touch.locks for touch in writes))
        if common:
            outside = [touch for touch in writes if touch.lazy == 1]
            if outside and all(touch.rule == "ISO005" for touch in writes):
                yield self._hazard(outside[0], "ISO005", state, " after a check outside the lock", writes)
            elif any(touch.is_in_place for touch in writes) and (read := self._unlocked_read(state, common)):
                yield read
            return
        if len(unlocked) < len(writes) or not unlocked:
            touch = unlocked[0] if unlocked else writes[-1]
            if touch.rule != "ISO005":
                yield self._hazard(
                    touch, "ISO015", state, " without the lock that guards it elsewhere", writes
                )
                return
        touch = min(
            unlocked or writes, key=lambda touch: (touch.rule == "ISO005", touch.module.path, touch.line)
        )
        yield self._hazard(touch, touch.rule, state, "", writes)

    def _unlocked_read(self, state: State, common: frozenset[str]) -> Hazard | None:
        asks = {(touch.module.name, touch.function.name) for touch in state.writes if touch.lazy}
        for module, function, read in self._reads_of(state.key):
            last = function.name.rpartition(".")[2]
            if (module.name, function.name) in asks or last in INITS or last in GLANCES:
                continue
            locks = self._locks_held(module, function) | self._locks(module, function, read.locks)
            if not locks & common:
                touch = Touch("ISO015", module, function, read.line, locks, 0, True)
                how = " without the lock that guards it elsewhere"
                return self._hazard(touch, "ISO015", state, how, state.writes, "read")
        return None

    def _reads_of(self, key: tuple[str, ...]) -> list[tuple[Module, Function, Read]]:
        kind, module, name, *rest = key
        if kind not in ("attr", "class"):
            return self._reads.get(key, [])
        below = [(module, name), *self.program.subclasses.get((module, name), ())]
        wanted = below if kind == "class" else below[:1]
        return [
            found for home, class_ in wanted for found in self._reads.get(("attr", home, class_, *rest), ())
        ]

    @cached_property
    def _reads(self) -> dict[tuple[str, ...], list[tuple[Module, Function, Read]]]:
        """Who reads what, of all that requests can reach."""
        found: dict[tuple[str, ...], list[tuple[Module, Function, Read]]] = defaultdict(list)
        for module, function in self.program.functions():
            if not function.reads or (module.name, function.name) not in self.program.reached:
                continue
            owner = self.program.owner_of(module, function)
            for read in function.reads:
                target = self.program.resolve(module.name, read.path, owner)
                if target.kind == "var":
                    found["var", *target.id].append((module, function, read))
                elif target.kind in ("self", "class") and target.steps:
                    found["attr", *target.id, target.steps[0][1:]].append((module, function, read))
                elif target.kind == "cell":
                    outer, _, variable = target.name.rpartition(":")
                    found["cell", target.module, outer, variable].append((module, function, read))
        return found

    def _hazard(
        self, touch: Touch, rule: str, state: State, how: str, writes: list[Touch], done: str = "changed"
    ) -> Hazard:
        home = self.program.modules[state.module]
        others = sorted({other.line for other in writes if other.module is touch.module} - {touch.line})
        more = (
            f" (also changed in {'line' if len(others) == 1 else 'lines'} {', '.join(map(str, others[:5]))})"
            if others
            else ""
        )
        message = (
            f"{state.name}, from {home.path}:{state.line}, is {done} by `{touch.function.name}`{how}{more}"
        )
        return Hazard(touch.module.path, touch.line, rule, message, touch.function.name, state.name)

    # -- caches and hooks

    def _cached_misuse(self) -> Iterator[Hazard]:
        program = self.program
        for module, function in program.functions():
            if not program.is_cached(module.name, function) or program.is_not_served(module):
                continue
            if function.outer and not self._is_made_once(module, module.functions[function.outer]):
                continue
            plain = [program.decorator(module.name, path) for path in function.decorators]
            line = next(
                (at for name, at in zip(plain, function.decorator_lines, strict=True) if CACHES.search(name)),
                function.line,
            )
            if function.owner and "staticmethod" not in plain and function.params[:1] == ("self",):
                what = f"`{function.name}` is a method, and its results are cached for all instances"
                yield Hazard(module.path, line, "ISO007", what)
            elif self._asks_who_calls(module, function, 3):
                what = f"`{function.name}` depends on who calls it, and its results are cached for all"
                yield Hazard(module.path, line, "ISO007", what)

    def _asks_who_calls(self, module: Module, function: Function, depth: int) -> bool:
        program = self.program
        called = {call.path for call in function.calls}
        for path in [*called, *(read.path for read in function.reads)]:
            target = program.resolve(module.name, path, function.owner)
            if (target.kind == "ext" and CALLER.search(target.name)) or self._is_context_get(target):
                return True
            if target.kind == "func" and not target.steps and depth and path in called:
                below = program.modules[target.module], program.function(target.id)
                if self._asks_who_calls(*below, depth - 1):
                    return True
        return False

    def _is_context_get(self, target: Target) -> bool:
        if target.kind != "var":
            return False
        value = self.program.modules[target.module].names[target.name][0]
        return PER_THREAD.search(self._made_by(target.module, value)) is not None and bool(target.steps)

    def _hooks(self) -> Iterator[Hazard]:
        program = self.program
        cleared: set[tuple[str, ...]] = set()
        hooks: list[tuple[Module, Function]] = []
        for module, function in program.functions():
            if program.is_not_served(module):
                continue
            names = [program.decorator(module.name, path) for path in function.decorators]
            last = function.name.rpartition(".")[2]
            if any(TEARDOWNS.search(name) for name in names) or last in (
                "process_response",
                "process_exception",
            ):
                for at, each in self._with_helpers(module, function):
                    cleared |= self._scoped(at, each)
            elif any(HOOKS.search(name) for name in names) or self._is_middleware(module, function):
                hooks.append((module, function))
        for module, function in hooks:
            set_here = [
                (at, *found)
                for at, each in self._with_helpers(module, function)
                for found in self._sets(at, each)
            ]
            for at, key, line, name in set_here:
                again = sum(other == key for _, other, _, _ in set_here) > 1
                if key in cleared or again or self._resets(module, function, key):
                    continue
                rule = "ISO010" if key[0] == "context" else "ISO011"
                what = f"`{name}` is set by `{function.name}` and not reset when the request ends"
                yield Hazard(at.path, line, rule, what)

    def _with_helpers(self, module: Module, function: Function) -> Iterator[tuple[Module, Function]]:
        """The function, and those it calls directly."""
        yield module, function
        for call in function.calls:
            for callee in self.program.called(module.name, call.path, function.owner):
                yield self.program.modules[callee[0]], self.program.function(callee)

    def _is_middleware(self, module: Module, function: Function) -> bool:
        last = function.name.rpartition(".")[2]
        if last in ("process_request", "process_view"):
            return True
        if function.owner and last in ("__call__", "dispatch"):
            return "iddleware" in function.owner or any(
                "iddleware" in base
                for base in module.classes[function.owner].bases
                if function.owner in module.classes
            )
        return (
            "call_next" in function.params
            or bool(
                function.outer and "get_response" in module.functions[function.outer].params
                if function.outer in module.functions
                else False
            )
            or bool(
                function.outer
                and "iddleware" in function.outer
                and last in ("middleware", "wrapper", "app", "wsgi", "inner")
            )
        )

    def _sets(self, module: Module, function: Function) -> Iterator[tuple[tuple[str, ...], int, str]]:
        for call in function.calls:
            if call.path.endswith("|.set"):
                target = self.program.resolve(module.name, call.path.removesuffix("|.set"))
                if target.kind == "var" and self._is_a(target, "ContextVar"):
                    yield ("context", *target.id), call.line, target.name
        for write in function.writes:
            if write.how == "attr" and write.value not in ("del", "N"):
                target = self.program.resolve(module.name, write.path)
                if (
                    target.kind == "var"
                    and target.steps
                    and (self._is_a(target, "local") or self._is_local_instance(target))
                ):
                    yield (
                        ("local", *target.id, target.steps[0]),
                        write.line,
                        f"{target.name}{target.steps[0]}",
                    )

    def _is_a(self, target: Target, name: str) -> bool:
        value = self.program.modules[target.module].names[target.name][0]
        return self._made_by(target.module, value).rpartition(".")[2] == name

    def _scoped(self, module: Module, function: Function) -> set[tuple[str, ...]]:
        """The context variables and thread-locals that a function touches at all."""
        found: set[tuple[str, ...]] = set()
        for call in function.calls:
            target = self.program.resolve(module.name, call.path)
            if target.kind == "var":
                found.add(("context", *target.id))
                if any(step in (".clear", ".__dict__") for step in target.steps) or target.steps[-1:] == (
                    ".clear",
                ):
                    found |= {("local", *target.id, step) for step in self._local_names(target)}
        for write in function.writes:
            target = self.program.resolve(module.name, write.path)
            if target.kind == "var" and target.steps:
                found.add(("local", *target.id, target.steps[0]))
        return found

    def _local_names(self, target: Target) -> set[str]:
        found = set()
        for module, function in self.program.functions():
            for write in function.writes:
                if write.how == "attr" and target.name in write.path:
                    other = self.program.resolve(module.name, write.path)
                    if other.kind == "var" and other.id == target.id and other.steps:
                        found.add(other.steps[0])
        return found

    def _resets(self, module: Module, function: Function, key: tuple[str, ...]) -> bool:
        inside = [
            (module, inner) for inner in module.functions.values() if inner.outer.startswith(function.name)
        ]
        for at, inner in [*self._with_helpers(module, function), *inside]:
            for call in inner.calls:
                target = self.program.resolve(at.name, call.path)
                if (
                    target.kind == "var"
                    and target.steps[-1:] in ((".reset",), (".clear",))
                    and key[1:3] == target.id
                ):
                    return True
            for write in inner.writes:
                target = self.program.resolve(at.name, write.path)
                if (
                    write.value in ("del", "N")
                    and target.kind == "var"
                    and key[1:3] == target.id
                    and target.steps[:1] == key[3:4]
                ):
                    return True
        return False


def in_place(write: Write, target: Target) -> bool:
    return write.how in ("item", "call", "aug") or write.value == "+"


def spoken(path: str) -> str:
    """A path as it would be written."""
    root, *steps = path.split(STEP)
    kind, _, name = root.partition(":")
    text = {"s": "self", "c": "cls"}.get(kind, name.rpartition(":")[2].rpartition("/")[2])
    return text + "".join(step if step != "[]" else "[...]" for step in steps if step != "~")
