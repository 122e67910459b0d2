"""Settings that nobody here checks and nobody else complains of: a slip of the pen in one has no effect at all."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator

from distributary.config import Pipeline

_NAMES = (
    "appendOnly autoOptimize.autoCompact autoOptimize.optimizeWrite checkpointInterval checkpointPolicy "
    "checkpointRetentionDuration columnMapping.mode compatibility.symlinkFormatManifest.enabled "
    "dataSkippingNumIndexedCols dataSkippingStatsColumns deletedFileRetentionDuration enableChangeDataFeed "
    "enableDeletionVectors enableExpiredLogCleanup enableInCommitTimestamps enableRowTracking enableTypeWidening "
    "isolationLevel logRetentionDuration minReaderVersion minWriterVersion parquet.compression.codec "
    "randomizeFilePrefixes randomPrefixLength sampleRetentionDuration setTransactionRetentionDuration targetFileSize "
    "tuneFileSizesForRewrites universalFormat.enabledFormats"
)
DELTA_PROPERTIES = frozenset(f"delta.{name}" for name in _NAMES.split())
"""Of tables, by the documents of Delta Lake and Databricks."""
_GLOB = re.compile(r"[\w.-]*[\w-]\*[\w.-]*")
"""What a shell would take: `*` behind a letter, and nothing else that only a regular expression has."""
_LIKE = 0.9
"""How much alike two names are that are taken for one."""


def slips(config: Pipeline) -> Iterator[str]:
    """Lines for a person: key, what was read, what was meant, as far as one can guess."""
    pattern, options = config.source.of_kafka
    if pattern and _GLOB.fullmatch(pattern):
        meant = pattern.replace("*", ".*")
        yield f"source.topic_pattern: {pattern!r} is a regular expression; did you mean {meant!r}?"
    if options:
        from distributary.sources.kafka_settings import LISTED

        yield from _near("source.options", "setting of Kafka's clients", options, LISTED)
    properties = [name for name in config.tables.properties if name.lower().startswith("delta.")]
    yield from _near("tables.properties", "property of Delta tables", properties, DELTA_PROPERTIES)


def _near(key: str, what: str, names: Iterable[str], listed: Collection[str]) -> Iterator[str]:
    by_lower = {name.lower(): name for name in listed}
    for name in names:
        if name in listed:
            continue
        for near in difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=_LIKE):
            yield f"{key}: {name!r} is no known {what}; did you mean {by_lower[near]!r}?"
