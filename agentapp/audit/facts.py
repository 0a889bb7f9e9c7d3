"""What is known of a program after its files were read: plain values, the same from a file or from the cache.

A *path* says how an object was reached, as a text: a root and steps, joined by ``|``. The roots are

- ``g:NAME``, a name of the module, also an imported one;
- ``p:NAME``, a parameter of the function; ``s`` and ``c``, a method's own object and class;
- ``f:FUNCTION:NAME``, a variable of an enclosing function;
- ``d:FUNCTION`` and ``k:CLASS``, something that is defined inside a function;

and the steps ``.NAME`` (an attribute), ``[]`` (anything that is in it), ``()`` (the result of calling it),
``~`` (a copy of it, whose contents are the same objects), ``^`` (a new container that has it), ``^N`` (one
that has it in this place).

A *value* says what a name was bound to: ``M`` a mutable display or comprehension, ``N`` None, ``K`` another
constant (``K0`` if it is false), ``C:PATH`` the result of a call (``C:PATH#VALUE`` if a default that is
mutable was passed, or a factory that gives this value), ``P:PATH`` another object, ``T`` a tuple of such,
``?`` anything else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

STEP = "|"
ADMITS_SEVERAL = "many"  # of a semaphore: it lets in more than one
INJECTED = ".__given__"  # after a call: what a framework gives to those who depend on it
MODULE, MAIN = "<module>", "<main>"  # the functions that a module's own statements are in


class Write(NamedTuple):
    """``how`` is ``item``, ``attr``, ``rebind``, or ``aug`` (of an alias). ``lazy`` is 1 if it was asked
    before whether this is there yet, 2 if that was asked under the locks too.
    """

    path: str
    how: str
    line: int
    locks: tuple[str, ...]
    lazy: int = 0
    value: str = "?"
    source: str = ""  # the path of what is put there
    only_if: tuple[str, ...] = ()  # the attributes of ``self`` that must be true for it


class Call(NamedTuple):
    path: str
    line: int
    locks: tuple[str, ...]
    args: tuple[tuple[str, str], ...] = ()  # of those that are not the function's own: position or name, path
    lazy: int = 0
    given: int = 0  # how many arguments


class Read(NamedTuple):
    path: str
    line: int
    locks: tuple[str, ...]


@dataclass(slots=True)
class Function:
    name: str  # with that of its class or function in front
    line: int
    params: tuple[str, ...] = ()
    vararg: str = ""  # the parameter that takes all further arguments
    defaults: dict[str, str] = field(default_factory=dict)
    decorators: tuple[str, ...] = ()
    decorator_lines: tuple[int, ...] = ()
    owner: str = ""  # the class it is a method of
    outer: str = ""  # the function it is defined in
    is_async: bool = False
    writes: list[Write] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    returns: tuple[str, ...] = ()
    mentions: tuple[str, ...] = ()  # paths of functions that are passed on or kept
    locals: dict[str, str] = field(default_factory=dict)  # values, of a function that has others inside
    yields: bool = False
    yielded_under: tuple[str, ...] = ()  # the locks that are held meanwhile


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
    """The higher, the more telling: what is changeable, else what is made; last, what is only counted up."""
    return "?NKTPCM".find(value[0])


def join_path(path: str, *steps: str) -> str:
    return STEP.join((path, *steps))


def is_new_object(path: str) -> bool:
    """A copy, or a new container: nobody else has that."""
    return path.rpartition(STEP)[2][0] in "~^"


def root_of(path: str) -> str:
    return path.partition(STEP)[0]
