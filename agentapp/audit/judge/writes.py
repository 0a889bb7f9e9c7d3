"""Finds the shared object that a write changes, and the rule that it violates."""

from __future__ import annotations

from agentapp.audit.facts import STEP, Function, Module, Write, is_new_object
from agentapp.audit.judge.calls import Calls
from agentapp.audit.judge.constructions import Constructions
from agentapp.audit.judge.instances import Instances
from agentapp.audit.judge.makers import Makers, is_container, is_thread_safe
from agentapp.audit.judge.outside import find_outside_violation
from agentapp.audit.judge.params import takes_self
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import Reach, last_name
from agentapp.audit.judge.targets import UNKNOWN, Id, Target
from agentapp.audit.judge.variables import Variables
from agentapp.audit.judge.violations import Violation
from agentapp.audit.known_names import APP_CLASSES, APPLICATION_ATTRIBUTES

GLOBALS = "its names"


class Writes:
    def __init__(
        self,
        program: Program,
        calls: Calls,
        reach: Reach,
        makers: Makers,
        instances: Instances,
        constructions: Constructions,
    ) -> None:
        self._program, self._calls, self._reach = program, calls, reach
        self._makers, self._instances = makers, instances
        self._variables, self._constructions = Variables(program, makers), constructions

    def find_target(self, module: Module, write: Write, owner: str) -> Target:
        """The target of a write. Assigning an attribute changes the object that has the attribute."""
        base, _, last = write.path.rpartition(STEP)
        if write.how == "attr" and base:
            target = self._program.resolve(module.name, base, owner)
            if target.steps[-1:] == ("~",) or self._is_set_by_method(target, last[1:]):
                return UNKNOWN
            if target.kind in ("class", "func", "self") and not target.steps:
                return target._replace(steps=(last,))
            if target.kind == "module":
                named = self._program.resolve_name(target.module, last[1:])
                return named if named.kind == "var" else Target("patched", target.module, last[1:])
        target = self._program.resolve(module.name, write.path, owner)
        if target.kind == "module" and write.how in ("item", "call"):
            return Target("patched", target.module, GLOBALS)
        return target

    def _is_set_by_method(self, target: Target, name: str) -> bool:
        """Whether the attribute has a property setter: then the setter itself is judged."""
        id = target.id if target.kind == "self" else self._program.class_of(target)
        if target.steps or id is None or id not in self._program.classes:
            return False
        if self._program.classes.method(id, name) is None:
            return False
        return any(
            function.owner == class_ and last_name(function) == name and _is_setter(function)
            for module, class_ in self._program.classes.bases(id)
            for function in self._program.modules[module].functions.values()
        )

    def find_violation(
        self, module: Module, function: Function, write: Write, target: Target
    ) -> Violation | None:
        steps = target.steps
        match target.kind:
            case "param" | "self" if (
                len(steps) > 1 and steps[0] in APPLICATION_ATTRIBUTES and "()" not in steps
            ):
                return Violation(
                    "ISO012", ("app", "state"), "the application's state", module.name, write.line
                )
            case "var":
                return self._variables.find_violation(write, target)
            case "class" if steps and write.how != "next":
                return self._check_class(function, write, target)
            case "self":
                return self._check_self(module, function, write, target)
            case "inst":  # a new instance, which is shared if the class is a singleton
                return self._instances.find_violation(module, function, write, target)
            case "patched" if target == Target("patched", module.name, GLOBALS):
                return Violation("ISO002", ("globals", module.name), "the module's globals", module.name, 1)
            case "patched":
                home = self._program.modules.get(target.module, module)
                name = f"`{target.module}.{target.name}`"
                return Violation("ISO013", ("patched", *target.id), name, home.name, 1)
            case "cached" if "()" not in steps and (write.how != "attr" or steps):
                line = self._program.function(target.id).line
                name = f"what `{target.name}` caches"
                return Violation("ISO007", ("cached", *target.id), name, target.module, line)
            case "cell":
                return self._check_closure(module, function, write, target)
            case "func" if steps and write.how in ("attr", "item") and _is_patched(write, target):
                line = self._program.function(target.id).line
                return Violation("ISO013", ("function", *target.id), f"`{target.name}`", target.module, line)
            case "param":
                return self._check_default(module, function, write, target)
            case "default":
                return self._check_returned_default(function, write, target)
            case "ext":
                return find_outside_violation(module, write, target.name)
        return None

    def _check_self(
        self, module: Module, function: Function, write: Write, target: Target
    ) -> Violation | None:
        """An attribute may hold a shared object that was passed to the constructor."""
        is_below = len(target.steps) > (1 if write.how == "attr" else 0)
        if is_below and target.id in self._program.classes:
            for at, caller, argument in self._constructions.values_kept_in(target.id, target.steps[0][1:]):
                owner = self._program.owner_of(at, caller)
                moved = write._replace(path=STEP.join((argument, *target.steps[1:])))
                given = self._program.resolve(at.name, moved.path, owner)
                if given.steps and is_new_object(given.steps[-1]):
                    continue
                if (
                    given.kind != "self"
                    and (violation := self.find_violation(at, caller, moved, given)) is not None
                ):
                    return violation
                of = None if given.steps else self._program.class_of(given)
                if of is not None and self._variables.is_done_by_method(of, moved):
                    return None
        return self._instances.find_violation(module, function, write, target)

    # -- an attribute of a class

    def _check_class(self, function: Function, write: Write, target: Target) -> Violation | None:
        classes = self._program.classes
        if target.id not in classes or not target.steps[0].startswith(".") or "()" in target.steps:
            return None
        attribute, is_direct = target.steps[0][1:], len(target.steps) == 1
        found = classes.attribute(target.id, attribute)
        at, (value, line, _) = found if found else (target.id, ("?", classes[target.id].line, False))
        made = self._makers.maker_of(at[0], value)
        if is_thread_safe(made) or (write.how == "call" and is_direct and not is_container(value, made)):
            return None
        if attribute == "*" and self._is_never_given_anything(target.id, function):
            return None
        rule = "ISO005" if write.lazy and is_direct and write.how == "attr" else "ISO003"
        return Violation(rule, ("class", *at, attribute), f"`{at[1]}.{attribute}`", at[0], line)

    def _is_never_given_anything(self, id: Id, function: Function) -> bool:
        """Whether it is a constructor that is never called with arguments, so it stores none on the class."""
        if not function.name.endswith(".__init__"):
            return False
        counts = [call.given for _, _, call in self._constructions.calls_of(id)]
        return bool(counts) and not any(counts)

    # -- variables and defaults of functions

    def _check_closure(
        self, module: Module, function: Function, write: Write, target: Target
    ) -> Violation | None:
        outer, _, variable = target.name.rpartition(":")
        facts = module.functions.get(outer)
        if facts is None or variable in facts.params or not self._reach.runs_only_at_start(module, facts):
            return None
        if function.outer == outer and (module.name, function.name) not in self._calls.passed_on:
            return None  # The inner function does not outlive the call.
        value = facts.locals.get(variable, "?")
        made = self._makers.maker_of(module.name, value)
        if write.how == "next" or is_thread_safe(made):
            return None
        if write.how == "call" and not is_container(value, made):
            return None
        key = ("cell", module.name, outer, variable)
        if APP_CLASSES.search(made) and write.how in ("attr", "item", "aug"):
            return Violation("ISO012", key, f"the application object `{variable}`", module.name, facts.line)
        return Violation("ISO009", key, f"`{variable}` of `{outer}`", module.name, facts.line)

    def _check_default(
        self, module: Module, function: Function, write: Write, target: Target
    ) -> Violation | None:
        value = function.defaults.get(target.name, "?")
        if value.startswith("P:g:"):
            path = STEP.join((value[2:], *target.steps))
            return self.find_violation(module, function, write, self._program.resolve(module.name, path))
        made = self._makers.maker_of(module.name, value)
        if not is_container(value, made) and self._program.class_made_by(module.name, value) is None:
            return None
        if write.how == "attr" and value == "M":
            return None
        key = ("default", module.name, function.name, target.name)
        return Violation("ISO008", key, f"the default of `{target.name}`", module.name, function.line)

    def _check_returned_default(self, function: Function, write: Write, target: Target) -> Violation | None:
        """The function returns its default, because the caller did not pass that argument."""
        name, _, param = target.name.rpartition(":")
        facts = self._program.function((target.module, name))
        place = facts.params.index(param) - takes_self(facts)
        for call in function.calls:
            if write.path.startswith(f"{call.path}|()") and call.given <= place:
                key = ("default", target.module, name, param)
                return Violation("ISO008", key, f"the default of `{param}`", target.module, facts.line)
        return None


def is_application(path: str) -> bool:
    """Whether the path leads through a request to the application object."""
    steps = path.split(STEP)[1:]
    return bool(steps) and steps[0] in APPLICATION_ATTRIBUTES


def _is_patched(write: Write, target: Target) -> bool:
    """Whether the function existed before, and was not just defined here."""
    return "()" not in target.steps and not write.path.startswith("d:")


def _is_setter(function: Function) -> bool:
    return any(path.endswith((".setter", ".deleter")) for path in function.decorators)
