"""The facts that pass one extracts from each file, and that pass two judges together.

They are plain values. A *path* is a text that says how an object was reached: a root, then steps, joined by
``|``. The roots are

- ``g:NAME``: a name of the module, including imported names;
- ``p:NAME``: a parameter of the function;
- ``s`` and ``c``: ``self`` and ``cls`` of a method;
- ``f:FUNCTION:NAME``: a variable of an enclosing function;
- ``d:FUNCTION`` and ``k:CLASS``: a function or class that is defined inside a function.

The steps are

- ``.NAME``: an attribute;
- ``[]``: any item of a container;
- ``()``: the result of a call;
- ``~``: a shallow copy, which holds the same items;
- ``^``: a new container that holds the object; ``^N`` holds it at index N.

A *value* is a text that says what a name was bound to:

- ``M``: a mutable display or comprehension;
- ``N``: None;
- ``K``: another constant; ``K0`` if it is false;
- ``C:PATH``: the result of a call; ``C:PATH#VALUE`` if it was given a mutable default, or a factory that
  returns VALUE;
- ``P:PATH``: another object;
- ``T``: a tuple that is not constant;
- ``?``: anything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

STEP = "|"
ADMITS_SEVERAL = "many"  # The VALUE of a semaphore that admits more than one thread.
INJECTED = ".__given__"  # A step after a call: the framework passes the result to a parameter.
# The names of the functions that hold a module's own statements and those under ``__name__ == "__main__"``.
MODULE, MAIN = "<module>", "<main>"


class Write(NamedTuple):
    """A write to an object.

    ``how`` is ``item``, ``attr``, ``rebind``, ``aug`` (``+=`` on an alias), ``call`` (a mutating method) or
    ``next``. ``lazy`` is 1 if the code checked before whether the object exists, 2 if it checked under the
    lock.
    """

    path: str
    how: str
    line: int
    locks: tuple[str, ...]
    lazy: int = 0
    value: str = "?"
    source: str = ""  # the path of the object that is stored
    only_if: tuple[str, ...] = ()  # attributes of ``self`` that must be true for the write to happen


class Call(NamedTuple):
    path: str
    line: int
    locks: tuple[str, ...]
    args: tuple[tuple[str, str], ...] = ()  # position or name, and path
    lazy: int = 0
    given: int = 0  # the number of arguments


class Read(NamedTuple):
    path: str
    line: int
    locks: tuple[str, ...]


@dataclass(slots=True)
class Function:
    name: str  # qualified: with the class or function that contains it
    line: int
    params: tuple[str, ...] = ()
    vararg: str = ""  # the name of ``*args``
    defaults: dict[str, str] = field(default_factory=dict)
    decorators: tuple[str, ...] = ()
    decorator_lines: tuple[int, ...] = ()
    owner: str = ""  # the class, if it is a method
    outer: str = ""  # the function that it is defined in
    is_async: bool = False
    writes: list[Write] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    returns: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()  # paths of objects that are passed to a call, stored or returned
    locals: dict[str, str] = field(default_factory=dict)  # the values of its variables
    yields: bool = False
    yielded_under: tuple[str, ...] = ()  # the locks that are held at ``yield``


@dataclass(slots=True)
class Class:
    name: str
    line: int
    bases: tuple[str, ...] = ()
    decorators: tuple[str, ...] = ()
    keywords: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, tuple[str, int, bool]] = field(default_factory=dict)  # value, line, annotated
    methods: tuple[str, ...] = ()
    outer: str = ""


@dataclass(slots=True)
class Module:
    name: str
    path: str
    is_package: bool = False
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> module, name in it or ""
    stars: tuple[str, ...] = ()
    names: dict[str, tuple[str, int]] = field(default_factory=dict)  # value, line
    functions: dict[str, Function] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)


def rank(value: str) -> int:
    """How much a value says about the object; the highest are mutable objects, then results of calls."""
    return "?NKTPCM".find(value[0])


def join_path(path: str, *steps: str) -> str:
    return STEP.join((path, *steps))


def is_new_object(path: str) -> bool:
    """Whether the path ends in a copy or a new container, which nothing else refers to."""
    return path.rpartition(STEP)[2][0] in "~^"
