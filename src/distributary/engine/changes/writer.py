"""A batch of change files to its end: as any batch, and what it brought back leaves the quarantine with it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from distributary.config import Pipeline
from distributary.engine.batch import BatchReport, BatchWriter
from distributary.engine.changes.micro_batch import Changes, ChangesDelivered
from distributary.engine.outcomes import Delivered, Outcome
from distributary.state.ledger import Entry, Ledger, quarantine_files
from distributary.tables.quarantine import EVENT_QUARANTINE_SCHEMA, commit_quarantine

log = logging.getLogger("distributary")


class ChangeWriter(BatchWriter):
    """Takes batches of change files."""

    def __init__(self, config: Pipeline, changes: Changes, ledger: Ledger) -> None:
        super().__init__(config, changes, ledger)
        self.changes = changes
        self._said: set[str] = set()

    def _details(self, delivered: Delivered, report: BatchReport) -> dict[str, Any]:
        assert isinstance(delivered, ChangesDelivered)
        self._say(delivered)
        file_batch = {} if self.changes.file_batch is None else {"parcel": self.changes.file_batch}
        return {**super()._details(delivered, report), "released": delivered.released, **file_batch}

    def _entry(self, stream: str, batch: int, outcome: Outcome, delivered: Delivered) -> Entry:
        """A parked merged table that this batch did not try stays parked, whatever became of the log."""
        entry = super()._entry(stream, batch, outcome, delivered)
        before = self.ledger.newest.get(outcome.route)
        was_parked = before is not None and before.state == before.merge_state == "parked"
        if outcome.state == "failed" or entry.merge_state != "waiting" or not was_parked:
            return entry
        return replace(entry, merge_state="parked", **self._untried(outcome.route))

    def _complete(self, stream: str, batch: int, details: Mapping[str, Any]) -> None:
        """The quarantine's new rows come in, those that were brought back go."""
        if files := quarantine_files(details):
            delivery = self.delivery
            commit_quarantine(
                delivery.quarantine, self.config.pipeline, files, stream, batch, delivery.store, EVENT_QUARANTINE_SCHEMA
            )
        self.changes.event_quarantine.release(details.get("released", ()))

    def _say(self, delivered: ChangesDelivered) -> None:
        """What somebody should know, once."""
        for route, outcome in delivered.outcomes.items():
            if outcome.merge is not None and outcome.merge.state == "append_only":
                self._once(
                    f"{route} has no key: its events are only appended, to {outcome.table}; there is no merged table"
                )
            split = () if outcome.events is None else outcome.events.split
            if split:
                self._once(
                    f"{route}: numbers of {', '.join(split)} are in two columns, for JSON files without a "
                    ".schema beside them have types of their own: give source.columns or source.json_numbers "
                    "(docs/datastream-types.md)"
                )
        for path, why in delivered.broken.items():
            log.warning("%s cannot be read and is set aside: %s", path, why)
        if delivered.unknown_fields:
            self._once(f"metadata that this version does not know is left out: {', '.join(delivered.unknown_fields)}")
        if delivered.beyond:
            columns = ", ".join(f"{name} ({count:,})" for name, count in sorted(delivered.beyond.items()))
            log.warning(
                "times beyond the years 1 to 9999 are null (source.out_of_range: reject keeps them): %s", columns
            )

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)
