"""Unusual objects in watched modules: hostile, lazy, cyclic, huge or deleted ones."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

import pytest
from werkzeug.local import LocalProxy

from agentapp.audit.runtime import LeakMiddleware, Watch
from tests.audit.support.sites import Imports, body_of

HOSTILE = '''
"""Objects that note every call of their methods, and raise."""
note = None

def hook(name):
    def method(self, *args, **kwargs):
        if note is not None:
            note(name)
            raise RuntimeError(name)
        return getattr(super(type(self), self), name)(*args, **kwargs)
    return method

def hostile(name, *bases, meta=type, **more):
    hooks = ("__getattribute__ __getattr__ __eq__ __ne__ __hash__ __len__ __iter__ __contains__ __bool__ "
             "__repr__ __str__ __format__ __reversed__ __getitem__ __call__ __sizeof__ __dir__ __index__ "
             "__bytes__ __missing__ __instancecheck__ __subclasscheck__ keys values items copy").split()
    names = {each: hook(each) for each in hooks}
    return meta(name, bases, {**names, "__module__": __name__, **more})

class Meta(type):
    pass

Plain = hostile("Plain")
List = hostile("List", list)
Dict = hostile("Dict", dict)
Set = hostile("Set", set)
Tuple = hostile("Tuple", tuple)
Text = hostile("Text", str)
Slots = hostile("Slots", __slots__=("inside",))
Lies = hostile("Lies", __class__=property(hook("__class__")))
Hides = hostile("Hides", __dict__=property(hook("__dict__")))
Odd = hostile("Odd", meta=Meta)
things = [object.__new__(cls) for cls in (Plain, Slots, Lies, Hides, Odd)]
things += [list.__new__(List), dict.__new__(Dict), set.__new__(Set), tuple.__new__(Tuple, ([],))]
things += [str.__new__(Text)]
table = {"plain": things[0], 3: Odd}
plain = things[0]
values = (plain, things)
'''


def test_no_method_of_any_object_is_called(imported: Imports) -> None:
    module = imported(HOSTILE)
    calls: list[str] = []
    meta: Any = module.Meta
    for name in ("__getattribute__", "__eq__", "__hash__", "__instancecheck__", "__subclasscheck__", "mro"):
        setattr(meta, name, module.hook(name))
    module.note = calls.append
    things = list.copy(module.things)
    try:
        for values in (False, True):
            watch = Watch((module.__name__,), values=values)
            before = watch.snapshot()
            assert before.complete
            list.append(things[5], 1)
            dict.__setitem__(things[6], f"a{values}", 2)
            set.add(things[7], f"x{values}")
            tuple.__getitem__(things[8], 0).append(1)
            vars(module)["values"] = object()
            changes = watch.compare(before)
            watch.find_marks()
            assert calls == []
            where = {change.where.removeprefix(module.__name__ + ".") for change in changes}
            assert where == {"things[5]", "things[6]", "things[7]", "things[8][0]", "values"}
            assert all(str(change) for change in changes)
        assert calls == []
    finally:
        module.note = None
        for name in (
            "__getattribute__",
            "__eq__",
            "__hash__",
            "__instancecheck__",
            "__subclasscheck__",
            "mro",
        ):
            delattr(meta, name)


def test_proxies_are_not_followed(imported: Imports) -> None:
    module = imported("HISTORY = []\n")
    asked: list[int] = []

    def current() -> list[int]:
        asked.append(1)
        return asked

    class Pretends:
        __module__ = module.__name__
        __class__ = property(lambda self: current().__class__)  # type: ignore[assignment]

        def __init__(self) -> None:
            self.kept: list[int] = []

    module.pretends = Pretends()  # type: ignore[attr-defined]
    module.proxy = LocalProxy(current)  # type: ignore[attr-defined]
    module.holder = [module.proxy, {"x": module.proxy}]  # type: ignore[attr-defined]
    watch = Watch((module.__name__,))
    before = watch.snapshot()
    module.HISTORY.append(1)
    module.pretends.kept.append(1)
    assert [change.where for change in watch.compare(before)] == [f"{module.__name__}.HISTORY"]
    watch.find_marks()
    assert asked == []


def test_lazy_modules_are_not_loaded_and_odd_ones_are_skipped(imported: Imports) -> None:
    package = imported("HISTORY = []\n", lazy="raise RuntimeError('loaded')\n")
    spec = importlib.util.find_spec(f"{package.__name__}.lazy")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    lazy = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = lazy
    spec.loader.exec_module(lazy)

    class Odd(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(name)

    sys.modules[f"{package.__name__}.odd"] = Odd("odd")
    sys.modules[f"{package.__name__}.none"] = None  # type: ignore[assignment]
    sys.modules[f"{package.__name__}.thing"] = object()  # type: ignore[assignment]
    watch = Watch((package.__name__,))
    before = watch.snapshot()
    package.HISTORY.append(1)
    assert [change.where for change in watch.compare(before)] == [f"{package.__name__}.HISTORY"]
    watch.find_marks()
    assert "LazyModule" in type(lazy).__name__


def test_cycles_of_references_end(imported: Imports) -> None:
    module = imported(
        "class Node: pass\nnode = Node()\nnode.me = node\nloop = [1]\nloop.append(loop)\n"
        "table = {}\ntable['x'] = (table, loop, node)\nnode.names = []\n"
    )
    watch = Watch((module.__name__,))
    before = watch.snapshot()
    assert before.objects < 50
    module.node.names.append(1)
    assert [change.where for change in watch.compare(before)] == [f"{module.__name__}.node.names"]


def test_only_the_ends_of_huge_containers_are_read(imported: Imports) -> None:
    module = imported(
        "import collections\nBIG = list(range(300_000))\nTABLE = {n: [n] for n in range(300_000)}\n"
        "QUEUE = collections.deque(range(300_000))\nNAMES = set(range(300_000))\nRAW = bytearray(3_000_000)\n"
    )
    watch = Watch((module.__name__,), limit=100)
    before = watch.snapshot()
    assert max(len(node.held[1]) for node in before.nodes) <= 200
    assert before.objects < 200
    module.BIG.append(1)
    module.TABLE.popitem()
    module.QUEUE[-1] = "other"
    module.NAMES.add("other")
    module.RAW[-1] = 1
    kinds = {change.where.rpartition(".")[2]: change.kind for change in watch.compare(before)}
    assert kinds == {"BIG": "grew", "TABLE": "shrank", "QUEUE": "changed", "NAMES": "grew", "RAW": "changed"}


def test_the_number_of_objects_is_limited_with_a_warning(
    imported: Imports, caplog: pytest.LogCaptureFixture
) -> None:
    module = imported("FIRST = []\nMANY = [[] for _ in range(1_000)]\n")
    watch = Watch((module.__name__,), most=100)
    before = watch.snapshot()
    assert not before.complete
    assert len(before.nodes) <= 110
    module.FIRST.append(1)
    assert [change.where for change in watch.compare(before)] == [f"{module.__name__}.FIRST"]
    for mode in ("changes", "canary"):
        caplog.clear()
        body_of(LeakMiddleware(lambda environ, start: [b""], watch=watch, mode=mode)).close()  # type: ignore[arg-type]
        assert "100 objects, and there are more" in caplog.text


def test_depth_is_bounded(imported: Imports) -> None:
    module = imported(
        "DEEP = []\ninner = DEEP\nfor _ in range(5000):\n    inner.append([]); inner = inner[0]\n"
    )
    del module.inner  # type: ignore[attr-defined]
    watch = Watch((module.__name__,), depth=5)
    assert len(watch.snapshot().nodes) == 6  # and the module
    before = watch.snapshot()
    module.DEEP[0][0].append(1)
    assert [change.where for change in watch.compare(before)] == [f"{module.__name__}.DEEP[0][0]"]


def test_deleted_objects_are_reported(imported: Imports) -> None:
    module = imported(
        "import sys\nclass Agent:\n    def __init__(self): self.names = []\nagent = Agent()\nLIST = [[]]\n"
    )
    watch = Watch((module.__name__,))
    before = watch.snapshot()
    del module.agent.names, module.LIST[0], module.Agent
    del sys.modules[module.__name__]
    kinds = {
        change.where.removeprefix(module.__name__ + "."): change.kind for change in watch.compare(before)
    }
    assert kinds == {"agent.names": "gone", "LIST": "shrank", "Agent": "gone"}


def test_a_new_object_at_an_old_address_is_a_change(imported: Imports) -> None:
    """The snapshot keeps the old object alive, so a new one never gets its address."""
    module = imported("class Cart: pass\nLAST = [Cart()]\n")
    watch = Watch((module.__name__,))
    for _ in range(50):
        before = watch.snapshot()
        module.LAST[0] = None
        module.LAST[0] = module.Cart()
        assert [change.kind for change in watch.compare(before)] == ["changed"]
