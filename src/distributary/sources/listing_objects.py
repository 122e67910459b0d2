"""A source's folders in an object store: listed with a delimiter or from a key on, never the whole bucket.

Hadoop's FileSystem and fsspec list folders only, so that the newest hour of a table would be a call for each of its
minutes. With "start after" (S3 ListObjectsV2, GCS XML API) it is one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import obstore
from obstore.exceptions import BaseError, InvalidPathError

from distributary.sources.bodies import Options, source_store, translated
from distributary.sources.known_files import FileRef
from distributary.sources.listing import PAGE_FILES, Page, is_data, is_hidden
from distributary.tables.object_stores import first_line
from distributary.tables.store import engine_uri


class ObjectTree:
    """Folders below `gs://bucket/prefix` or `s3://bucket/prefix` (`listing.FolderTree`)."""

    parallel = 16

    def __init__(self, uri: str, options: Options) -> None:
        """Raises ConfigError."""
        self.root = engine_uri(uri).rstrip("/")
        self._store, self._prefix = source_store(self.root, options)

    def top(self) -> tuple[list[str], list[FileRef]]:
        """As `Tree.top`; a prefix without any object is an empty folder. Raises SourceDown."""
        try:
            listed = obstore.list_with_delimiter(self._store, self._prefix or None)
        except (BaseError, FileNotFoundError) as e:
            raise translated(e, self.root) from e
        names = [self._relative(prefix) for prefix in listed["common_prefixes"]]
        return [n for n in names if not is_hidden(n)], self._files(listed["objects"])

    def walk(self, folder: str, after: str) -> Iterator[Page]:
        """As `Tree.walk`. Raises SourceDown."""
        upto = after
        try:
            for page in self._list(self._key(folder), self._key(after) if after else None):
                paths = [self._relative(meta["path"]) for meta in page]
                # Not every server honours the start of a listing.
                files = [meta for meta, path in zip(page, paths, strict=True) if path > after]
                upto = max(upto, paths[-1])
                yield Page(self._files(files), upto)
        except InvalidPathError as e:
            yield from self._by_folder(folder, upto, first_line(e))
        except FileNotFoundError:
            return
        except BaseError as e:
            raise translated(e, self.root) from e

    def _list(self, prefix: str, after: str | None) -> Iterator[Sequence[obstore.ObjectMeta]]:
        return obstore.list(self._store, prefix or None, offset=after, chunk_size=PAGE_FILES)

    def _by_folder(self, folder: str, after: str, fault: str) -> Iterator[Page]:
        """As `walk`, past a key that the client has no word for (`a//b`): it spoils the listing of its own folder only,
        where folders are listed one by one."""
        try:
            listed = obstore.list_with_delimiter(self._store, self._key(folder) or None)
        except InvalidPathError:
            yield Page([], max(after, f"{folder}/"), [(folder, fault)])
            return
        except BaseError as e:
            raise translated(e, self.root) from e
        files = {ref.path[len(self.root) + 1 :]: ref for ref in self._files(listed["objects"])}
        folders = {self._relative(prefix) + "/" for prefix in listed["common_prefixes"]}
        for path in sorted(files.keys() | folders):
            if path in files and path > after:
                yield Page([files[path]], path)
            elif path in folders and (path > after or after.startswith(path)):
                yield from self.walk(path[:-1], after)

    def _key(self, path: str) -> str:
        return "/".join(step for step in (self._prefix, path) if step)

    def _relative(self, key: str) -> str:
        return key.removeprefix(self._prefix).lstrip("/")

    def _files(self, objects: Sequence[obstore.ObjectMeta]) -> list[FileRef]:
        return [ref for meta in objects if (ref := self._file(meta)) is not None]

    def _file(self, meta: obstore.ObjectMeta) -> FileRef | None:
        path = self._relative(meta["path"])
        *folders, name = path.split("/")
        if not is_data(name, meta["size"]) or any(is_hidden(folder) for folder in folders):
            return None
        modified_ms = int(meta["last_modified"].timestamp() * 1000)
        return FileRef(f"{self.root}/{path}", meta["size"], modified_ms, "/".join(folders), meta["e_tag"] or "")
