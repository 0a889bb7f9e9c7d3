"""Writes to attributes of ``self``: do they change a shared instance, a class attribute or a default?"""

from __future__ import annotations

from collections.abc import Iterator

from agentapp.audit.facts import Function, Module, Write
from agentapp.audit.judge.makers import Makers, is_container, is_thread_safe
from agentapp.audit.judge.params import find_parameter
from agentapp.audit.judge.program import Program
from agentapp.audit.judge.reach import Reach, last_name
from agentapp.audit.judge.receivers import Receivers
from agentapp.audit.judge.serving import Serving
from agentapp.audit.judge.sharing import Sharing
from agentapp.audit.judge.targets import Id, Target
from agentapp.audit.judge.violations import Violation
from agentapp.audit.known_names import CONSTRUCTION_METHODS, DEFAULT_COPYING_BASES, VALIDATOR_DECORATORS


class Instances:
    def __init__(
        self,
        program: Program,
        reach: Reach,
        makers: Makers,
        sharing: Sharing,
        serving: Serving,
        receivers: Receivers,
    ) -> None:
        self._program, self._reach, self._makers = program, reach, makers
        self._sharing, self._serving, self._receivers = sharing, serving, receivers

    def find_violation(
        self, module: Module, function: Function, write: Write, target: Target
    ) -> Violation | None:
        if target.id not in self._program.classes or "()" in target.steps:
            return None
        if target.kind == "inst" and target.id not in self._sharing.singletons:
            return None
        if not target.steps:
            return self._check_container(module, function, write, target.id)
        if not target.steps[0].startswith("."):
            return None
        if write.how != "attr" or len(target.steps) > 1:  # It changes the object in the attribute.
            found = self._check_kept_default(target) or self._check_class(write, target)
            if found is not None:
                return found
        return self._check_shared(module, function, write, target)

    def _check_kept_default(self, target: Target) -> Violation | None:
        """``self.items = items``, where ``items`` has a mutable default."""
        for module, class_ in self._program.classes.bases(target.id):
            init = self._program.modules[module].functions.get(f"{class_}.__init__")
            for write in init.writes if init else ():
                if init and write.path == f"s|{target.steps[0]}" and write.value.startswith("P:p:"):
                    name = write.value[4:]
                    for at, facts, param in self._defaults((module, class_), init, name):
                        key = ("default", at, facts.name, param)
                        return Violation("ISO008", key, f"the default of `{param}`", at, facts.line)
        return None

    def _defaults(self, id: Id, init: Function, name: str) -> Iterator[tuple[str, Function, str]]:
        """The constructors whose mutable default it may be: this one, or a subclass's that passes it on."""
        if init.defaults.get(name) == "M":
            yield id[0], init, name
        for module, class_ in self._program.classes.subclasses.get(id, ()):
            below = self._program.modules[module].functions.get(f"{class_}.__init__")
            for call in below.calls if below else ():
                if call.path == "s|.__init__":
                    for where, path in call.args:
                        is_it = path.startswith("p:") and find_parameter(init.params[1:], where) == name
                        if below and is_it and below.defaults.get(path[2:]) == "M":
                            yield module, below, path[2:]

    def _check_class(self, write: Write, target: Target) -> Violation | None:
        """The attribute belongs to the class, and the instance has none of its own."""
        id, name = target.id, target.steps[0][1:]
        found = self._class_attribute(id, name)
        if found is None:
            return None
        at, (value, line, annotated) = found
        if (annotated or name.startswith("_")) and self._copies_defaults(id):
            return None
        made = self._makers.maker_of(at[0], value)
        if is_container(value, made) or (write.how == "item" and value[0] == "M"):
            return Violation("ISO003", ("class", *at, name), f"`{at[1]}.{name}`", at[0], line)
        return None

    def _class_attribute(self, id: Id, name: str) -> tuple[Id, tuple[str, int, bool]] | None:
        """The class attribute that an instance of the class or of a subclass uses."""
        classes = self._program.classes
        found = classes.attribute(id, name)
        below = classes.subclasses.get(id, ())
        if self._is_set_in_init(id, name):
            return found if any(self._omits_attribute(each, name) for each in below) else None
        for each in below:
            other = classes.attribute(each, name)
            is_served = not self._program.is_not_served(self._program.modules[each[0]])
            if other and other[1][0] == "M" and is_served and not self._is_set_in_init(each, name):
                found = other
        return found

    def _omits_attribute(self, id: Id, attribute: str) -> bool:
        """Whether the constructor neither sets the attribute nor calls the constructor that does."""
        init = self._program.modules[id[0]].functions.get(f"{id[1]}.__init__")
        if init is None or any(call.path.endswith("|.__init__") for call in init.calls):
            return False
        return not any(write.path == f"s|.{attribute}" for write in init.writes)

    def _is_set_in_init(self, id: Id, attribute: str) -> bool:
        path = f"s|.{attribute}"
        for module, class_ in self._program.classes.bases(id):
            at = self._program.modules[module]
            for function in at.functions.values():
                if function.owner != class_:
                    continue
                is_set = any(write.path == path and write.how == "attr" for write in function.writes)
                if is_set and self._constructs(at, function):
                    return True
        return False

    def _constructs(self, module: Module, function: Function) -> bool:
        """Whether the function runs during construction, when nothing else refers to the object yet."""
        return last_name(function) in CONSTRUCTION_METHODS or self._reach.is_part_of_construction(
            module, function
        )

    def _copies_defaults(self, id: Id) -> bool:
        """Whether each instance gets its own copy of the class attributes, as in pydantic."""
        classes = self._program.classes
        if any(name.rpartition(".")[2] in DEFAULT_COPYING_BASES for name in classes.outside_bases(id)):
            return True
        return any(
            "dataclass" in path or "attr" in path or "define" in path
            for at in classes.bases(id)
            for path in classes[at].decorators
        )

    def _check_container(self, module: Module, function: Function, write: Write, id: Id) -> Violation | None:
        """The class derives from a container, and the object itself is changed: ``super().append(...)``."""
        home = self._sharing.find_home(id)
        if home is None or write.how not in ("item", "call") or not self._makers.is_container_class(id):
            return None
        name = write.value if write.how == "call" else "__setitem__"
        is_own_method = self._program.classes.method(id, name) is not None
        if (is_own_method and last_name(function) != name) or self._belongs_to_construction(module, function):
            return None
        class_ = self._program.classes[id]
        return Violation("ISO004", ("attr", *id, ""), f"`{class_.name}` of {home}", id[0], class_.line)

    def _check_shared(
        self, module: Module, function: Function, write: Write, target: Target
    ) -> Violation | None:
        home = self._sharing.find_home(target.id) or self._serving.find_home(module, function)
        if target.id not in self._sharing.singletons and self._receivers.is_called_only_on_new_objects(
            module, function
        ):
            return None
        if home is None or self._belongs_to_construction(module, function) or self._is_safe(write, target):
            return None
        name = target.steps[0][1:]
        is_rebound = write.how == "attr" and len(target.steps) == 1
        class_ = self._program.classes[target.id]
        return Violation(
            "ISO005" if write.lazy and is_rebound else "ISO004",
            ("attr", *target.id, name),
            f"`{class_.name}.{name}` of {home}",
            target.module,
            class_.line,
        )

    def _belongs_to_construction(self, module: Module, function: Function) -> bool:
        """Whether the function constructs the object, or is a validator of its fields."""
        if self._constructs(module, function):
            return True
        names = (self._program.decorator_name(module.name, path) for path in function.decorators)
        return any(VALIDATOR_DECORATORS.search(name) for name in names)

    def _is_safe(self, write: Write, target: Target) -> bool:
        """Whether the write is safe because of the object that the attribute holds."""
        is_below = len(target.steps) > 1
        value = self._program.classes.instance_values(target.id).get(target.steps[0][1:], "?")
        if (
            target.steps[1:2] == ("[]",)
            and self._program.class_made_by(target.module, value, target.name) is not None
        ):
            return True  # Items of an object with its own class need not be stored in it.
        is_of_item = "[]" in target.steps and target.steps[-1].startswith(".")
        if write.how == "call" and is_of_item and self._program.classes.is_ambiguous_mutator(write.value):
            return True
        made = self._makers.maker_of(target.module, value)
        if is_thread_safe(made):
            return True
        if is_container(value, made):
            return False
        if write.how == "call":
            is_kept = value.startswith("P:p:")
            return not is_kept or self._program.classes.is_ambiguous_mutator(write.value)
        return write.how in ("item", "call") and is_below and bool(made)
