"""Change files to tables on object stores, the whole way: files below s3a:// and gs://, tables, state and checkpoint
there too, two runs with new files in between, and the recount. How to configure it: docs/stores.md."""

from __future__ import annotations

import urllib.error
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from distributary.audit.status import status
from distributary.changes.model import Kind
from distributary.config import load
from distributary.state.ledger import Ledger, totals
from distributary.tables.store import Store
from distributary_simulate.change_files.faults import Faults
from distributary_simulate.change_files.writer import ChangeFiles, FilesPlan
from distributary_simulate.changes.history import History, HistoryPlan
from distributary_simulate.changes.history_tables import tables_of
from tests.conftest import needed
from tests.killing import check_by_command, processes
from tests.processes import SMALL_SPARK
from tests.services import hadoop
from tests.services.gcs_writes import GcsWrites
from tests.services.stores import S3, Bucket, GoogleStorage
from tests.shop import compare_living

EVENTS = 400

pytestmark = [pytest.mark.spark, pytest.mark.services, pytest.mark.timeout(1800)]


def test_files_and_tables_on_s3a(s3: S3, lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with needed():
        conf = hadoop.s3a(s3)
    # As a user should have it: not in the file.
    monkeypatch.setenv("SHOP_SECRET", "test")
    options = {**s3.options, "aws_secret_access_key": "${env:SHOP_SECRET}"}
    flow(lake, s3.bucket(), "s3a", options, conf)


def test_files_and_tables_on_gs(google_writes: GcsWrites, lake: Path) -> None:
    with needed():
        conf = hadoop.google(google_writes.store)
    flow(lake, google_writes.store.bucket(), "gs", google_writes.options, conf)


def test_the_emulator_of_gs_takes_no_write_of_the_kind_that_delta_rs_makes(google_storage: GoogleStorage) -> None:
    """Why the test above needs a door: once this fails, it does not."""
    bucket = google_storage.bucket()
    headers = {"x-goog-if-generation-match": "0", "Content-Type": "application/octet-stream"}
    with pytest.raises(urllib.error.HTTPError) as caught:
        google_storage.request("PUT", f"/{bucket.name}/table/part", b"x", headers)
    assert caught.value.code == 400


def flow(root: Path, bucket: Bucket, scheme: str, options: Mapping[str, str], conf: Mapping[str, str]) -> None:
    """Two runs, with new files, new columns and late files in between: the tables are the source's, nothing is lost."""
    where = f"{scheme}://{bucket.name}"
    file = root / "shop.yaml"
    pipeline = {
        "pipeline": "shop",
        "source": {"type": "datastream", "path": f"{where}/landing/shop", "max_files_per_batch": 40},
        "tables": {"root": f"{where}/lake", "evolution": "overwrite", "storage_options": dict(options)},
        "quarantine": {"max_ratio": 1.0},
        "spark": {**SMALL_SPARK, "conf": {**SMALL_SPARK["conf"], **conf}},
    }
    file.write_text(yaml.safe_dump(pipeline))
    history = History(HistoryPlan(tables_of((Kind.MYSQL, Kind.POSTGRESQL), 2), seed=6, schema_changes=40))
    written = root / "written"
    faults = Faults(duplicates=0.3, late=0.3, truncated=0.1, shuffled=True)
    files = ChangeFiles(
        FilesPlan(written, seed=6, format="jsonl.gz", schema_files=True, rotate_ms=30_000, faults=faults)
    )
    sent: set[Path] = set()
    with processes(file, root / "processes.log", 2) as following:
        for number in range(2):
            for change in [*history.changes(EVENTS), *(history.finish() if number else ())]:
                files.add(change)
            files.close() if number else files.flush()
            for path in sorted({p for p in written.rglob("*") if p.is_file()} - sent):
                bucket.put(f"landing/shop/{path.relative_to(written).as_posix()}", path.read_bytes())
                sent.add(path)
            process = following()
            process.go(["run", str(file), "--once"])
            assert process.finish(300) == 0, (root / "processes.log").read_text()[-4000:]
    check_by_command(file)
    config = load(file)
    store = Store.of(config.tables)
    entries = totals(Ledger(config.state_root, "shop", store).entries())
    for route, truth in history.truth().items():
        assert entries[route].rows_written >= len(truth.rows)
        compare_living(str(entries[route].merged), store, truth)
    assert status(config).files_waiting == 0
