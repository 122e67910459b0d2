"""The Python interface."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import distributary as dy
from distributary.api import Pipeline
from distributary.config import RegistryConfig
from distributary.schemas.registry import open_registry
from tests.lake import Lake
from tests.services import free_ports

PAGE = Path(__file__).parent.parent / "docs" / "python.md"


def _document(lake: Lake) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(lake.config.model_dump(mode="json", exclude_defaults=True)))
    return found


def test_what_is_public_is_there_and_nothing_else_is_exported() -> None:
    assert set(dy.__all__) == {
        "DistributaryError",
        "Exit",
        "Pipeline",
        "Reason",
        "__version__",
        "decode",
        "fan_out",
        "load",
    }
    assert all(getattr(dy, name) is not None for name in dy.__all__)


def test_importing_it_starts_nothing_heavy() -> None:
    heavy = "{'pyspark', 'pyarrow', 'deltalake', 'numpy', 'pandas'}"
    program = (
        f"import sys, distributary; sys.exit(str({heavy} & sys.modules.keys()) if {heavy} & sys.modules.keys() else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_pipeline_comes_from_a_file_or_from_a_mapping(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    file = tmp_path / "games.yaml"
    file.write_text(json.dumps(_document(lake)))
    for pipeline in (dy.load(file), dy.load(str(file)), dy.load(_document(lake))):
        assert pipeline.config.tables.root == lake.config.tables.root
        pipeline.check()


@pytest.mark.parametrize("document", [{}, {"pipeline": "games", "surce": {}}])
def test_a_mapping_with_mistakes_lists_them_all(document: Mapping[str, Any]) -> None:
    with pytest.raises(dy.DistributaryError) as raised:
        dy.load(document)
    assert raised.value.condition == "CONFIG_INVALID"
    assert len(raised.value.parameters["problems"]) >= 2


def test_status_and_quarantine_need_no_spark(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.batch(0, {"chess": {7: 2}}, bad={"chess": 3, None: 1})
    pipeline = dy.load(_document(lake))
    assert [(t.route, t.rows) for t in pipeline.status().tables] == [("chess", 2)]
    assert pipeline.quarantine().rows == 4
    assert pipeline.quarantine(route="chess", reasons=[dy.Reason.CORRUPT_PAYLOAD]).rows == 3


def test_a_run_is_measured_as_the_command_s_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stream that does nothing but one batch."""
    report: Any = SimpleNamespace(stream="s", batch=4, already=False, seconds={"total": 1.0})
    said: list[Any] = []

    def runs(config: Any, *, progress: Any, handle: Any, **_: Any) -> str:
        handle(SimpleNamespace(query=None, outages=0, ledger=SimpleNamespace(entries=list)))
        progress(report)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            said.append(answer.read().decode())
        return "done"

    (port,) = free_ports(1)
    monkeypatch.setattr("distributary.running.hops.run", runs)
    document = {**_document(Lake(tmp_path)), "metrics": {"port": port}}
    given: list[Any] = []
    assert dy.load(document).run(progress=given.append) == "done"  # type: ignore[comparison-overlap]
    assert given == [report]
    assert 'distributary_last_batch{pipeline="games",stream="whole"} 4.0' in said[0]


def test_history_and_foresight_need_no_spark(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.batch(0, {"chess": {1: 2}})
    text = 'syntax = "proto3"; message M { string user = 1; int32 level = 2; }'
    open_registry(RegistryConfig(path=str(tmp_path / "r"))).register("m", text)
    pipeline = dy.load(_document(lake))
    assert pipeline.history("chess").rows == 2
    assert pipeline.foresee(subject="m").tables[0].new_columns == {"level": "int"}


def test_every_method_and_function_stands_in_the_page() -> None:
    methods = {name for name in vars(Pipeline) if not name.startswith("_")}
    assert methods | {"decode", "fan_out"} == set(re.findall(r"^\| `(\w+)\(", PAGE.read_text(), re.M))
