"""A command that only answers leaves out what its answer does not need."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from distributary.cli.lean import be_lean

NOT_NEEDED = ("pandas", "pyspark", "authlib")
PIPELINE = """
pipeline: games
source: {{type: delta, path: {folder}/source}}
registry: {{path: {folder}/registry}}
tables: {{root: {folder}/lake}}
"""


@pytest.mark.parametrize("verb", ["status", "verify"])
def test_status_and_verify_of_messages_load_neither_spark_nor_pandas(verb: str, tmp_path: Path) -> None:
    file = tmp_path / "games.yaml"
    file.write_text(PIPELINE.format(folder=tmp_path))
    code = f"""
import sys
from distributary.cli import entry
entry.own_process()
code = entry.execute([{verb!r}, {str(file)!r}])
print(code, [name for name in {NOT_NEEDED!r} if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=400, check=True)
    assert done.stderr.splitlines()[-1].endswith("[]")
    assert "games:" in done.stdout or "verified" in done.stdout


def test_arrow_works_without_pandas() -> None:
    """It asks for it with the first scalar, and only where it is there."""
    code = """
from distributary.cli import lean
lean.own_process()
lean.be_lean()
import sys, pyarrow as pa, pyarrow.compute as pc
moments = pa.array([1_700_000_000_000_000], pa.timestamp("us", "UTC"))
assert moments.to_pylist()[0].year == 2023 and pc.equal(pa.array([1]), pa.scalar(1)).to_pylist() == [True]
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], timeout=400, check=True)


def test_a_process_that_is_not_the_commands_own_keeps_all_that_it_had() -> None:
    before = list(sys.meta_path), gc.get_threshold()
    be_lean()
    assert (list(sys.meta_path), gc.get_threshold()) == before
