"""A pipeline's kind is chosen once from its file, and what a kind cannot do it says as bad input."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from distributary.config import Pipeline
from distributary.errors import BadInput
from distributary.kinds import PipelineKind, kind_of
from distributary.kinds.changes import Changes
from distributary.kinds.declarative import Declarative
from distributary.kinds.messages import Messages, TwoHop, Wide

MESSAGES = {"source": {"type": "delta", "path": "source"}, "registry": {"path": "registry"}}
FILES = {"source": {"type": "datastream", "path": "files"}}


def kind(root: Path, **keys: Any) -> PipelineKind:
    config = Pipeline.model_validate({"pipeline": "games", "tables": {"root": str(root)}, **keys})
    return kind_of(config, root / "games.yaml")


def test_each_layout_and_change_files_have_their_own_kind(tmp_path: Path) -> None:
    layouts = {"fanout": Messages, "two_hop": TwoHop, "wide": Wide, "declarative": Declarative}
    for layout, expected in layouts.items():
        assert type(kind(tmp_path, layout=layout, **MESSAGES)) is expected
    assert type(kind(tmp_path, **FILES)) is Changes


REFUSED: list[tuple[dict[str, Any], Callable[[PipelineKind], object], str]] = [
    ({"layout": "declarative"}, lambda k: k.check_runs_here(), "distributary pipeline run"),
    ({"layout": "declarative"}, lambda k: k.plan(), "distributary pipeline run"),
    ({"layout": "declarative"}, lambda k: k.resync("a"), "--full-refresh"),
    ({"layout": "declarative"}, lambda k: k.known("a"), "--full-refresh"),
    ({"layout": "fanout"}, lambda k: k.resync("a"), "two_hop"),
    ({"layout": "two_hop"}, lambda k: k.known("a"), "tables.log"),
    ({"layout": "two_hop"}, lambda k: k.refresh_views(), "only wide has"),
]


@pytest.mark.parametrize(("keys", "verb", "remedy"), REFUSED)
def test_a_verb_that_a_kind_does_not_have_is_bad_input_with_what_to_do_instead(
    tmp_path: Path, keys: dict[str, Any], verb: Callable[[PipelineKind], object], remedy: str
) -> None:
    with pytest.raises(BadInput) as caught:
        verb(kind(tmp_path, **keys, **MESSAGES))
    assert remedy in caught.value.parameters["detail"]


def test_a_pipeline_that_never_ran_is_verified_and_shown_by_every_kind(tmp_path: Path) -> None:
    for layout in ("fanout", "two_hop", "wide"):
        found = kind(tmp_path / layout, layout=layout, **MESSAGES)
        assert found.verify(deep=False).ok
        assert not found.status().tables
