"""Removes what a producer made and nothing else.

A subject, topic or table is only removed while it still carries the mark under which it was noted: the name alone
is not enough, since somebody else may have made a thing of that name since, or added to ours.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from distributary.errors import SchemaNotFound
from distributary.schemas.registry import Registry
from distributary_simulate.errors import KafkaDown
from distributary_simulate.games.kafka import QUIET, REQUEST_TIMEOUT_SEC, topic_id
from distributary_simulate.games.manifest import Manifest


@dataclass(frozen=True)
class Step:
    """What cleaning does (or would do) with one thing. `why` says why it is kept, or is empty.

    where: the registry, the bootstrap servers, or the folder above the table.
    """

    what: Literal["subject", "topic", "table"]
    where: str
    name: str
    action: Literal["delete", "keep", "gone"]
    why: str = ""


def clean(
    manifest: Manifest,
    registry: Registry | None = None,
    *,
    kafka: dict[str, str] | None = None,
    dry_run: bool = True,
) -> list[Step]:
    """Say what would be deleted; with `dry_run=False` delete it, for good, and take it off the list.

    registry: the registry to clean; noted subjects of other registries are kept.
    kafka: further librdkafka settings for the noted brokers, e.g. of SASL.
    Raises KafkaDown, RegistryDown, RegistryDenied; what was deleted before that is off the list.
    """
    steps: list[Step] = []
    try:
        for place, subjects in list(manifest.subjects.items()):
            steps += [_subject(manifest, registry, place, subject, dry_run) for subject in list(subjects)]
        for servers, topics in list(manifest.topics.items()):
            admin = AdminClient({"bootstrap.servers": servers, **QUIET, **(kafka or {})})
            steps += [_topic(manifest, admin, servers, topic, dry_run) for topic in list(topics)]
        steps += [_table(manifest, path, dry_run) for path in list(manifest.tables)]
    finally:
        if not dry_run:
            manifest.save()
    return steps


def _subject(manifest: Manifest, registry: Registry | None, place: str, subject: str, dry_run: bool) -> Step:
    if registry is None or registry.name != place:
        return Step("subject", place, subject, "keep", f"this run has no access to {place}")
    ours = manifest.subjects[place][subject]
    try:
        versions = [(v, registry.version(subject, v).schema.id) for v in registry.versions(subject)]
    except SchemaNotFound:
        versions = []
    foreign = [version for version, schema_id in versions if schema_id not in ours]
    if foreign:
        return Step("subject", place, subject, "keep", f"version {foreign[0]} was registered by somebody else")
    if not dry_run:
        if versions:
            registry.delete_subject(subject, permanent=True)
        del manifest.subjects[place][subject]
    return Step("subject", place, subject, "delete" if versions else "gone")


def _topic(manifest: Manifest, admin: Any, servers: str, topic: str, dry_run: bool) -> Step:
    try:
        id_now = topic_id(admin, topic)
        if id_now is not None and id_now != manifest.topics[servers][topic]:
            return Step("topic", servers, topic, "keep", "it was deleted and created anew by somebody else")
        if not dry_run:
            if id_now is not None:
                admin.delete_topics([topic], request_timeout=REQUEST_TIMEOUT_SEC)[topic].result()
            del manifest.topics[servers][topic]
    except KafkaException as error:
        raise KafkaDown(servers=servers, topic=topic, detail=error.args[0].str()) from error
    return Step("topic", servers, topic, "gone" if id_now is None else "delete")


def _table(manifest: Manifest, path: str, dry_run: bool) -> Step:
    folder, name = str(Path(path).parent), Path(path).name
    if "://" in path:
        return Step("table", folder, name, "keep", "it is in an object store; remove it with the store's own tool")
    is_there = DeltaTable.is_deltatable(path)
    if is_there and str(DeltaTable(path).metadata().id) != manifest.tables[path]:
        return Step("table", folder, name, "keep", "another table was made at this path since")
    if not dry_run:
        if is_there:
            shutil.rmtree(path)
        del manifest.tables[path]
    return Step("table", folder, name, "delete" if is_there else "gone")
