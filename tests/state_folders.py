"""What lies in a pipeline's state folder, against what docs/state.md says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from distributary.config import DeclarativeFolder, HopFolder, Pipeline, SharesFolder, StateFolder


def unknown_names(config: Pipeline) -> list[str]:
    """Files and folders that no page names, as paths below the state folder."""
    root = Path(config.state_root)
    return [str(path.relative_to(root)) for path in _unknown(root)]


def _unknown(root: Path) -> Iterator[Path]:
    state = StateFolder(str(root))
    yield from _others(root, StateFolder)
    yield from _others(Path(state.hop_1), HopFolder)
    yield from _others(Path(state.declarative), DeclarativeFolder)
    shares = Path(state.shares)
    yield from (path for path in _others(shares, SharesFolder) if not path.name.isdecimal())
    for generation in shares.glob("[0-9]*"):
        for path in generation.iterdir():
            yield from () if path.name == SharesFolder.division_file else _unknown(path)
    for route in _entries(Path(state.by_route)):
        yield from _unknown(route)


def _others(folder: Path, known: type[StateFolder | HopFolder | DeclarativeFolder | SharesFolder]) -> Iterator[Path]:
    names = {place.name for place in known.places()}
    return (path for path in _entries(folder) if path.name not in names)


def _entries(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())
