"""Are the values of silver those of its records? Each good record of bronze that a silver table has read has a row
there with its values, by the official protobuf library. Gold, which is SQL over silver, is not looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.dataset as ds

from distributary.audit.judge.by_value import HELD, READ_ROWS, Payloads, PayloadSample, missing, number_of
from distributary.audit.judge.opened_records import RecordOpener, Writer
from distributary.audit.verify import TableCheck, Verification
from distributary.config import Pipeline
from distributary.declarative.bronze_counts import Bronze
from distributary.declarative.datasets import Datasets
from distributary.declarative.flows import Flows
from distributary.engine.messages.task_spec import ORIGIN
from distributary.errors.border import contained
from distributary.names import shown
from distributary.tables.files import TableFiles
from distributary.tables.store import Store
from distributary.tables.table import Table

SAMPLE = 20
"""Payloads of each (route, schema id), where not all records are compared."""


def judge_silver(config: Pipeline, counted: Verification, *, deep: bool) -> Verification:
    """`counted` with what a comparison of silver with bronze tells. `deep`: of all records.

    What cannot be compared is said in `notes`, and is no problem.
    """
    if not config.tables.origin:
        text = "nothing ties rows of silver to a schema (tables.origin: false): values were not compared"
        return replace(counted, notes=(*counted.notes, text))
    judge = _Silver(config, deep)
    tables = [judge.table(table) for table in counted.tables]
    return counted.judged(tables, judge.notes)


class _Silver:
    def __init__(self, config: Pipeline, deep: bool) -> None:
        self.config, self.deep = config, deep
        self.store = Store.of(config.tables)
        self.datasets = Datasets.of(config)
        self.bronze = Bronze.of(self.datasets, self.store)
        self.flows = Flows.of(config, self.store)
        self.opener = RecordOpener(config)
        record_key = config.source.record_key
        self.of_keys = () if record_key is None else tuple(record_key.names)
        self.notes: list[str] = []
        if self.of_keys:
            self.notes.append(f"columns of the records' keys were not compared: {', '.join(self.of_keys)}")

    def table(self, table: TableCheck) -> TableCheck:
        _, select, function = self.config.tables.row_settings_of(table.route)
        if select is not None or function is not None:
            self.notes.append(
                f"{shown(table.route)}: its columns are made by settings of its own; they were not compared"
            )
            return table
        compared = absent = 0
        try:
            for payloads in self._payloads(table.route):
                rows, lost = missing(self.opener, payloads, self._pieces(str(table.table)), self.of_keys)
                compared, absent = compared + rows, absent + lost
        except BaseException as e:
            self.notes.append(f"{shown(table.route)}: its values were not compared: {contained(e)}")
            return table
        wrong = (f"{absent} of {compared + absent} records have no row with their values",) if absent else ()
        return replace(table, rows_compared=compared, problems=(*table.problems, *wrong))

    def _pieces(self, uri: str) -> Iterator[pa.Table]:
        table = Table(uri, self.store).open()
        files = None if table is None else TableFiles(table)
        for name in [] if files is None or not files.has(ORIGIN) else files.names:
            yield from files.read_whole(name) if files is not None else ()

    def _payloads(self, route: str) -> Iterator[Payloads]:
        """The good records that silver is certain to have read: a sample, or all, as many at a time as may be held."""
        rows = self._rows(route)
        if rows is None:
            return
        if not self.deep:
            sample = PayloadSample(SAMPLE)
            for count, (writer, body) in enumerate(self._records(rows, route)):
                if count == READ_ROWS:
                    break
                sample.add(writer, body)
            yield sample.payloads()
            return
        shares = 1 + rows.count_rows(filter=_good(route)) // HELD
        for share in range(shares):
            payloads: Payloads = Counter()
            for writer, body in self._records(rows, route):
                if shares == 1 or number_of(body) % shares == share:
                    payloads[writer, body] += 1
            yield payloads

    def _rows(self, route: str) -> ds.Dataset | None:
        place = self.flows.place(self.datasets.silver(route))
        version = -1 if place is None else place.certain - 1
        # Where nobody can see how far silver has read, it is to have all.
        table = self.bronze.open() if self.flows.hidden else None if version < 0 else self.bronze.open(version)
        return None if table is None else table.dataset()

    def _records(self, rows: ds.Dataset, route: str) -> Iterator[tuple[Writer, bytes]]:
        for batch in rows.to_batches(columns=["schema_id", "message", "payload"], filter=_good(route)):
            for schema_id, message, payload in zip(*(c.to_pylist() for c in batch.columns), strict=True):
                # JSON without a schema is read alike, by whatever columns it was decoded.
                steps = ["0"] if str(message).startswith("[") else str(message).split(".")
                path = tuple(map(int, steps)) if all(step.isdecimal() for step in steps) else str(message)
                yield Writer(schema_id, path), payload


def _good(route: str) -> ds.Expression:
    return (ds.field("route") == route) & ds.field("reason").is_null() & ds.field("payload").is_valid()
