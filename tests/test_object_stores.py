"""One client per bucket and settings, whoever asks; settings as delta-rs names them."""

from __future__ import annotations

import pytest

from distributary.tables.object_stores import SettingsRefused, object_store

KEYS = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_region": "us-east-1"}


@pytest.mark.parametrize(
    ("uri", "kind", "key"),
    [
        ("s3://bucket/lake/t[1] é%20", "S3Store", "lake/t[1] é%20"),
        ("s3a://bucket", "S3Store", ""),
        ("gs://bucket/lake/", "GCSStore", "lake"),
        ("abfss://container@account.dfs.core.windows.net/lake/t", "AzureStore", "lake/t"),
        ("az://container/lake/t", "AzureStore", "lake/t"),
    ],
)
def test_an_address_is_a_bucket_and_a_key_in_it(uri: str, kind: str, key: str) -> None:
    options = {"azure_storage_account_name": "account", "azure_storage_account_key": "a2V5"} if "az" in uri else {}
    if uri.startswith("abfss"):
        options = {"account_key": "a2V5"}
    store, found = object_store(uri, options)
    assert (type(store).__name__, store.prefix, found) == (kind, None, key)


def test_tables_of_one_bucket_share_a_client_and_its_connections() -> None:
    assert object_store("s3://bucket/a", KEYS)[0] is object_store("s3a://bucket/b", KEYS)[0]
    assert object_store("s3://bucket/a", KEYS)[0] is not object_store("s3://bucket/a", KEYS | {"aws_region": "x"})[0]


def test_settings_of_the_store_and_of_its_http_client_are_told_apart_whatever_their_case() -> None:
    options = {**KEYS, "AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "TRUE", "timeout": "3s"}
    store, _ = object_store("s3://bucket/a", options)
    config, client = dict(store.config or {}), dict(store.client_options or {})
    assert config["endpoint"] == "http://127.0.0.1:1"
    assert client == {"allow_http": "true", "timeout": "3s"}


def test_settings_that_only_delta_rs_knows_are_passed_over() -> None:
    more = {"aws_s3_allow_unsafe_rename": "true", "max_retries": "3", "dynamo_lock_table": "t", "not_a_setting": "x"}
    assert object_store("s3://bucket/a", KEYS | more)[1] == "a"


def test_a_setting_without_sense_is_said_in_one_line() -> None:
    with pytest.raises(SettingsRefused) as caught:
        object_store("gs://bucket/a", {"google_service_account_key": "no JSON"})
    assert "\n" not in str(caught.value)
