"""The object stores that tests run against, by the names of their fixtures."""

from __future__ import annotations

import os

import pytest

from tests.services.azure import AzureStorage
from tests.services.gcs_writes import GcsWrites
from tests.services.stores import S3, Bucket

STORES = ("s3", "google_writes", "azure_storage", *(("azurite",) if "AZURITE" in os.environ else ()))
Server = S3 | GcsWrites | AzureStorage


def bucket_of(request: pytest.FixtureRequest) -> tuple[Bucket, Server]:
    """A bucket of one's own in the store that the fixture `request` is a parameter of, and what writers talk to."""
    server: Server = request.getfixturevalue(request.param)
    return (server.store if isinstance(server, GcsWrites) else server).bucket(), server
