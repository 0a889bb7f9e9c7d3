"""What a write to an attribute of ``self`` changes: the object's own, its class's, or one that is shared."""

from __future__ import annotations

from agentapp.audit.facts import Function, Module, Write
from agentapp.audit.judge.makers import Makers, is_container, is_made_safe
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import Reach, last_name
from agentapp.audit.judge.serving import Serving
from agentapp.audit.judge.sharing import Sharing
from agentapp.audit.judge.state import Broken
from agentapp.audit.judge.targets import Id, Target
from agentapp.audit.judge.uses import Uses
from agentapp.audit.known import COPYING, INITS, VALIDATORS


class Instances:
    def __init__(
        self,
        program: Program,
        reach: Reach,
        makers: Makers,
        sharing: Sharing,
        serving: Serving,
        uses: Uses,
    ) -> None:
        self._program, self._reach, self._makers = program, reach, makers
        self._sharing, self._serving, self._uses = sharing, serving, uses

    def broken(self, module: Module, function: Function, write: Write, target: Target) -> Broken | None:
        if target.name not in module.classes or "()" in target.steps:
            return None
        if not target.steps:
            return self._of_container(module, function, write, target.id)
        if not target.steps[0].startswith("."):
            return None
        if write.how != "attr" or len(target.steps) > 1:  # it goes to what the attribute holds
            found = self._kept_default(target) or self._of_class(write, target)
            if found is not None:
                return found
        return self._of_shared(module, function, write, target)

    def _kept_default(self, target: Target) -> Broken | None:
        """``self.items = items``, where ``items`` has a mutable default."""
        for module, class_ in self._program.classes.bases(target.id):
            init = self._program.modules[module].functions.get(f"{class_}.__init__")
            for write in init.writes if init else ():
                if init and write.path == f"s|{target.steps[0]}" and write.value.startswith("P:p:"):
                    name = write.value[4:]
                    if init.defaults.get(name) == "M":
                        key = ("default", module, init.name, name)
                        return Broken("ISO008", key, f"the default of `{name}`", module, init.line)
        return None

    def _of_class(self, write: Write, target: Target) -> Broken | None:
        """The attribute is the class's, and nobody gave the instance one of its own."""
        classes, id, name = self._program.classes, target.id, target.steps[0][1:]
        if self._is_set_in_init(id, name):
            return None
        found = classes.attribute(id, name)
        for below in classes.subclasses.get(id, ()):
            if self._program.is_not_served(self._program.modules[below[0]]):
                continue
            other = classes.attribute(below, name)
            if other is not None and other[1][0] == "M" and not self._is_set_in_init(below, name):
                found = other
        if found is None:
            return None
        at, (value, line, annotated) = found
        if (annotated or name.startswith("_")) and self._copies_defaults(id):
            return None
        made = self._makers.of(at[0], value)
        if is_container(value, made) or (write.how == "item" and value[0] == "M"):
            return Broken("ISO003", ("class", *at, name), f"`{at[1]}.{name}`", at[0], line)
        return None

    def _is_set_in_init(self, id: Id, attribute: str) -> bool:
        path = f"s|.{attribute}"
        for module, class_ in self._program.classes.bases(id):
            at = self._program.modules[module]
            for function in at.functions.values():
                if function.owner != class_:
                    continue
                is_set = any(write.path == path and write.how == "attr" for write in function.writes)
                if is_set and self._makes(at, function):
                    return True
        return False

    def _makes(self, module: Module, function: Function) -> bool:
        """Nobody else has the object yet."""
        return last_name(function) in INITS or self._reach.is_part_of_making(module, function)

    def _copies_defaults(self, id: Id) -> bool:
        """Whether every instance gets copies of the class's values, as in pydantic."""
        classes = self._program.classes
        if any(name.rpartition(".")[2] in COPYING for name in classes.outside_bases(id)):
            return True
        return any(
            "dataclass" in path or "attr" in path or "define" in path
            for at in classes.bases(id)
            for path in classes[at].decorators
        )

    def _of_container(self, module: Module, function: Function, write: Write, id: Id) -> Broken | None:
        """The object is a list or a dict itself, and is changed as one: ``super().append(...)``."""
        home = self._sharing.home(id)
        if home is None or write.how not in ("item", "call") or not self._makers.is_container_class(id):
            return None
        name = write.value if write.how == "call" else "__setitem__"
        is_own_method = self._program.classes.method(id, name) is not None
        if (is_own_method and last_name(function) != name) or self._belongs_to_making(module, function):
            return None
        class_ = self._program.classes[id]
        return Broken("ISO004", ("attr", *id, ""), f"`{class_.name}` of {home}", id[0], class_.line)

    def _of_shared(self, module: Module, function: Function, write: Write, target: Target) -> Broken | None:
        home = self._sharing.home(target.id) or self._serving.home(module, function)
        if target.id not in self._sharing.singletons and self._uses.is_only_of_new(module, function):
            return None
        if home is None or self._belongs_to_making(module, function) or self._is_safe(write, target):
            return None
        name = target.steps[0][1:]
        is_rebound = write.how == "attr" and len(target.steps) == 1
        class_ = self._program.classes[target.id]
        return Broken(
            "ISO005" if write.lazy and is_rebound else "ISO004",
            ("attr", *target.id, name),
            f"`{class_.name}.{name}` of {home}",
            target.module,
            class_.line,
        )

    def _belongs_to_making(self, module: Module, function: Function) -> bool:
        """To making the object, or to checking what it is made from."""
        if self._makes(module, function):
            return True
        names = (self._program.decorator(module.name, path) for path in function.decorators)
        return any(VALIDATORS.search(name) for name in names)

    def _is_safe(self, write: Write, target: Target) -> bool:
        """By what the attribute holds."""
        is_below = len(target.steps) > 1
        value = self._program.classes.instance_values(target.id).get(target.steps[0][1:], "?")
        if target.steps[1:2] == ("[]",) and self._program.made(target.module, value, target.name) is not None:
            return True  # what an object of its own gives need not be what it has
        made = self._makers.of(target.module, value)
        if is_made_safe(made):
            return True
        if is_container(value, made):
            return False
        if write.how == "call" and not value.startswith("P:p:"):
            return True
        return write.how in ("item", "call") and is_below and bool(made)
