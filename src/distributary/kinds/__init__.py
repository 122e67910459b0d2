"""What a pipeline is, chosen once from its file. A `PipelineKind` says by which code each verb is done for it.

`messages`: a table per route (layouts `fanout`, `two_hop`, `wide`), also of rows that Spark's sink is given; `changes`:
a log and a merged table per source table; `declarative`: a Spark Declarative Pipeline. A verb that a kind does not have
raises BadInput, with what to do instead.

Nothing heavy is imported before a verb is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from distributary.kinds.changes import Changes
from distributary.kinds.declarative import Declarative
from distributary.kinds.kind import HandedToStream as HandedToStream
from distributary.kinds.kind import PipelineKind as PipelineKind
from distributary.kinds.kind import Rebuilt as Rebuilt
from distributary.kinds.messages import Frames, Messages, TwoHop, Wide

if TYPE_CHECKING:
    from distributary.config import Pipeline


def kind_of(config: Pipeline, file: Path) -> PipelineKind:
    """The kind of the pipeline in `file`."""
    if config.holds_changes:
        return Changes(config, file)
    if config.source.is_given:
        return Frames(config, file)
    match config.layout:
        case "declarative":
            return Declarative(config, file)
        case "two_hop":
            return TwoHop(config, file)
        case "wide":
            return Wide(config, file)
        case "fanout":
            return Messages(config, file)
