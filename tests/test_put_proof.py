"""Before its first batch a pipeline tries whether its places can put once, and only then."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from distributary.config import Pipeline, StateFolder
from distributary.errors import StoreDown, StoreUnfit
from distributary.state.cleaning import at_work
from distributary.state.state_format import prove_new
from distributary.tables import put_proof
from distributary.tables.put_once import put_once
from distributary.tables.put_proof import PROBES, prove_puts_once
from distributary.tables.store import Store
from tests.lake import Lake

PLAIN = Store()


def start(config: Pipeline, store: Store = PLAIN) -> None:
    with at_work(config, store):
        pass


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.suffix != ".lock" and path.is_file()}


def without_links(monkeypatch: pytest.MonkeyPatch, number: int = errno.EPERM) -> None:
    def link(source: object, target: object) -> None:
        raise OSError(number, os.strerror(number), str(source), None, str(target))

    monkeypatch.setattr(os, "link", link)


@contextmanager
def bucket(refusal: int | None) -> Iterator[Store]:
    """See `tests.forgetful_bucket`; a process of its own, for some calls of delta-rs let no other thread run."""
    command = [sys.executable, "-m", "tests.forgetful_bucket", str(refusal or "")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent) as server:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        try:
            yield Store(
                {
                    "aws_endpoint_url": url,
                    "aws_allow_http": "true",
                    "aws_access_key_id": "id",
                    "aws_secret_access_key": "secret",
                    "aws_region": "us-east-1",
                }
            )
            assert urllib.request.urlopen(f"{url}/").read() == b"[]"
        finally:
            server.terminate()


def test_the_first_start_tries_the_place_of_state_and_tables_and_leaves_nothing(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def proves(uri: str, store: Store) -> None:
        tried.append(uri)
        prove_puts_once(uri, store)

    monkeypatch.setattr("distributary.state.state_format.prove_puts_once", proves)
    config = Lake(lake).config
    start(config)
    assert tried == [config.state_root] and names(lake) == {"format.json"} and not [*lake.rglob(PROBES)]
    start(config)
    apart = config.model_copy(update={"state": str(lake.parent / "state")})
    start(apart)
    assert tried[1:] == [apart.state_root, apart.tables.root] and not [*lake.rglob(PROBES)]


def test_a_pipeline_that_has_a_ledger_from_before_is_not_tried(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Lake(lake)
    made.batch(0, {"chess": {3: 2}})
    without_links(monkeypatch)
    (Path(made.config.state_root) / StateFolder.format.name).unlink(missing_ok=True)
    start(made.config)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK])
def test_a_mount_without_hard_links_refuses_the_run_with_its_place_and_what_to_do(
    lake: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    without_links(monkeypatch, number)
    config = Lake(lake).config
    for _ in range(2):
        with pytest.raises(StoreUnfit) as caught:
            start(config)
        assert caught.value.parameters["path"] == config.state_root
        assert "hard link" in caught.value.parameters["detail"] and os.strerror(number) in str(caught.value)
        assert "s3a://" in caught.value.parameters["remedy"]
        assert names(lake) == set() and not [*lake.rglob(PROBES)]


def test_a_full_disk_and_missing_rights_are_an_outage_as_ever(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_links(monkeypatch, errno.ENOSPC)
    with pytest.raises(StoreDown):
        start(Lake(lake).config)


@pytest.mark.parametrize(("refusal", "said"), [(None, "written twice"), (501, "refused")])
def test_a_store_without_conditional_puts_refuses_the_run(refusal: int | None, said: str) -> None:
    with bucket(refusal) as store, pytest.raises(StoreUnfit) as caught:
        prove_new("s3://lake/state", ["s3://lake/tables"], store)
    assert caught.value.parameters["path"] == "s3://lake/state" and said in caught.value.parameters["detail"]
    assert "conditional puts" in caught.value.parameters["remedy"]


def test_a_store_that_is_said_to_have_none_is_left_to_what_takes_their_place() -> None:
    with bucket(None) as store:
        locked = Store({**store.options, "aws_s3_locking_provider": "dynamodb"})
        prove_new("s3://lake/state", ["s3://lake/tables"], locked)


def test_what_a_killed_start_left_is_taken_by_the_next(tmp_path: Path) -> None:
    put_once(str(tmp_path), PLAIN, PROBES, put_proof._NAME, b"probe")
    (tmp_path / PROBES / f".{'0' * 32}.tmp").write_bytes(b"half")
    prove_puts_once(str(tmp_path), PLAIN)
    assert not [*tmp_path.iterdir()]


def test_files_of_others_stay_where_they_are(tmp_path: Path) -> None:
    (tmp_path / PROBES).mkdir()
    (tmp_path / PROBES / "letter").write_text("mine")
    prove_puts_once(str(tmp_path), PLAIN)
    assert names(tmp_path) == {"letter"}


def test_starts_at_the_same_moment_do_not_refuse_each_other(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def prove() -> None:
        try:
            for _ in range(10):
                prove_puts_once(str(tmp_path), PLAIN)
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=prove) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [] and not [*tmp_path.iterdir()]


def test_the_condition_is_that_of_the_environment() -> None:
    error: Any = StoreUnfit(path="/mnt/x", detail="d", remedy="r")
    assert (error.condition, error.exit_code, error.retryable) == ("STORE_UNFIT", 3, False)
    assert json.dumps(error.parameters)
