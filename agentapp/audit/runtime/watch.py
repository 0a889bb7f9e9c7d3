"""What outlives a request: the objects that modules and classes of chosen packages hold, and how they change.

`Watch.snapshot` walks from the loaded modules to every object that can change and notes what it holds;
`Watch.compare` reads the same objects again. A snapshot keeps what it saw alive, so that an object cannot be
mistaken for another one at the same address: drop it when you are done.
"""

from __future__ import annotations

import contextvars
import enum
import fnmatch
import functools
import re
import sys
import threading
import types
import weakref
from array import array
from collections import UserList, defaultdict, deque
from collections.abc import Callable, Iterator, MutableMapping, MutableSequence, MutableSet, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import FunctionType, MethodType, ModuleType
from typing import Any, Literal

from agentapp.audit.runtime import objects
from agentapp.audit.runtime.objects import ATOMS, EMPTY, MISSING, State, Wording

Kind = Literal["grew", "shrank", "changed", "rebound", "new", "gone", "canary"]

HERE = __name__.rpartition(".")[0]
MARK = re.compile(r"agentappcanary[0-9a-f]{24}")
MARK_BEGINS = "agentappcanary"

# They hold what belongs to one thread, task or request, or let go of it by themselves.
_OWN_TO_SOMEBODY = (
    threading.local,
    weakref.ref,
    weakref.WeakKeyDictionary,
    weakref.WeakValueDictionary,
    weakref.WeakSet,
    contextvars.Context,
    contextvars.Token,
)
_LOCALS = frozenset(
    {
        ("_threading_local", "local"),
        ("asgiref.local", "Local"),
        ("eventlet.corolocal", "local"),
        ("gevent._gevent_clocal", "local"),
        ("gevent.local", "local"),
        ("werkzeug.local", "Local"),
        ("werkzeug.local", "LocalProxy"),
        ("werkzeug.local", "LocalStack"),
    }
)
# Nothing a request could keep something in, or the interpreter's own books.
_OPAQUE = (ModuleType, types.CodeType, types.FrameType, types.TracebackType, types.BuiltinFunctionType)
_THROUGH = (
    frozenset,
    MethodType,
    classmethod,
    staticmethod,
    property,
    functools.partial,
    functools.partialmethod,
    functools.cached_property,
    types.MappingProxyType,
)
_ABCS = (MutableMapping, MutableSequence, MutableSet, UserList)
_BOOKS_OF_A_CLASS = frozenset({"_abc_impl", "_value2member_map_", "_member_map_", "_unhashable_values_"})


@dataclass(frozen=True, slots=True)
class Caller:
    """A request that was under way."""

    method: str
    path: str
    endpoint: str  # as Flask calls it; empty if it is not known
    thread: str

    def __str__(self) -> str:
        endpoint = f" ({self.endpoint})" if self.endpoint else ""
        return f"{self.method} {self.path}{endpoint} in {self.thread}"


@dataclass(frozen=True, slots=True)
class Change:
    """Something shared is not what it was. ``requests`` are all those that may have done it."""

    where: str
    kind: Kind
    before: str
    after: str
    requests: tuple[Caller, ...] = ()
    thread: str = ""
    by: tuple[str, ...] = ()  # functions and lines, if they were traced

    @property
    def method(self) -> str:
        return self.requests[0].method if self.requests else ""

    @property
    def path(self) -> str:
        return self.requests[0].path if self.requests else ""

    def __str__(self) -> str:
        if self.kind == "canary":
            return f"{self.where} holds data of {' or '.join(map(str, self.requests))}, which is over"
        text = f"{self.where} {self._verb()} ({self.before} -> {self.after})"
        if self.by:
            text += f", by {' or '.join(self.by)}"
        if self.requests:
            text += f", during {' or '.join(map(str, self.requests))}"
        return text

    def _verb(self) -> str:
        return {"rebound": "was rebound", "new": "is new", "gone": "is gone"}.get(self.kind, self.kind)


# --- How objects of one sort are read and compared -----------------------------------------------------


def _nothing_ignored(obj: Any, name: str, before: Any, after: Any) -> bool:
    return False


def _ignored_in_module(obj: Any, name: str, before: Any, after: Any) -> bool:
    """Importing something is no change of state, and neither is what the import system writes down."""
    if objects.is_dunder(name) or issubclass(type(after), ModuleType):
        return True
    return before is MISSING and issubclass(type(after), (type, FunctionType, types.BuiltinFunctionType))


def _ignored_in_class(obj: Any, name: str, before: Any, after: Any) -> bool:
    return objects.is_dunder(name) or name in _BOOKS_OF_A_CLASS


def _ignored_in_function(obj: Any, name: str, before: Any, after: Any) -> bool:
    return objects.is_dunder(name.removeprefix(":"))


def _ignored_in_foreign(obj: Any, name: str, before: Any, after: Any) -> bool:
    """What a library keeps for itself, and what its class computes when it is first asked for."""
    if name.startswith("_"):
        return True
    return before is MISSING and any(name in objects.class_dict(base) for base in objects.mro(type(obj)))


def _ignored_in_foreign_container(obj: Any, name: str, before: Any, after: Any) -> bool:
    return all(each is MISSING or id(type(each)) in ATOMS for each in (before, after))


@dataclass(frozen=True, slots=True)
class Shape:
    read: objects.Reader
    sort: Literal["sequence", "mapping", "asked", "set", "cache", "names"]
    ignores: Callable[[Any, str, Any, Any], bool] = _nothing_ignored


LIST = Shape(objects.read_list, "sequence")
DEQUE = Shape(objects.read_deque, "sequence")
BYTES = Shape(objects.read_bytes, "sequence")
ARRAY = Shape(objects.read_array, "sequence")
DICT = Shape(objects.read_dict, "mapping")
ASKED = Shape(objects.read_dict, "asked")  # a library's defaultdict: it grows when it is only read
SET = Shape(objects.read_set, "set")
CACHE = Shape(objects.read_cache, "cache")
MODULE = Shape(objects.read_module, "names", _ignored_in_module)
CLASS = Shape(objects.read_class, "names", _ignored_in_class)
FUNCTION = Shape(objects.read_function, "names", _ignored_in_function)
_CONTAINERS: tuple[tuple[type, Shape], ...] = (
    (list, LIST),
    (dict, DICT),
    (set, SET),
    (deque, DEQUE),
    (bytearray, BYTES),
    (array, ARRAY),
)


class Node:
    """One object that can change, how it was reached, and what it held."""

    __slots__ = ("held", "label", "obj", "parent", "shape")

    def __init__(self, obj: Any, shape: Shape | None, parent: Node | None, label: str, held: State) -> None:
        self.obj, self.shape, self.parent, self.label, self.held = obj, shape, parent, label, held

    def where(self) -> str:
        labels, node = [], self
        while node is not None:
            labels.append(node.label)
            node = node.parent  # type: ignore[assignment]
        return "".join(reversed(labels))


@dataclass(frozen=True, slots=True)
class Difference:
    label: str  # of the name, in a namespace
    kind: Kind
    before: str
    after: str


def read(shape: Shape, obj: Any, limit: int) -> State | None:
    """``None`` if it could not be read: others kept changing it, or it is broken."""
    for _ in range(3):
        try:
            return shape.read(obj, limit)
        except RuntimeError:  # changed size during iteration
            continue
        except Exception:
            return None
    return None


def differences(node: Node, before: State, now: State, wording: Wording) -> list[Difference]:
    """What `objects.unchanged` has doubts about, looked at closely."""
    shape = node.shape
    if shape is None:
        return []
    if shape.sort == "names":
        return list(_names_differ(node.obj, shape, before, now, wording))
    if shape.sort == "asked" and objects.filled_by_reading(before, now):
        return []
    if now[0] != before[0]:
        kind: Kind = "grew" if now[0] > before[0] else "shrank"
    else:
        same = objects.same_members if shape.sort == "set" else objects.same_items
        if same(before[1], now[1]):
            return []
        kind = "changed"
    if shape.sort == "cache":
        return [Difference("", kind, f"cache of {before[0]}", f"cache of {now[0]}")]
    halves = shape.sort in ("mapping", "asked")
    return [
        Difference("", kind, wording.state(node.obj, before, halves), wording.state(node.obj, now, halves))
    ]


def _names_differ(
    obj: Any, shape: Shape, before: State, now: State, wording: Wording
) -> Iterator[Difference]:
    old, new = named(before), named(now)
    for name in [*old, *(name for name in new if name not in old)]:
        was, is_now = old.get(name, MISSING), new.get(name, MISSING)
        if objects.alike(was, is_now) or shape.ignores(obj, name, was, is_now):
            continue
        kind: Kind = "new" if was is MISSING else "gone" if is_now is MISSING else "rebound"
        yield Difference(_label(name), kind, wording.of(was), wording.of(is_now))


def named(state: State) -> dict[str, Any]:
    half = len(state[1]) // 2
    pairs = zip(state[1][:half], state[1][half:], strict=True)
    return {name: value for name, value in pairs if type(name) is str}


def _label(name: str) -> str:
    return name if name.startswith(":") else "." + name


# --- The walk ------------------------------------------------------------------------------------------

Handler = Callable[[Any, "Node | None", str, int, int], None]


class _Walk:
    """One walk over everything, nearest first. With ``marks``, it also looks for marks in all texts, and goes
    further into objects of libraries: finding one proves something, however odd the place.
    """

    def __init__(self, watch: Watch, marks: bool = False) -> None:
        self.nodes: list[Node] = []
        self.found: list[tuple[str, str]] = []  # mark, where
        self.visited = 0
        self.complete = True
        self._watch, self._marks = watch, marks
        self._hops = 3 if marks else 1
        self._wording = Wording(watch.values)
        self._handlers: dict[int, Handler] = {}  # by the id of a type
        self._plain = set(ATOMS)  # ids of types that nobody has to look into
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # so that no id is given to another object meanwhile
        self._queue: deque[tuple[Handler, Any, Node | None, str, int, int]] = deque()

    def run(self) -> None:
        for name, module in self._watch.modules():
            self._seen.add(id(module))
            with suppress(Exception):
                self._module(name, module)
        for name, root in self._watch.roots:
            self._expand(None, (root,), lambda _, name=name: name, 1, 0)  # type: ignore[misc]
        queue, most = self._queue, self._watch.most
        while queue:
            self.visited += 1
            if self.visited > most:
                self.complete = False
                break
            handler, obj, parent, label, depth, hops = queue.popleft()
            try:
                handler(obj, parent, label, depth, hops)
            except Exception:  # whatever somebody's object does to its reader, the others are read
                self.complete = False

    # Every object is looked at once, by the handler of its type.

    def _expand(
        self,
        parent: Node | None,
        items: tuple[Any, ...] | list[Any],
        label: Callable[[int], str],
        depth: int,
        hops: int,
    ) -> None:
        if self._marks:
            self._search(parent, items, label)
        plain = self._plain
        if depth > self._watch.depth or plain.issuperset(map(id, map(type, items))):
            return
        seen, handlers = self._seen, self._handlers
        for position, item in enumerate(items):
            kind = id(type(item))
            if kind in plain or id(item) in seen:
                continue
            self._kept.append(item)
            handler = handlers.get(kind) or self._handler_of(type(item))
            if handler is not None:
                seen.add(id(item))
                self._queue.append((handler, item, parent, label(position), depth, hops))

    def _handler_of(self, cls: type) -> Handler | None:
        handler = None
        with suppress(Exception):
            handler = self._made_for(cls)
        if handler is None:
            self._plain.add(id(cls))
        else:
            self._handlers[id(cls)] = handler
        return handler

    def _made_for(self, cls: type) -> Handler | None:
        if self._is_left_alone(cls):
            return None
        if issubclass(cls, type):
            return self._class
        if issubclass(cls, FunctionType):
            return self._function
        if issubclass(cls, functools._lru_cache_wrapper):
            return self._cache
        if issubclass(cls, contextvars.ContextVar):
            return self._variable
        if issubclass(cls, tuple):
            return self._tuple
        if issubclass(cls, _THROUGH):
            return self._through
        own = self._watch.owns(objects.class_module(cls)) or cls is types.SimpleNamespace
        reader = objects.instance_reader(cls)
        for base, shape in _CONTAINERS:
            if issubclass(cls, base):
                attributes = self._instance(cls, reader) if own and reader else None
                return functools.partial(self._container, shape, attributes)
        if reader is not None and own:
            return self._instance(cls, reader)
        if reader is not None and objects.inherits(cls, _ABCS):
            return functools.partial(
                self._foreign, Shape(reader, "names", _ignored_in_foreign_container), True
            )
        if reader is not None and not issubclass(cls, (str, bytes, int, float)):
            return functools.partial(self._foreign, Shape(reader, "names", _ignored_in_foreign), False)
        return self._beyond if self._marks else None

    def _is_left_alone(self, cls: type) -> bool:
        if issubclass(cls, _OPAQUE) or objects.inherits(cls, _OWN_TO_SOMEBODY) or objects.is_proxy(cls):
            return True
        if objects.class_module(cls).startswith(HERE):
            return True
        return any(
            (objects.class_module(base), objects.class_name(base)) in _LOCALS for base in objects.mro(cls)
        )

    def _note(self, obj: Any, shape: Shape, parent: Node | None, label: str) -> Node | None:
        held = read(shape, obj, self._watch.limit)
        if held is None:
            return None
        node = Node(obj, shape, parent, label, held)
        self.nodes.append(node)
        return node

    # Handlers: what is in it, and by what name.

    def _module(self, name: str, module: ModuleType) -> None:
        node = self._note(module, MODULE, None, name)
        if node is not None:
            self._expand_names(node, 1, 0, lambda name, value: not objects.is_dunder(name))

    def _expand_names(
        self, node: Node, depth: int, hops: int, wanted: Callable[[str, Any], bool] | None = None
    ) -> None:
        items = node.held[1]
        half = len(items) // 2
        names, values = items[:half], items[half:]
        if wanted is not None:
            chosen = [
                (name, value)
                for name, value in zip(names, values, strict=True)
                if type(name) is str and wanted(name, value)
            ]
            names, values = tuple(n for n, _ in chosen), tuple(v for _, v in chosen)
        self._expand(
            node, values, lambda at: _label(names[at]) if type(names[at]) is str else ".?", depth, hops
        )

    def _class(self, cls: type, parent: Node | None, label: str, depth: int, hops: int) -> None:
        module = objects.class_module(cls)
        if not self._watch.owns(module):
            return
        node = self._note(cls, CLASS, None, f"{module}.{objects.class_name(cls)}")
        if node is None:
            return
        books = _BOOKS_OF_A_CLASS if issubclass(type(cls), enum.EnumMeta) else frozenset()
        functions = (FunctionType, classmethod, staticmethod)

        def wanted(name: str, value: Any) -> bool:
            return issubclass(type(value), functions) if objects.is_dunder(name) else name not in books

        self._expand_names(node, depth + 1, 0, wanted)
        self._expand(node, objects.mro(cls)[1:], lambda _: "", depth + 1, 0)

    def _function(
        self, function: FunctionType, parent: Node | None, label: str, depth: int, hops: int
    ) -> None:
        module = objects.function_module(function)
        node: Node | None
        if not self._watch.owns(module):
            # A wrapper that a library made: what it wraps may be ours, and what it remembers is shared too.
            if hops <= self._hops:
                inside = [objects.cell_contents(cell) for cell in function.__closure__ or ()]
                node = Node(function, None, parent, label, EMPTY)
                names = function.__code__.co_freevars
                self._expand(node, inside, lambda at: f":{names[at]}", depth + 1, hops + 1)
            return
        node = self._note(function, FUNCTION, None, f"{module}.{str.__str__(function.__qualname__)}")
        if node is None:
            return
        self._expand_names(node, depth + 1, 0)
        defaults, code = function.__defaults__ or (), function.__code__
        takes = code.co_varnames[: code.co_argcount][-len(defaults) :] if defaults else ()
        names = takes if len(takes) == len(defaults) else tuple("?" for _ in defaults)
        self._expand(node, defaults, lambda at: f"({names[at]}=...)", depth + 1, 0)
        if function.__kwdefaults__:
            keywords = tuple(function.__kwdefaults__)
            values = tuple(function.__kwdefaults__.values())
            self._expand(node, values, lambda at: f"({keywords[at]}=...)", depth + 1, 0)

    def _cache(self, obj: Any, parent: Node | None, label: str, depth: int, hops: int) -> None:
        if self._is_of_a_library(obj):
            return
        node = self._note(obj, CACHE, parent, label)
        for each in objects.referents(obj, self._watch.limit * 3):
            if type(each) is not dict:
                self._expand(node, (each,), lambda _: "()", depth + 1, hops)
            elif "__wrapped__" not in each:
                self._expand(
                    node, objects.read_dict(each, self._watch.limit)[1], lambda _: "()", depth + 1, hops
                )

    def _is_of_a_library(self, cache: Any) -> bool:
        """Imported from there, as ``urllib.parse.urlsplit`` is; and not made here of a library's function."""
        wrapped: Any = dict.get(cache.__dict__, "__wrapped__")
        if not issubclass(type(wrapped), FunctionType) or self._watch.owns(objects.function_module(wrapped)):
            return False
        return "." in wrapped.__qualname__ or wrapped.__globals__.get(wrapped.__name__) is cache

    def _variable(
        self, obj: contextvars.ContextVar[Any], parent: Node | None, label: str, depth: int, hops: int
    ) -> None:
        """What it is set to belongs to one context; its default is everybody's."""
        node = Node(obj, None, parent, label, EMPTY)
        try:
            default = contextvars.Context().run(obj.get)
        except LookupError:
            return
        self._expand(node, (default,), lambda _: "(default)", depth + 1, hops)

    def _tuple(self, obj: tuple[Any, ...], parent: Node | None, label: str, depth: int, hops: int) -> None:
        node = Node(obj, None, parent, label, EMPTY)
        items = tuple(tuple.__iter__(obj))[: self._watch.limit]
        self._expand(node, items, lambda at: f"[{at}]", depth + 1, hops)

    def _through(self, obj: Any, parent: Node | None, label: str, depth: int, hops: int) -> None:
        node = Node(obj, None, parent, label, EMPTY)
        self._expand(node, objects.referents(obj, self._watch.limit), lambda _: "", depth + 1, hops)

    def _beyond(self, obj: Any, parent: Node | None, label: str, depth: int, hops: int) -> None:
        """An object written in C: a generator, an iterator, a queue."""
        if hops < self._hops:
            self._through(obj, parent, label, depth, hops + 1)

    def _container(
        self,
        shape: Shape,
        attributes: Handler | None,
        obj: Any,
        parent: Node | None,
        label: str,
        depth: int,
        hops: int,
    ) -> None:
        if hops > 0 and issubclass(type(obj), defaultdict):
            shape = ASKED
        node = self._note(obj, shape, parent, label)
        if node is not None and shape.sort in ("mapping", "asked"):
            items = node.held[1]
            half = len(items) // 2
            self._expand(node, items, lambda at: self._wording.key(items[at % half]), depth + 1, hops)
        elif node is not None:
            self._expand(node, node.held[1], lambda at: f"[{at}]", depth + 1, hops)
        if attributes is not None:
            attributes(obj, parent, label, depth, hops)

    def _instance(self, cls: type, reader: objects.Reader) -> Handler:
        shape = Shape(reader, "names")

        def handle(obj: Any, parent: Node | None, label: str, depth: int, hops: int) -> None:
            node = self._note(obj, shape, parent, label)
            if node is not None:
                self._expand_names(node, depth + 1, 0)
                self._expand(node, (cls,), lambda _: "", depth + 1, 0)
                if issubclass(cls, BaseException):
                    self._expand(node, objects.exception_args(obj), lambda at: f".args[{at}]", depth + 1, 0)

        return handle

    def _foreign(
        self,
        shape: Shape,
        is_container: bool,
        obj: Any,
        parent: Node | None,
        label: str,
        depth: int,
        hops: int,
    ) -> None:
        if hops >= self._hops and not is_container:
            return
        node = self._note(obj, shape, parent, label)
        if node is None:
            return
        everything = is_container or self._marks
        wanted = None if everything else lambda name, value: not name.startswith("_")
        self._expand_names(node, depth + 1, hops if is_container else hops + 1, wanted)
        if issubclass(type(obj), BaseException):
            self._expand(node, objects.exception_args(obj), lambda at: f".args[{at}]", depth + 1, hops + 1)

    # Marks.

    def _search(
        self, parent: Node | None, items: tuple[Any, ...] | list[Any], label: Callable[[int], str]
    ) -> None:
        for position, item in enumerate(items):
            cls = type(item)
            marks: Sequence[str] = ()
            if cls is str or issubclass(cls, str):
                marks = MARK.findall(item) if str.__contains__(item, MARK_BEGINS) else ()
            elif issubclass(cls, bytes) and bytes.__contains__(item, MARK_BEGINS.encode()):
                marks = MARK.findall(bytes.decode(item, "latin-1"))
            else:
                continue
            if not marks:
                continue
            where = (parent.where() if parent else "") + label(position)
            self.found.extend((mark, where) for mark in dict.fromkeys(marks))


# --- The watch -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was there. ``complete`` is false if there was more than a watch may look at."""

    nodes: tuple[Node, ...]
    objects: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Watch:
    """Looks at the loaded modules of these packages, and at ``roots``: names and further objects.

    It goes ``depth`` steps from a module, looks at no more than ``most`` objects, and of a container with
    more than ``limit`` items only at its length, its beginning and its end. Texts name types and lengths;
    with ``values`` they also show what was in there, which may be somebody's data. ``exclude`` names what
    may change: patterns with ``*``, of an object or of something around it.
    """

    packages: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    values: bool = False
    depth: int = 8
    limit: int = 2_000
    most: int = 50_000
    roots: tuple[tuple[str, object], ...] = field(default=(), repr=False, compare=False)
    _inside: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.packages, str) or isinstance(self.exclude, str):
            raise TypeError("packages and exclude are sequences of texts, not one text")
        object.__setattr__(self, "packages", tuple(self.packages))
        object.__setattr__(self, "exclude", tuple(self.exclude))
        object.__setattr__(self, "_inside", tuple(name + "." for name in self.packages))

    def owns(self, module: str) -> bool:
        """Whether a module is one of the chosen packages', and none of the detector's own."""
        return (module in self.packages or module.startswith(self._inside)) and not module.startswith(HERE)

    def modules(self) -> list[tuple[str, ModuleType]]:
        """Those that are loaded by now."""
        loaded = [
            (name, module)
            for name, module in list(dict.items(sys.modules))
            if type(name) is str and issubclass(type(module), ModuleType) and self.owns(name)
        ]
        return sorted(loaded, key=lambda pair: pair[0])

    def excludes(self, where: str) -> bool:
        return any(_matches(pattern, where) for pattern in self.exclude)

    def snapshot(self) -> Snapshot:
        walk = _Walk(self)
        walk.run()
        return Snapshot(tuple(walk.nodes), walk.visited, walk.complete)

    def compare(self, before: Snapshot) -> list[Change]:
        """What changed since."""
        return [change for _, _, change in self.changes(before)]

    def changes(self, before: Snapshot) -> list[tuple[int, str, Change]]:
        """The same, each with the id of the object and the name in it that changed."""
        found: list[tuple[int, str, Change]] = []
        told: set[tuple[str, Kind]] = set()
        wording, thread = Wording(self.values), threading.current_thread().name
        for node, now in changed(before.nodes, [node.held for node in before.nodes], self.limit):
            for each in differences(node, node.held, now, wording):
                where = node.where() + each.label
                if (where, each.kind) in told or self.excludes(where):
                    continue
                told.add((where, each.kind))
                change = Change(where, each.kind, each.before, each.after, (), thread)
                found.append((id(node.obj), each.label, change))
        return found

    def find_marks(self) -> tuple[list[tuple[str, str]], bool]:
        """All canary marks in shared objects, mark and place, each once; and whether that is really all."""
        walk = _Walk(self, marks=True)
        walk.run()
        found = [(mark, where) for mark, where in dict.fromkeys(walk.found) if not self.excludes(where)]
        return found, walk.complete


def changed(nodes: tuple[Node, ...], held: list[State], limit: int) -> Iterator[tuple[Node, State]]:
    """Those that do not hold the very same objects any more."""
    for node, before in zip(nodes, held, strict=True):
        if node.shape is None:
            continue
        now = read(node.shape, node.obj, limit)
        if now is not None and not objects.unchanged(before, now):
            yield node, now


def _matches(pattern: str, where: str) -> bool:
    """A pattern speaks of an object and of all that is in it."""
    if where == pattern or where.startswith(tuple(pattern + sign for sign in ".[(:")):
        return True
    expression = fnmatch.translate(pattern)[:-2]
    return re.fullmatch(expression + r"(?:[.\[(:].*)?", where, re.S) is not None
