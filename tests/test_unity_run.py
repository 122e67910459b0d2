"""A pipeline whose tables and state lie where only vended credentials may write: they end in the middle of the run."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from deltalake import DeltaTable

from distributary.audit.status import status
from distributary.engine.batch import BatchReport
from distributary.kinds import kind_of
from distributary.running import stream
from distributary.tables.store import Store, filesystem
from distributary_simulate.games.records import Plan
from tests.declarative import World
from tests.services.stores import S3
from tests.services.vending import TOKEN, Vending

pytestmark = [pytest.mark.spark, pytest.mark.services]


@pytest.fixture
def vending(tmp_path: Path, s3: S3) -> Iterator[Vending]:
    with Vending(tmp_path / "vending", s3) as server:
        yield server


@pytest.mark.usefixtures("spark")
def test_credentials_end_in_the_middle_of_a_run_and_no_row_is_lost_and_no_secret_written(
    tmp_path: Path, vending: Vending, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, logger="distributary")
    monkeypatch.setattr(stream, "rest_sec", lambda _: 0.0)
    monkeypatch.setattr(stream, "tries", lambda *_: 3)  # as of a run that goes on
    monkeypatch.setenv("UNITY_TOKEN", TOKEN)
    world = World(tmp_path, "none", Plan(games=2, versions=1, records=20), layout="fanout")
    root = f"{vending.root}/lake"
    world.configure(
        layout="fanout",
        pipeline="games",
        source={"type": "delta", "path": world.source, "max_files_per_batch": 1},
        tables={
            "root": root,
            "unity": {"url": vending.url, "token": "${env:UNITY_TOKEN}"},
            "storage_options": dict(vending.options),
        },
        checkpoint=str(tmp_path / "checkpoint"),
    )
    for _ in range(3):
        world.send(1)

    def progress(report: BatchReport) -> None:
        if report.batch == 0:
            vending.tell("expire")

    report = stream.run(world.config, once=True, progress=progress)
    assert (report.batches, report.rows_written, report.parked) == (3, len(world.sent), ())

    kind = kind_of(world.config, world.file)
    verification = kind.verify(deep=True)
    assert verification.ok, verification.problems
    assert status(world.config).rows == len(world.sent)

    given = vending.given()
    assert {one["place"] for one in given} == {root}
    assert len([one for one in given if one["used"]]) >= 2
    secrets = {one[name] for one in given for name in ("secret", "token")} | {TOKEN}
    files = [p for p in tmp_path.rglob("*") if p.is_file() and "vending" not in p.parts]
    assert any("checkpoint" in file.parts for file in files)
    texts = [file.read_bytes() for file in files]
    written = b"\n".join([*texts, *_objects(vending, root), caplog.text.encode(), str(world.config).encode()])
    assert not [secret for secret in secrets if secret.encode() in written]


def _objects(vending: Vending, root: str) -> Iterator[bytes]:
    """All that lies in the store, read by its own keys."""
    bucket = filesystem(root, Store(vending.bucket.options))
    for info in bucket.get_file_info(pafs.FileSelector("", recursive=True)):
        if info.type == pafs.FileType.File:
            with bucket.open_input_file(info.path) as file:
                yield file.read()
    for uri in (f"{root}/_distributary/games/ledger",):
        yield str(DeltaTable(uri, storage_options=dict(vending.bucket.options)).to_pyarrow_table().to_pylist()).encode()
