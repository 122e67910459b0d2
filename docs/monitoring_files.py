"""What docs/generate.py makes from the list of metrics: a page, a Grafana dashboard, alert rules of Prometheus."""

from __future__ import annotations

import json
from typing import Any

import yaml

from distributary.metrics.metric_list import COMMON, METRICS, Metric

_MADE = "Made by docs/generate.py from src/distributary/metrics/metric_list.py; edit that."
_INTRO = f"""\
# Metrics

<!-- {_MADE} -->

How to switch them on, and what to do with them: [monitoring.md](monitoring.md). All have the labels `pipeline` and
`stream` (`whole`, or the cluster's name where a pipeline is spread over several; `hop-1` for the first of two hops).
OpenTelemetry's names have a dot in place of the first underscore, and no `_total`.

| metric | kind | unit | labels | meaning | what to do |
|---|---|---|---|---|---|
"""
_ALERTS = """
## Alerts

[deploy/prometheus-alerts.yaml](../deploy/prometheus-alerts.yaml) has these rules:

| alert | for | severity | what it says |
|---|---|---|---|
"""
_UNITS = {"s": "s", "By": "bytes", "rows/s": "rowsps"}
"""Units of the list as Grafana names them."""
_WIDTH, _HEIGHT, _ACROSS = 12, 8, 2


def metrics_page() -> str:
    """docs/metrics.md."""
    rows = [
        "| "
        + " | ".join(
            (f"`{m.series}`", m.kind, m.unit, ", ".join(f"`{name}`" for name in m.labels), m.meaning, m.remedy)
        )
        + " |"
        for m in METRICS
    ]
    alerts = [
        f"| `{m.alert.name}` | {m.alert.lasts} | {m.alert.severity} | {m.alert.summary} |" for m in METRICS if m.alert
    ]
    return _INTRO + "\n".join(rows) + "\n" + _ALERTS + "\n".join(alerts) + "\n"


def alert_rules() -> str:
    """deploy/prometheus-alerts.yaml."""
    rules = [
        {
            "alert": alert.name,
            "expr": alert.when,
            "for": alert.lasts,
            "labels": {"severity": alert.severity},
            "annotations": {"summary": alert.summary, "description": f"{metric.meaning} {metric.remedy}"},
        }
        for metric in METRICS
        if (alert := metric.alert) is not None
    ]
    groups = {"groups": [{"name": "distributary", "rules": rules}]}
    return f"# {_MADE}\n" + yaml.safe_dump(groups, sort_keys=False, width=120, allow_unicode=True)


def dashboard() -> str:
    """deploy/grafana-dashboard.json."""
    drawn = [metric for metric in METRICS if metric.panel is not None]
    board = {
        "title": "distributary",
        "uid": "distributary",
        "description": _MADE,
        "tags": ["distributary"],
        "schemaVersion": 39,
        "editable": True,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [_source_variable(), *(_variable(name) for name in COMMON)]},
        "panels": [_panel(number, metric) for number, metric in enumerate(drawn)],
    }
    return json.dumps(board, indent=2, ensure_ascii=False) + "\n"


def filtered(expression: str) -> str:
    """The expression for the pipelines and streams that are chosen on the dashboard."""
    chosen = 'pipeline=~"$pipeline",stream=~"$stream"'
    for series in sorted((m.series for m in METRICS), key=len, reverse=True):
        parts, rest = [], expression
        while (at := _found(rest, series)) >= 0:
            end = at + len(series)
            if rest[end : end + 1] == "{":
                parts.append(f"{rest[:end]}{{{chosen},")
                rest = rest[end + 1 :]
            else:
                parts.append(f"{rest[:end]}{{{chosen}}}")
                rest = rest[end:]
        expression = "".join(parts) + rest
    return expression


def _found(text: str, series: str) -> int:
    """Where `series` stands as a whole name; -1: nowhere."""
    at = text.find(series)
    while at >= 0:
        after = text[at + len(series) : at + len(series) + 1]
        if not (after.isalnum() or after == "_"):
            return at
        at = text.find(series, at + 1)
    return -1


def _panel(number: int, metric: Metric) -> dict[str, Any]:
    assert metric.panel is not None
    row, column = divmod(number, _ACROSS)
    legend = " ".join(f"{{{{{label}}}}}" for label in ("pipeline", "stream", *metric.labels))
    unit = "s" if metric.name.endswith("_timestamp_seconds") else _UNITS.get(metric.unit, "short")
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": metric.name.removesuffix("_timestamp_seconds").replace("_", " "),
        "description": f"{metric.meaning} {metric.remedy}",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"h": _HEIGHT, "w": _WIDTH, "x": column * _WIDTH, "y": row * _HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": filtered(metric.panel), "legendFormat": legend}],
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "source", "label": "data source", "type": "datasource", "query": "prometheus"}


def _variable(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": f"label_values(distributary_up, {name})",
        "includeAll": True,
        "multi": True,
        "refresh": 2,
    }
