"""The change files that finished batches have read, as the judge reads them, and which events of them are whose."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distributary.audit.judge.change_events import Meta, of_file
from distributary.audit.judge.raw_files import RawEvent, raw_events
from distributary.audit.judge.spilled import SpilledEvents
from distributary.errors.border import contained
from distributary.sources.bodies import open_body

Numbers = npt.NDArray[np.int64]
_HELD = 2


@dataclass(frozen=True)
class KnownFile:
    """A file as the pipeline has read it last. `again`: it was another file under this name before."""

    size: int
    again: bool = False


@dataclass(frozen=True)
class JudgedFile:
    """What is in a file. `whole`: all of it can be read. `again`: an event may be of what the file was before."""

    events: Mapping[int, tuple[Meta, RawEvent]]
    whole: bool
    again: bool = False


@dataclass
class SourceFiles:
    """`known_files`: the files, by address. `gone`: those that are not there, cannot be read, or are others by now."""

    known_files: Mapping[str, KnownFile]
    options: Mapping[str, str]
    reader: Callable[[pa.Buffer, str, list[str]], Iterator[RawEvent]] = lambda body, _, faults: raw_events(body, faults)
    gone: dict[str, str] = field(default_factory=dict)
    partly: dict[str, str] = field(default_factory=dict)
    rows: dict[str, dict[str, Numbers]] = field(default_factory=dict)
    """By file and route, the numbers of the events; of files that have been opened."""
    _lock: Lock = field(default_factory=Lock)
    _held: OrderedDict[str, JudgedFile] = field(default_factory=OrderedDict)

    def open(self, path: str) -> JudgedFile | None:
        """None for a file that tells nothing of what was read: it is gone, or another one by now."""
        with self._lock:
            if path in self.gone or path not in self.known_files:
                return None
            if path in self._held:
                self._held.move_to_end(path)
                return self._held[path]
        file = self._read(path)
        with self._lock:
            if file is not None:
                self._held[path] = file
                while len(self._held) > _HELD:
                    self._held.popitem(last=False)
        return file

    def _read(self, path: str) -> JudgedFile | None:
        try:
            body = open_body(path, self.options)
        except BaseException as e:
            self.gone[path] = contained(e)
            return None
        if body.size != self.known_files[path].size:
            self.gone[path] = "it has another size than when it was read"
            return None
        events = SpilledEvents()
        faults: list[str] = []
        rows: dict[str, array[int]] = {}
        for event in self.reader(body, path, faults):
            try:
                meta = of_file(event)
            except (ValueError, TypeError, AttributeError, OverflowError) as e:
                faults.append(f"event {event.row}: {e}")
                continue
            events.add(meta, event)
            if not says_nothing(meta, event):
                rows.setdefault(meta.route, array("q")).append(event.row)
        events.done()
        if faults:
            self.partly[path] = faults[0]
        self.rows[path] = {route: np.array(numbers, np.int64) for route, numbers in rows.items()}
        return JudgedFile(events, not faults, self.known_files[path].again)


def says_nothing(meta: Meta, event: RawEvent) -> bool:
    """MongoDB: an update of a document that was gone when it was looked up. It is in no table."""
    return "collection" in event.source and meta.change_type == "UPDATE" and event.payload.get("data", 0) is None
