"""Small disks that fill, and are then freed; folders that become read-only. They are mounted: this wants root."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.faults.pipelines import Piped, Place, Seen, concluded, expect


class Disk:
    """A tmpfs of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self, left: int = 0) -> None:
        """Leave so many bytes, about."""
        found = os.statvfs(self.folder)
        with self._filler.open("wb") as file:
            file.write(bytes(max(0, found.f_bavail * found.f_frsize - left)))

    def free(self) -> None:
        self._filler.unlink()

    def read_only(self, on: bool) -> None:
        mounted("-o", f"remount,{'ro' if on else 'rw'}", str(self.folder))


def mounted(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@contextmanager
def disk(folder: Path, megabytes: int = 24) -> Iterator[Disk]:
    folder.mkdir(parents=True)
    mounted("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)


def _filled(place: Place, key: str, left: int, *conditions: str) -> Seen:
    """The disk of `key` fills between two runs, and within one that goes on."""
    seen = Seen()
    with disk(place.folder / "disk") as small:
        value = {"root": str(small.folder / "lake")} if key == "tables" else str(small.folder / key)
        piped = Piped(place.folder, {key: value})
        piped.feed()
        expect(seen, piped.run(), "")
        piped.feed()
        small.fill(left)
        expect(seen, piped.run(), *conditions, names=(str(small.folder),))
        small.free()
        with piped.going() as run:
            run.wait_right()
            small.fill(left)
            piped.feed()
            run.wait(lambda: bool(run.errors), 12)
            small.free()
            if run.errors:
                seen.went_on = "by the next run"
                expect(seen, _told(run.errors[0]), *conditions)
            else:
                seen.went_on = "by itself" if run.wait_right() else ""
        if not seen.went_on:
            seen.wrong.append("it did not go on by itself")
        return concluded(piped, seen)


def _told(error: BaseException):  # type: ignore[no-untyped-def]
    from tests.faults.pipelines import Attempt

    return Attempt(getattr(error, "condition", type(error).__name__), str(error), 0.0)


def tables_full(place: Place) -> Seen:
    return _filled(place, "tables", 0, "STORE_DOWN")


def tables_almost_full(place: Place) -> Seen:
    """Some tables can be written, others cannot."""
    return _filled(place, "tables", 20_000, "STORE_DOWN")


def state_full(place: Place) -> Seen:
    return _filled(place, "state", 0, "STORE_DOWN")


def state_almost_full(place: Place) -> Seen:
    return _filled(place, "state", 12_000, "STORE_DOWN")


def checkpoint_full(place: Place) -> Seen:
    return _filled(place, "checkpoint", 0, "STORE_DOWN")


def spool_full(place: Place) -> Seen:
    """The folder of temporary files, where chunks of a batch lie."""
    seen = Seen()
    with disk(place.folder / "disk") as small:
        before, tempfile.tempdir = tempfile.tempdir, str(small.folder)
        try:
            piped = Piped(place.folder)
            piped.feed()
            expect(seen, piped.run(), "")
            piped.feed()
            small.fill()
            expect(seen, piped.run(), "STORE_DOWN", names=(str(small.folder),))
            small.free()
            seen.went_on = "by the next run"
            return concluded(piped, seen)
        finally:
            tempfile.tempdir = before


def _read_only(place: Place, key: str) -> Seen:
    seen = Seen()
    with disk(place.folder / "disk") as small:
        value = {"root": str(small.folder / "lake")} if key == "tables" else str(small.folder / key)
        piped = Piped(place.folder, {key: value})
        piped.feed()
        expect(seen, piped.run(), "")
        piped.feed()
        small.read_only(True)
        try:
            expect(seen, piped.run(), "STORE_DOWN", "STORE_UNREADABLE", names=(str(small.folder),))
        finally:
            small.read_only(False)
        seen.went_on = "by the next run"
        return concluded(piped, seen)


def tables_read_only(place: Place) -> Seen:
    return _read_only(place, "tables")


def state_read_only(place: Place) -> Seen:
    return _read_only(place, "state")


def checkpoint_read_only(place: Place) -> Seen:
    return _read_only(place, "checkpoint")


SCENARIOS = {
    "disk of tables full": tables_full,
    "disk of tables almost full": tables_almost_full,
    "disk of state full": state_full,
    "disk of state almost full": state_almost_full,
    "disk of checkpoint full": checkpoint_full,
    "disk of spool full": spool_full,
    "tables read-only": tables_read_only,
    "state read-only": state_read_only,
    "checkpoint read-only": checkpoint_read_only,
}
