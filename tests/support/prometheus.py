"""Queries of Prometheus as far as ours go: which metrics and which values of labels they name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import chain

from agentapp.telemetry.catalogue import METRICS, PREFIX, READ_FROM_DATABASE, Metric

OF_THE_SCRAPE = {"job", "instance"}
WORDS = {"sum", "min", "max", "avg", "count", "by", "without", "on", "or", "and", "unless", "ignoring"}
WORDS |= {"rate", "increase", "histogram_quantile", "absent", "abs", "clamp_min", "vector", "time"}

TOKEN = re.compile(
    r"""
    (?P<selector>(?P<name>[A-Za-z_:][\w:]*)\s*\{(?P<matchers>[^}]*)\})
    | (?P<grouping>\b(?:by|without|on|ignoring)\s*\((?P<labels>[^)]*)\))
    | (?P<range>\[[^\]]*\])
    | (?P<text>"[^"]*")
    | (?P<word>[A-Za-z_:][\w:]*)
    """,
    re.X,
)
MATCHER = re.compile(r'\s*(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"\s*(?:,|$)')


def series_of(metrics: Collection[Metric]) -> Mapping[str, Mapping[str, Collection[str]]]:
    """Every series name that a scrape shows, with all values of its labels."""
    found: dict[str, Mapping[str, Collection[str]]] = {}
    for metric in metrics:
        name = PREFIX + metric.name
        if metric.kind == "histogram":
            bounds = [*(str(bound) for bound in metric.buckets), "+Inf"]
            found[f"{name}_bucket"] = {**metric.labels, "le": bounds}
            found[f"{name}_count"] = found[f"{name}_sum"] = metric.labels
        else:
            found[name] = metric.labels
    return found


KNOWN = series_of((*METRICS, *READ_FROM_DATABASE))


def unknown_in(query: str) -> list[str]:
    """What a query names and a server does not show: metrics, labels and their values."""
    used: dict[str, Collection[str]] = {}
    problems: list[str] = []
    for token in TOKEN.finditer(query):
        if token["selector"] or token["word"]:
            name = token["name"] or token["word"]
            if name in KNOWN:
                used |= KNOWN[name]
                problems += _unknown_matchers(name, token["matchers"] or "")
            elif name not in WORDS:
                problems.append(name)
    for token in TOKEN.finditer(query):
        if token["grouping"]:
            labels = [label.strip() for label in token["labels"].split(",") if label.strip()]
            problems += [label for label in labels if label not in {*used, *OF_THE_SCRAPE}]
    return problems


def unknown_labels(legend: str, query: str) -> list[str]:
    """Labels in ``{{ }}`` that the result of a query does not have."""
    kept = set(
        chain(
            *(re.split(r"\s*,\s*", token["labels"]) for token in TOKEN.finditer(query) if token["grouping"])
        )
    )
    return [label for label in re.findall(r"\{\{\s*(\w+)\s*\}\}", legend) if label not in kept]


def _unknown_matchers(name: str, matchers: str) -> Iterator[str]:
    if MATCHER.sub("", matchers).strip():
        yield f"{name}{{{matchers}}}"
    for label, operator, value in MATCHER.findall(matchers):
        values = value.split("|") if "~" in operator else [value]
        if label in OF_THE_SCRAPE:
            continue
        if label not in KNOWN[name]:
            yield f"{name}{{{label}}}"
        else:
            yield from (f'{name}{{{label}="{v}"}}' for v in values if v not in KNOWN[name][label])
