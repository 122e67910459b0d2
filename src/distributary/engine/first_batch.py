"""A pipeline's first batch, of which nothing fits what the pipeline file says: a mistake in the file, not in the data.

Only the first one: later on such records are set aside as ever, for no producer may stop a stream that runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distributary.config import Pipeline
from distributary.errors import FirstBatchUnreadable, Reason
from distributary.schemas.looks import Looks, looks

STRUCTURAL = frozenset(
    {
        Reason.BAD_MAGIC,
        Reason.TOO_SHORT,
        Reason.BAD_INDEX,
        Reason.CORRUPT_ENVELOPE,
        Reason.NO_ROUTE,
        Reason.NO_SCHEMA_ID,
    }
)
"""What a wrong word in the pipeline file makes of every record."""
MOST = 0.95
"""The share of records that fail for it: the others are damaged in some way of their own."""


@dataclass(frozen=True)
class Example:
    """One of the records. `level`: what `value` is, the whole `envelope` or its `payload`."""

    reason: str
    detail: str
    level: str
    value: bytes


def is_first(config: Pipeline, finished: Mapping[str, int]) -> bool:
    """Is the next batch the pipeline's first? `finished`: as the ledger has them. A share goes on where another stream
    ended, so it has no first batch."""
    return not finished and config.share is None


def structural_reason(rows_in: int, reasons: Mapping[str, int]) -> str | None:
    """For which the rows of a batch fail, where none of them is read; some damaged ones may be beside."""
    if not reasons or sum(reasons.values()) != rows_in:
        return None
    reason = max(reasons, key=lambda name: reasons[name])
    return reason if reason in STRUCTURAL and reasons[reason] >= MOST * rows_in else None


def unreadable(config: Pipeline, rows_in: int, example: Example) -> FirstBatchUnreadable:
    """The error that says what the records are, what the file says, and what to change."""
    look = looks(example.value)
    kind = "record" if example.level == "envelope" else "payload"
    return FirstBatchUnreadable(
        pipeline=config.pipeline,
        rows=rows_in,
        reason=example.reason,
        cause=Reason(example.reason).cause,
        detail=example.detail,
        what=kind,
        looks=look.words,
        remedy=_remedy(config, example, look),
    )


def _remedy(config: Pipeline, example: Example, look: Looks) -> str:
    """The lines of the pipeline file to change, where the record shows them."""
    topic = getattr(config.source, "topic", None)
    subject = f"{topic}-value" if isinstance(topic, str) else "<subject>"
    framed, bare = config.envelope.framing == "confluent", look.kind == "protobuf"
    if example.level == "envelope" and framed and bare:
        return f"If they are protobuf without a header: envelope: {{framing: none, subject: {subject}}}"
    if example.level == "envelope" and not framed and look.kind == "framed":
        return "They have a header: envelope: {framing: confluent}"
    header = example.reason in (Reason.BAD_MAGIC, Reason.TOO_SHORT)
    if look.kind == "json" and header:
        envelope = "envelope: none, and " if example.level == "envelope" or config.envelope.format == "none" else ""
        return f"If they are JSON without a header: {envelope}payload: {{format: json, framing: none}}"
    if example.level == "payload" and header and config.payload.framing == "confluent":
        return "If payloads have no header and the envelope gives the schema id: payload: {framing: none}"
    return Reason(example.reason).remedy
