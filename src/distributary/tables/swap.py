"""All rows of a table replaced in one commit, if nobody has written to it since: the last step of a rebuild.

Delta protocol: a commit is the first writer of `<version>.json`; it may remove and add files, and change the metadata.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from distributary.tables.commits import OVERWRITE, commit_text, put_commit
from distributary.tables.datafile import DataFile
from distributary.tables.snapshot import Mark, Owner, Snapshot


def replace_rows(table: Snapshot, schema: pa.Schema, files: Sequence[DataFile], owner: Owner, mark: Mark) -> bool:
    """Commit `files` as the whole table, as the version after `table`'s; False when that is there already.

    Raises OSError.
    """
    metadata = {**table.metadata_action(schema), "description": owner.text()}
    removed = [(row["path"], row["size_bytes"]) for row in table.adds().to_pylist()]
    rows = sum(file.rows for file in files)
    text = commit_text(table.version, mark, files, removed, rows=rows, about=OVERWRITE, metadata=metadata)
    return put_commit(table.uri, table.store, table.version + 1, text)
