"""Finds the function and the line that changed a shared object. This is expensive.

While a `Tracer` is on, all objects of a snapshot are compared at every call and return of the watched
packages on this thread. A change during a call was made by that call, and its line is exact. A change between
two calls was made by an assignment of the function; its line is the last one before this point that assigns
to something other than a local variable.
"""

from __future__ import annotations

import dis
import os.path
import sys
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import Any

from agentapp.audit.runtime.nodes import find_changed, find_differences
from agentapp.audit.runtime.objects import ATOMS
from agentapp.audit.runtime.watch import Snapshot, Watch
from agentapp.audit.runtime.wording import Wording

_STORE_INSTRUCTIONS = frozenset(
    {
        "STORE_SUBSCR",
        "DELETE_SUBSCR",
        "STORE_SLICE",
        "STORE_ATTR",
        "DELETE_ATTR",
        "STORE_GLOBAL",
        "DELETE_GLOBAL",
        "STORE_NAME",
        "DELETE_NAME",
        "STORE_DEREF",
        "DELETE_DEREF",
    }
)
# Builtins that change nothing themselves. Functions that they call are traced separately.
_PURE_FUNCTIONS = frozenset(
    {"abs", "all", "any", "callable", "chr", "format", "getattr", "hasattr", "hash", "id", "isinstance"}
    | {"issubclass", "iter", "len", "max", "min", "ord", "print", "repr", "round", "sorted", "sum", "vars"}
)
_MAX_SUSPECTS = 5  # This many functions are named for one change.


class Tracer:
    """Traces one request. It is a context manager for each part of the request's work."""

    def __init__(self, watch: Watch, snapshot: Snapshot) -> None:
        self._watch, self._nodes = watch, snapshot.nodes
        self._held = [node.held for node in snapshot.nodes]
        self._index = {id(node): at for at, node in enumerate(snapshot.nodes)}
        self._wording = Wording()
        self._owned: dict[str, bool] = {}
        self._found: dict[tuple[int, str], list[str]] = {}
        self._before: Any = None

    def suspects(self, object_id: int, label: str) -> tuple[str, ...]:
        """The functions that changed this object, or this name in it, since the tracer was made."""
        return tuple(self._found.get((object_id, label), ()))

    def __enter__(self) -> None:
        self._before = sys.getprofile()
        sys.setprofile(self._event)

    def __exit__(self, *exc: object) -> None:
        # If the app has installed another profiler meanwhile, it stays.
        if sys.getprofile() == self._event:
            sys.setprofile(self._before)
        self._before = None

    def _event(self, frame: FrameType, event: str, arg: Any) -> None:
        try:
            if event == "c_call":
                if self._owns(frame) and not _is_pure(arg):
                    self._record_changes(frame, called=False)
            elif event in ("c_return", "c_exception"):
                if self._owns(frame) and not _is_pure(arg):
                    self._record_changes(frame, called=True)
            elif event == "call":
                if frame.f_back is not None and self._owns(frame.f_back):
                    self._record_changes(frame.f_back, called=False)
            elif self._owns(frame):
                self._record_changes(frame, called=False)
            elif frame.f_back is not None and self._owns(frame.f_back):
                self._record_changes(frame.f_back, called=True)
        except Exception:  # An error in the tracer must not stop the request.
            self._nodes, self._held = (), []

    def _owns(self, frame: FrameType) -> bool:
        name = frame.f_globals.get("__name__", "")
        if type(name) is not str:
            return False
        if name not in self._owned:
            self._owned[name] = self._watch.owns(name)
        return self._owned[name]

    def _record_changes(self, frame: FrameType, called: bool) -> None:
        for node, now in find_changed(self._nodes, self._held, self._watch.limit):
            at = self._index[id(node)]
            for each in find_differences(node, self._held[at], now, self._wording):
                known = self._found.setdefault((id(node.obj), each.label), [])
                suspect = _describe_frame(frame, called)
                if suspect not in known and len(known) < _MAX_SUSPECTS:
                    known.append(suspect)
            self._held[at] = now


def _is_pure(function: Any) -> bool:
    if type(function) is not BuiltinFunctionType:
        return False
    owner = function.__self__
    if type(owner) is ModuleType:
        return function.__name__ in _PURE_FUNCTIONS
    return id(type(owner)) in ATOMS and owner is not None


def _describe_frame(frame: FrameType, called: bool) -> str:
    code = frame.f_code
    line = frame.f_lineno if called else _last_store_line(code, frame.f_lineno)
    return f"{frame.f_globals['__name__']}.{code.co_qualname} ({os.path.basename(code.co_filename)}:{line})"


def _last_store_line(code: CodeType, line: int) -> int:
    lines = {
        each.positions.lineno
        for each in dis.get_instructions(code)
        if each.positions is not None
        and each.positions.lineno is not None
        and (
            each.opname in _STORE_INSTRUCTIONS or (each.opname == "BINARY_OP" and each.argrepr.endswith("="))
        )
    }
    return max((each for each in lines if each <= line), default=max(lines, default=line))
