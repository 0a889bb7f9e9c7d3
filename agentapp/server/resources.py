"""Finds the files that lie beside the package in a clone, and inside it in a wheel."""

from __future__ import annotations

from pathlib import Path

from agentapp.errors import StartError


def migrations() -> Path:
    return _found("migrations")


def gunicorn_config() -> Path:
    return _found("gunicorn.conf.py")


def _found(name: str) -> Path:
    package = Path(__file__).resolve().parent.parent
    # Inside first: beside an installed package are the files of other packages.
    for place in (package / "_shipped", package.parent):
        if (place / name).exists():
            return place / name
    raise StartError(f"this installation has no {name}: install agentapp again")
