"""Finding arithmetic in running text, and not in its dates, ranges, telephone numbers and versions."""

from __future__ import annotations

import re


def find_expressions(words: str) -> tuple[str, ...]:
    """The arithmetic expressions in a text, as they stand there."""
    for spoken, written in _SPOKEN:
        words = re.sub(spoken, written, words, flags=re.I)
    runs = [part for found in _RUN.finditer(words) for part in _split_at_commas(found.group())]
    sums = [_trim(run) for run in runs]
    alone = re.fullmatch(r"\d+[-/]\d+", words.strip(" ?.!"))
    asked = bool(_ASKS.search(words) or alone)
    return tuple(dict.fromkeys(found for found in sums if _is_sum(found, asked)))


_SPOKEN = (
    (r"\bsquare root of (\d[\d.,]*\d|\d)", r"sqrt(\1)"),
    (r"(?<=\d)\s+squared\b", "^2"),
    (r"(?<=\d)\s+cubed\b", "^3"),
    (r"(?<=\d)\s*per ?cent\b", "%"),
    (r"(?<=[\d)])\s+(?:to the power of|to the power)\s+(?=[\d(])", "^"),
    (r"(?<=[\d)%])\s+plus\s+(?=[\d(])", " + "),
    (r"(?<=[\d)])\s+minus\s+(?=[\d(])", " - "),
    (r"(?<=[\d)])\s+(?:times|multiplied by|x)\s+(?=[\d(])", " * "),
    (r"(?<=[\d)])\s+(?:divided by|over)\s+(?=[\d(])", " / "),
)
_FUNCTION = r"(?:sqrt|abs|round|floor|ceil|min|max|factorial|exp|ln|log10|log|sin|cos|tan)\s*\("
_OPERAND = r"(?:\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?|\.\d+|pi\b|e\b)"
_PIECE = (
    rf"(?:{_FUNCTION}|{_OPERAND}|%\s*of\b|mod\b|\*\*|//|[-+*/^%!)×÷−]"
    rf"|\((?=\s*(?:{_FUNCTION}|{_OPERAND}|[-+(−]))|,(?=\s*(?:{_FUNCTION}|{_OPERAND}|[-+(−])))"
)
# Atomic: no part is given back, so "12-34abc" never yields "12-3", and the search stays quick.
_RUN = re.compile(rf"(?<![\w.:/#@$€+*^%-])(?>{_PIECE}(?:\s*{_PIECE})*)(?![\w@#:])", re.I)
_JOINED = re.compile(
    rf"[\d)%!ie]\s*(?:\*\*|//|[-+*/^%×÷−]|%\s*of\b|\bmod\b)\s*[-+(]*\s*[\d.(a-z]|{_FUNCTION}|^\d+!$", re.I
)
_ASKS = re.compile(r"\b(?:what|how much|calculate|compute|work out|evaluate|solve)\b|=", re.I)


def _split_at_commas(run: str) -> list[str]:
    """At commas outside brackets: "2+2, 3*7" is two, "max(1, 2)" and "1,234 + 1" are one."""
    cuts, depth = [-1], 0
    for place, sign in enumerate(run):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth <= 0 and not re.match(r",\d{3}(?!\d)", run[place:]):
            cuts.append(place)
    return [run[start + 1 : end] for start, end in zip(cuts, [*cuts[1:], len(run)], strict=True)]


def _trim(run: str) -> str:
    run = run.strip().rstrip("+-*/^×÷−, ")
    if run.count(")") > run.count("("):
        run = run.rstrip(") ")
    if run.endswith("!") and not re.fullmatch(r"\d+!", run):
        run = run.rstrip("! ")
    return run.lstrip("*/^%×÷), ")


def _is_sum(run: str, asked: bool) -> bool:
    if not _JOINED.search(run) or re.search(r"[\d)]\s+[\d(.]", run):
        return False
    # "pages 3-5", "555-1234" and "1/2 cup" are no sums unless somebody asks for one.
    return asked or not re.fullmatch(r"\d+(?:[-/]\d+)+", run)
