"""What the judge of change files holds of a file: the file, and one event of it."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pyarrow as pa
import pytest

from distributary.audit.judge.source_files import KnownFile, SourceFiles
from tests.event_files import avro, event, parquet, schema, without

EVENTS = 8_000
PAYLOAD = {f"column_{n}": "string" for n in range(12)}


def body(format: str) -> bytes:
    made = [event(n, {"id": n, **dict.fromkeys(PAYLOAD, f"text {n}")}) for n in range(EVENTS)]
    if format == "avro":
        return avro(schema([("id", "long"), *PAYLOAD.items()]), made)
    if format == "parquet":
        return parquet(pa.Table.from_pylist([without(one, "sort_keys") for one in made]))
    return "\n".join(json.dumps(one) for one in made).encode()


@pytest.mark.parametrize("format", ["avro", "jsonl", "parquet"])
def test_a_change_file_is_judged_in_memory_of_a_few_times_its_bytes(tmp_path: Path, format: str) -> None:
    path = tmp_path / f"events.{format}"
    path.write_bytes(body(format))
    size = path.stat().st_size
    sources = SourceFiles({str(path): KnownFile(size)}, {})
    tracemalloc.start()
    found = sources.open(str(path))
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found is not None
    assert found.whole, sources.partly
    assert list(found.events) == list(range(EVENTS))
    assert [found.events[n][1].payload["id"] for n in (0, 7, EVENTS - 1)] == [0, 7, EVENTS - 1]
    assert held < 3 * size + (4 << 20)


def test_an_event_that_the_file_does_not_have_is_none(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    lines = [json.dumps(event(n, {"id": n})) for n in range(3)]
    path.write_text("\n".join([lines[0], "no event", lines[2]]))
    sources = SourceFiles({str(path): KnownFile(path.stat().st_size)}, {})
    found = sources.open(str(path))
    assert found is not None
    assert not found.whole
    assert [number for number in range(4) if found.events.get(number)] == [0, 2]
