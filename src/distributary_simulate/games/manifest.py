"""A list of what a producer created, so that cleaning up can never touch anything else."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from distributary_simulate.whole import write_whole


@dataclass
class Manifest:
    """What was created, and by which mark it is known again.

    subjects: registry -> subject -> schema ids registered by us.
    topics: bootstrap servers -> topic -> the id the broker gave it (a topic that was deleted and created anew by
        somebody else has the same name and another id).
    tables: path -> the Delta table's id.
    path: the manifest file that `save` writes; None keeps the list in memory.
    """

    subjects: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    topics: dict[str, dict[str, str]] = field(default_factory=dict)
    tables: dict[str, str] = field(default_factory=dict)
    path: Path | None = None

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """The list in this file, or an empty one that will be saved there."""
        path = Path(path)
        if not path.exists():
            return cls(path=path)
        content = json.loads(path.read_text(encoding="utf-8"))
        return cls(subjects=content["subjects"], topics=content["topics"], tables=content["tables"], path=path)

    def save(self) -> None:
        """Replace the file in one step."""
        if self.path is not None:
            write_whole(self.path, self.to_json())

    def to_json(self) -> str:
        content = {"subjects": self.subjects, "topics": self.topics, "tables": self.tables}
        return json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False)

    def has_subject(self, registry: str, subject: str) -> bool:
        return subject in self.subjects.get(registry, {})

    def add_subject(self, registry: str, subject: str, schema_id: int) -> None:
        """Only for a subject that was not there before, or that is on the list already."""
        ids = self.subjects.setdefault(registry, {}).setdefault(subject, [])
        if schema_id not in ids:
            ids.append(schema_id)

    def add_topic(self, servers: str, topic: str, topic_id: str) -> None:
        self.topics.setdefault(servers, {})[topic] = topic_id

    def add_table(self, path: str, table_id: str) -> None:
        self.tables[path] = table_id
