"""A source's folders on this machine."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from distributary.errors import SourceDown, SourceMissing
from distributary.sources.known_files import FileRef
from distributary.sources.listing import PAGE_FILES, Page, is_data, is_hidden


class LocalTree:
    """Folders below a local path (`listing.FolderTree`). Links to folders are not followed: they may lead round in a
    circle.

    A page is also at its end after 1,000 folders without a file, so that its cost is bounded.
    """

    parallel = 1

    def __init__(self, root: Path) -> None:
        self.root = os.path.abspath(root).rstrip("/")

    def top(self) -> tuple[list[str], list[FileRef]]:
        """As `Tree.top`. Raises SourceMissing, SourceDown."""
        try:
            entries = list(os.scandir(self.root + "/"))
        except (FileNotFoundError, NotADirectoryError) as e:
            raise SourceMissing(source=self.root, what="folder. Check source.path.") from e
        except OSError as e:
            raise SourceDown(source=self.root, detail=str(e)) from e
        entries = [e for e in entries if _is_text(e.name)]
        names = [e.name for e in entries if e.is_dir(follow_symlinks=False) and not is_hidden(e.name)]
        files = [self._file("", e) for e in entries if not e.is_dir()]
        return names, [file for file in files if isinstance(file, FileRef)]

    def walk(self, folder: str, after: str) -> Iterator[Page]:
        """As `Tree.walk`."""
        files: list[FileRef] = []
        faults: list[tuple[str, str]] = []
        count, upto = 0, after
        for path, result in self._walk(folder, after):
            count += 1
            if isinstance(result, FileRef):
                files.append(result)
            elif result:
                faults.append((path, result))
            upto = max(upto, path)
            if count == PAGE_FILES:
                yield Page(files, upto, faults)
                files, faults, count = [], [], 0
        if count:
            yield Page(files, upto, faults)

    def _walk(self, folder: str, after: str) -> Iterator[tuple[str, FileRef | str]]:
        """Every folder and file in the order of their paths: with its reference, or what is wrong with it, or ""."""
        try:
            entries = list(os.scandir(f"{self.root}/{folder}"))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as e:
            yield folder, str(e)
            return
        # An object store sorts whole paths, so a folder stands where its name with the slash does.
        for name, entry in sorted((e.name + "/" * e.is_dir(follow_symlinks=False), e) for e in entries):
            path = f"{folder}/{name}".lstrip("/")
            if not _is_text(name):
                yield folder, f"{name!r} is not UTF-8 text"
            elif not name.endswith("/"):
                if path > after and (result := self._file(folder, entry)):
                    yield path, result
            elif not is_hidden(entry.name) and (path > after or after.startswith(path)):
                yield path[:-1], ""
                yield from self._walk(path[:-1], after)

    def _file(self, folder: str, entry: os.DirEntry[str]) -> FileRef | str:
        """Its reference; "" for what is no data or is gone; why it cannot be read."""
        try:
            status = entry.stat()
        except FileNotFoundError:
            return ""
        except OSError as e:
            return str(e)
        if stat.S_ISDIR(status.st_mode):
            return "a link to a folder is not followed"
        if not stat.S_ISREG(status.st_mode) or not is_data(entry.name, status.st_size):
            return ""
        path = f"{self.root}/{folder}/{entry.name}" if folder else f"{self.root}/{entry.name}"
        return FileRef(path, status.st_size, status.st_mtime_ns // 1_000_000, folder)


def _is_text(name: str) -> bool:
    """Names that are no UTF-8 have no place in a table's text column."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
