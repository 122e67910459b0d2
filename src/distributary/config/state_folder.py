"""What a pipeline keeps besides its tables: every file and folder below `<state>/` has its name here, once.

docs/state.md is made from this module.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Self, overload

FileKind = Literal["Delta table", "Spark checkpoint", "folder", "JSON", "text", "lock", "state folder"]


class StateEntry:
    """A name in a folder: of the folder's class, the place itself; of a folder, the path.

    Args:
        name: of the file or folder.
        kind: how it is written; a state folder has all of this page again.
        holds: what is in it, and who writes it.
        lost: what follows where it is gone.
    """

    def __init__(self, name: str, kind: FileKind, holds: str, lost: str) -> None:
        self.name, self.kind, self.holds, self.lost = name, kind, holds, lost

    @overload
    def __get__(self, folder: None, owner: type) -> Self: ...
    @overload
    def __get__(self, folder: _Folder, owner: type) -> str: ...
    def __get__(self, folder: _Folder | None, owner: type) -> Self | str:
        return self if folder is None else f"{folder.root}/{self.name}"


@dataclass(frozen=True)
class _Folder:
    """A folder with named places. `root`: its path or URI, without a slash at its end."""

    root: str

    @classmethod
    def places(cls) -> list[StateEntry]:
        """All that may lie in it, in the order of the class."""
        values: list[Any] = list(vars(cls).values())
        return [value for value in values if isinstance(value, StateEntry)]


class StateFolder(_Folder):
    """`<state>/` of a pipeline, and of each of its parts."""

    ledger = StateEntry(
        "ledger", "Delta table",
        "what each batch wrote, set aside and parked: a row for each route, and one for the batch. Rows only add up, "
        "so a run and a replay write side by side",
        "the next run is refused (`STATE_LOST`), for the tables have rows of a stream that nobody knows",
    )  # fmt: skip
    quarantine = StateEntry(
        "quarantine", "Delta table",
        "records that could not be written: their bytes, where they came from and why. `replay` brings them in",
        "they are lost; the tables are as they were",
    )  # fmt: skip
    checkpoint = StateEntry(
        "checkpoint", "Spark checkpoint",
        "how far the stream has read its source (`offsets`, `commits`) and its id (`metadata`). The key `checkpoint` "
        "puts it elsewhere",
        "the next run is refused (`CHECKPOINT_LOST`), for it would read again what the tables have",
    )  # fmt: skip
    plans = StateEntry(
        "plans", "folder",
        "by stream, what a batch had decided before it wrote: `<batch>.json` the schema ids that the registry did not "
        "have, `<batch>.killed.json` what ended its reader, `routes.json` what its change files hold",
        "nothing between two batches; a batch that was interrupted may decide otherwise when it is done again",
    )  # fmt: skip
    sink = StateEntry(
        "sink", "folder",
        "of Spark's sink (`format(\"distributary\")`), by stream: `<batch>.json` says which files a batch commits to "
        "which tables, written before the first of them",
        "nothing between two batches; of a batch that was interrupted, files that it wrote stay as orphans, and "
        "`clean` keeps what its stream alone has made",
    )  # fmt: skip
    files = StateEntry(
        "files", "Delta table",
        "change files that were found, in the order in which they are read, and which of them a batch gets",
        "as for the ledger: all files would be found anew",
    )  # fmt: skip
    parts = StateEntry(
        "parts", "folder",
        "rows on their way to a merge by Spark, while its batch lasts",
        "nothing between two batches",
    )  # fmt: skip
    schemas = StateEntry(
        "schemas", "folder",
        "what the registry has answered, and schemas as compiled. The key `registry.cache` puts it elsewhere",
        "the registry is asked again",
    )  # fmt: skip
    topics = StateEntry(
        "topics.json", "JSON",
        "the ids of the topics that the stream reads, by which one that was deleted and made anew is seen",
        "one made anew meanwhile is not seen",
    )  # fmt: skip
    source = StateEntry(
        "source.json", "JSON",
        "where the Delta table is that `source.table` names, as the catalog has said it to the last run",
        "`status` cannot say what waits until the next batch",
    )  # fmt: skip
    format = StateEntry(
        "format.json", "JSON",
        "the number of the state's format, and the release that wrote it; a release that knows only lower numbers "
        "refuses the folder (`STATE_NEWER`)",
        "the next run writes it again",
    )  # fmt: skip
    layout = StateEntry(
        "layout.json", "JSON",
        "the layout of the pipeline's streams, where it is not `fanout`; another one is refused",
        "the layout is taken to be `fanout`, and the next run is refused (`LAYOUT_CHANGED`)",
    )  # fmt: skip
    views = StateEntry("views", "folder", "the text of each view of `layout: wide`", "the next run writes it again")
    resync = StateEntry(
        "resync", "folder",
        "where a `resync` from bronze is that was interrupted, by route",
        "that `resync` begins anew",
    )  # fmt: skip
    probe = StateEntry(
        "_distributary_probe", "folder",
        "one small object, while the first start tries whether an object can be written once here",
        "nothing",
    )  # fmt: skip
    clean = StateEntry(
        "clean.json", "JSON",
        "what `clean` has begun to remove; while it is there no run starts",
        "`clean` cannot tell any more what it had begun to remove",
    )  # fmt: skip
    streams = StateEntry(
        "streams.json", "JSON",
        "what the supervisor of several streams knows of them, for `status`",
        "`status` shows no streams until the supervisor writes it again",
    )  # fmt: skip
    restart = StateEntry(
        "restart", "folder",
        "requests to start a stream again: an empty file each, named as the stream",
        "the request is not heard",
    )  # fmt: skip
    shares = StateEntry(
        "shares", "folder",
        "a pipeline spread over clusters: which division of its routes holds, and a state folder for each share",
        "as for the ledger and the checkpoint, for every share",
    )  # fmt: skip
    by_route = StateEntry(
        "by_route", "folder",
        "of versions that had a stream for each route; `clean` removes it",
        "nothing",
    )  # fmt: skip
    hop_1 = StateEntry(
        "hop1", "folder",
        "`layout: two_hop`: what the stream from the source to bronze keeps",
        "as for the checkpoint, of this stream",
    )  # fmt: skip
    declarative = StateEntry(
        "declarative", "folder",
        "`layout: declarative`: what Spark and the runner keep",
        "the next update fills the tables anew from bronze, and what reads them",
    )  # fmt: skip
    handed_over = StateEntry(
        "handed_over", "text",
        "empty: this share goes on where the streams before it ended, so its ledger may be behind its checkpoint",
        "the share is refused before its first batch (`STATE_LOST`)",
    )  # fmt: skip
    reset = StateEntry("reset.json", "JSON", "of versions before the first release; nobody reads it", "nothing")
    run_lock = StateEntry("run.lock", "lock", "who runs the pipeline. The kernel gives it back after a kill", "nothing")
    replay_lock = StateEntry("replay.lock", "lock", "who replays", "nothing")
    supervisor_lock = StateEntry("supervisor.lock", "lock", "who supervises the pipeline's streams", "nothing")
    division_lock = StateEntry("division.lock", "lock", "who changes the division of the routes", "nothing")
    hop_1_lock = StateEntry("hop1.lock", "lock", "who runs the stream from the source to bronze", "nothing")


class SharesFolder(_Folder):
    """`<state>/shares/`."""

    current = StateEntry(
        "current.json",
        "JSON",
        "the generation of the division that holds",
        "a route could get two streams: put it back",
    )
    division_file = "division.json"
    division = StateEntry("<generation>/division.json", "JSON", "which routes each share has", "the run is refused")
    share = StateEntry("<generation>/<share>", "state folder", "all that one share keeps", "as for a pipeline")


class HopFolder(_Folder):
    """`<state>/hop1/`."""

    checkpoint = StateEntry(
        "checkpoint", "Spark checkpoint",
        "how far the source was read. The key `checkpoint` puts it elsewhere",
        "the next run is refused (`CHECKPOINT_LOST`)",
    )  # fmt: skip
    envelopes = StateEntry(
        "envelopes.json", "JSON",
        "ids of the envelopes' schemas that were met",
        "they are met again",
    )  # fmt: skip
    asked = StateEntry(
        "asked", "folder", "ids of envelopes' schemas that tasks have asked for: a file each", "they ask again"
    )
    topics = StateEntry("topics.json", "JSON", "as in the state folder itself", "as there")


class DeclarativeFolder(_Folder):
    """`<state>/declarative/`."""

    storage = StateEntry(
        "storage", "Spark checkpoint",
        "a checkpoint for each flow. The key `checkpoint` puts it elsewhere",
        "the next update fills the tables anew from bronze, and what reads them",
    )  # fmt: skip
    views = StateEntry("views.json", "JSON", "the texts of the gold views", "the next update makes them again")
    writers = StateEntry(
        "writers.json", "JSON", "the schemas that each route's rows were written by", "they are found again"
    )
    events = StateEntry("events.jsonl", "JSON", "the newest events of the updates, a line each", "nothing")
    metastore = StateEntry(
        "metastore_db", "folder",
        "the catalog (Derby), where no other metastore is named",
        "tables are entered again as they are",
    )  # fmt: skip
    metastore_log = StateEntry("derby.log", "text", "what Derby says", "nothing")
    warehouse = StateEntry("warehouse", "folder", "Spark's place for databases without one; empty", "nothing")
