"""Run benchmarks: `python -m bench [name ...]`; all of them where none is named.

Each runs in a process of its own, checks what it wrote, and puts its figures into bench/results/latest.json and
docs/benchmarks.md. A benchmark whose tables are wrong fails and leaves no figure.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.result import LATEST, PAGE, keep, page
from bench.workload import Place, as_installed, say
from bench.yardstick import yardstick

NAMES = (
    "append_vs_spark_jobs",
    "streams_vs_fanout",
    "tables_scale",
    "scale_parts",
    "executors",
    "many_batches",
    "pipeline_vs_limit",
    "python_tasks",
    "kafka_fanout",
    "payloads_kafka",
    "freshness",
    "skew",
    "new_schema_latency",
    "poisoned_route",
    "recursive_decode",
    "decode_avro",
    "decode_json",
    "read_debezium",
    "debezium_kafka",
    "log_length",
    "maintain",
    "listing_growth",
    "books",
    "floods",
    "declarative_update",
    "audit_speed",
    "cdc_events_per_second",
    "merge_vs_spark_small",
    "merge_vs_spark_large",
    "scattered_merges",
    "tombstones_beside",
    "answers",
    "cold_run",
    "idle",
    "merge_memory",
    "merged_row_bytes",
    "history_vs_spark",
    "table_features",
)


def main() -> int:
    """The exit code: 1 when a benchmark failed."""
    options = _options()
    names = options.names or list(NAMES)
    if not options.quick:
        as_installed()
    if len(names) == 1:
        _run(names[0], options)
        return 0
    flags = [f"--results={options.results}"] if options.results else []
    flags += ["--quick"] if options.quick else []
    flags += [f"--dir={options.dir}"] if options.dir else []
    failed = [name for name in names if subprocess.run([sys.executable, "-m", "bench", name, *flags]).returncode]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"one or more of: {', '.join(NAMES)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; shows that it runs, keeps no figures")
    parser.add_argument("--dir", type=Path, help="where to work (a new folder in it, removed at the end)")
    parser.add_argument("--results", type=Path, help="the file that keeps the figures, instead of latest.json")
    options = parser.parse_args()
    if unknown := [name for name in options.names if name not in NAMES]:
        parser.error(f"unknown: {', '.join(unknown)}; allowed: {', '.join(NAMES)}")
    return options


def _run(name: str, options: argparse.Namespace) -> None:
    bench = importlib.import_module(f"bench.{name}")
    root = Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=options.dir))
    try:
        say(f"{name}: begins")
        before = yardstick()
        result = bench.run(Place(root, options.quick))
        after = yardstick()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps({name: result.as_json()}, indent=2))
    path = options.results or (None if options.quick else LATEST)
    if path is None:
        return
    keep(result, path, (before, after))
    if path == LATEST:
        PAGE.write_text(page(PAGE.read_text(), json.loads(LATEST.read_text())))


if __name__ == "__main__":
    sys.exit(main())
