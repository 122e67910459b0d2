"""The same figures pushed to a collector by OTLP (HTTP), by OpenTelemetry's own library."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from distributary.config import Otlp
from distributary.errors import ExtraMissing
from distributary.errors.border import in_words
from distributary.metrics.board import Sample
from distributary.metrics.meter import Meter
from distributary.metrics.metric_list import COMMON, METRICS, Metric
from distributary.version import __version__

log = logging.getLogger("distributary")

TIMEOUT_SEC = 10
LAST_SEC = 2.0
"""So long a run that has ended waits for the last push."""
FRESH_SEC = 1.0
"""So long one look at all figures serves the instruments, each of which asks by itself."""


@contextmanager
def pushed(meter: Meter, config: Otlp) -> Iterator[None]:
    """Push while the block runs, and once more at its end. A collector that is away stops nothing.

    Raises ExtraMissing.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ImportError as e:
        raise ExtraMissing(what="metrics.otlp", extra="otlp", detail=str(e)) from e
    # Its own retries are long, and the next push has the newer figures anyway.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    headers = {name: value.get_secret_value() for name, value in config.headers.items()}
    exporter = OTLPMetricExporter(endpoint=config.endpoint, headers=headers, timeout=TIMEOUT_SEC)
    provider = provider_of(meter, PeriodicExportingMetricReader(exporter, export_interval_millis=config.every * 1000))
    try:
        yield
    finally:
        _end(provider.shutdown)


def _end(shutdown: Callable[[], None]) -> None:
    """Push once more, and no longer than a moment: the library tries again and again where nobody listens."""

    def work() -> None:
        try:
            shutdown()
        except Exception as e:  # the run has ended as it has
            log.warning("the last figures were not pushed: %s", in_words(e))

    thread = threading.Thread(target=work, name="last figures", daemon=True)
    thread.start()
    thread.join(LAST_SEC)
    if thread.is_alive():
        log.warning("the last figures were not pushed: the collector gave no answer in %g s", LAST_SEC)


def provider_of(meter: Meter, reader: Any) -> Any:
    """OpenTelemetry's provider with an instrument for each metric of the list; `reader` takes them out."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

    resource = Resource.create({"service.name": "distributary", "service.version": __version__})
    provider = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    otel_meter, samples = provider.get_meter("distributary", __version__), _Kept(meter.samples)
    for metric in METRICS:
        make = otel_meter.create_observable_counter if metric.kind == "counter" else otel_meter.create_observable_gauge
        make(metric.otlp, [_callback(metric, meter, samples)], metric.unit, metric.meaning)
    return provider


class _Kept:
    """What `samples` said, asked again after a second only."""

    def __init__(self, samples: Callable[[], list[tuple[str, Sample]]]) -> None:
        self._samples = samples
        self._at = 0.0
        self._found: dict[str, list[tuple[str, Sample]]] = {}

    def of(self, name: str) -> list[tuple[str, Sample]]:
        if not self._found or time.monotonic() - self._at > FRESH_SEC:
            self._found, self._at = {}, time.monotonic()
            for stream, sample in self._samples():
                self._found.setdefault(sample.name, []).append((stream, sample))
        return self._found.get(name, [])


def _callback(metric: Metric, meter: Meter, samples: _Kept) -> Callable[[Any], Iterable[Any]]:
    from opentelemetry.metrics import Observation

    names = (*COMMON, *metric.labels)

    def observe(_: Any) -> Iterable[Any]:
        for stream, sample in samples.of(metric.name):
            labels = (meter.pipeline, stream, *sample.labels)
            yield Observation(sample.value, dict(zip(names, labels, strict=True)))

    return observe
