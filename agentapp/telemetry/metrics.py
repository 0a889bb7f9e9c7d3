"""The metrics of all workers together: prometheus-client keeps them in files that the workers share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, values
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from agentapp.telemetry.catalogue import METRICS, OTHER, PREFIX, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# So that the isolation score falls at once, whichever worker is asked for it.
UNSTORED = Metric(
    "gauge", "isolation_unstored", "Requests that violated isolation and are not in the database yet."
)


@dataclass(frozen=True, slots=True)
class GaugeNow:
    """A gauge that is read from the database when it is asked for. ``values`` are by the value of its one
    label; without a label there is one, under any key.
    """

    name: str
    help: str
    values: Mapping[str, float]
    label: str = ""


class Metrics:  # agentapp: shared ok - made anew once in each worker, before it serves
    """In one process by itself until it has `joined` the other workers.

    A worker's files are named for its place among the workers, and not for its process. So a worker that
    takes the place of one that ended, or was killed, goes on counting where that one stopped: nothing is
    lost, and there are never more files than workers.
    """

    def __init__(self, add_up: Callable[[], object] = lambda: None) -> None:
        """``add_up`` is called before anything is shown."""
        self._add_up = add_up
        self._directory: str | None = None
        self._make()

    def join(self, directory: Path, place: int) -> None:
        """Once in each worker, before it serves. No other living worker has this place."""
        self._directory = str(directory)
        # prometheus-client takes both from where they are for the whole process.
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = self._directory
        make: Any = values.MultiProcessValue  # it ships no types for this
        values.ValueClass = make(lambda: place)  # agentapp: shared ok - once, as above
        remove: Any = mark_process_dead  # the gauges of the worker that had this place before
        remove(place, self._directory)
        self._make()

    def count(self, name: str, amount: float, labels: Mapping[str, str]) -> None:
        self._series_of(name, labels).inc(amount)

    def observe(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._series_of(name, labels).observe(value)

    def gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        self._series_of(name, labels).set(value)

    def unstored(self) -> float:
        """Requests of all workers in which isolation was violated, as far as they are not stored yet."""
        families = [each for each in self._collected().collect() if each.name == PREFIX + UNSTORED.name]
        return float(sum(sample.value for family in families for sample in family.samples))

    def exposition(self, more: Iterable[GaugeNow] = ()) -> bytes:
        """What Prometheus reads."""
        self._add_up()
        registry = self._collected()
        registry.register(_Gauges(more))
        kept = [line for line in generate_latest(registry).splitlines(True) if _UNSTORED not in line]
        return b"".join(kept)

    def _collected(self) -> CollectorRegistry:
        if self._directory is None:
            once = CollectorRegistry(auto_describe=False)
            once.register(_Copy(self._registry))
            return once
        registry = CollectorRegistry()
        collector: Any = MultiProcessCollector
        collector(registry, self._directory)
        return registry

    def _make(self) -> None:
        self._registry = CollectorRegistry()
        self._metrics = {metric.name: metric for metric in (*METRICS, UNSTORED)}
        self._made: dict[str, Any] = {metric.name: self._new(metric) for metric in self._metrics.values()}
        self._series: dict[tuple[str, ...], Any] = {}
        for metric in self._metrics.values():
            # They are there before anything was counted, at zero. Of two labels many pairs never come.
            if len(metric.labels) == 1:
                ((label, possible),) = metric.labels.items()
                for value in possible:
                    self._series_of(metric.name, {label: value})

    def _new(self, metric: Metric) -> Any:
        name, labels, registry = PREFIX + metric.name, tuple(metric.labels), self._registry
        match metric.kind:
            case "counter":
                return Counter(name, metric.help, labels, registry=registry)
            case "histogram":
                return Histogram(name, metric.help, labels, buckets=metric.buckets, registry=registry)
        return Gauge(name, metric.help, labels, registry=registry, multiprocess_mode=metric.mode)

    def _series_of(self, name: str, labels: Mapping[str, str]) -> Any:
        if not labels:
            return self._made[name]
        key = (name, *labels.values())
        found = self._series.get(key)
        if found is None:
            possible = self._metrics[name].labels
            chosen = {
                label: labels[label] if labels[label] in possible[label] else OTHER for label in possible
            }
            found = self._made[name].labels(**chosen)
            if OTHER not in chosen.values():
                self._series[key] = found
        return found


_UNSTORED = (PREFIX + UNSTORED.name).encode()


class _Gauges(Collector):
    def __init__(self, gauges: Iterable[GaugeNow]) -> None:
        self._gauges = tuple(gauges)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for gauge in self._gauges:
            labels = [gauge.label] if gauge.label else []
            family = GaugeMetricFamily(PREFIX + gauge.name, gauge.help, labels=labels)
            for chosen, value in gauge.values.items():
                family.add_metric([chosen] if gauge.label else [], value)
            yield family


class _Copy(Collector):
    """What another registry has, so that more can be added to it for one answer."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Any]:
        return self._registry.collect()
