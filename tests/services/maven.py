"""Jars and archives of services, fetched once per user by Maven into the cache."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.services import ServiceMissing, cached

_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>fetch</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


def jars(service: str, *coordinates: str) -> Path:
    """A folder with the jars of `group:artifact:version` coordinates and of all they need at run time.

    Raises:
        ServiceMissing: there is no mvn, or it could not fetch them.
    """

    def fetch(folder: Path) -> None:
        dependencies = "".join(_DEPENDENCY.format(*one.split(":")) for one in coordinates)
        with tempfile.TemporaryDirectory() as work:
            (Path(work) / "pom.xml").write_text(_POM.format(dependencies=dependencies))
            goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
            _mvn(service, goal, Path(work))

    return cached(service, "+".join(coordinates), fetch)


def archive(service: str, coordinate: str, *, only: Sequence[str] = ("",), keep: bool = True) -> Path:
    """The unpacked folder of one `group:artifact:version:tar.gz:classifier`. Raises as `jars` does.

    `only`: what stays of it, files whose path has one of these in it. `keep`: leave the archive in Maven's own cache.
    """

    def fetch(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder.parent) as work:
            goal = ["dependency:copy", f"-Dartifact={coordinate}", f"-DoutputDirectory={work}"]
            _mvn(service, goal if keep else [*goal, f"-Dmaven.repo.local={work}/repository"], Path(work))
            (packed,) = Path(work).glob("*.tar.gz")
            shutil.unpack_archive(packed, folder, filter="data")
        # Afterwards: a file that stays may be a link to one that goes. Innermost first, so that folders are empty.
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_dir():
                with suppress(OSError):  # it holds what stays
                    path.rmdir()
            elif not any(part in path.as_posix() for part in only):
                path.unlink()

    return cached(service, coordinate, fetch)


def _mvn(service: str, goal: Sequence[str], work: Path) -> None:
    if (mvn := shutil.which("mvn")) is None:
        raise ServiceMissing(service, "no mvn on the PATH to fetch it with", "Install Maven (apt: maven)")
    done = subprocess.run(
        [mvn, "-q", "-B", *goal], cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if "ERROR" in line] or ["mvn failed"]
        raise ServiceMissing(service, errors[0], "Check the network, or Maven's settings.xml for a mirror")
