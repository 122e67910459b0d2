"""What goes along with a job: the package as a zip, and the libraries as an archive, as docs/cluster.md makes them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def wheel(folder: Path) -> Path:
    """The package, built once in a folder."""
    if not list(folder.glob("*.whl")):
        _run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT)])
    (built,) = folder.glob("*.whl")
    return built


def libraries(folder: Path, package: Path) -> Path:
    """An environment with this package, packed by venv-pack, made once in a folder."""
    packed = folder / "env.tar.gz"
    if not packed.exists():
        folder.mkdir(parents=True, exist_ok=True)
        # In place of an index that has the package; and what was installed and tested, not what came out since.
        (folder / "pins.txt").write_text(
            (ROOT / "constraints.txt").read_text() + f"distributary @ {package.as_uri()}\n"
        )
        _run([sys.executable, "-m", "venv", "env"], folder)
        pip = [str(folder / "env" / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "-c", "pins.txt", "distributary", "venv-pack", "setuptools"], folder)
        _run([*pip, "--no-deps", "delta-spark==4.4.0"], folder)
        _run([str(folder / "env" / "bin" / "venv-pack"), "-q", "-p", "env", "-o", "env.tar.gz"], folder)
        shutil.rmtree(folder / "env")
    return packed


def registry(driver: Path) -> None:
    """The registry of files, as `--archives` takes it."""
    shutil.make_archive(str(driver / "registry"), "zip", driver / "registry")


def _run(command: list[str], folder: Path | None = None) -> None:
    environ = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    subprocess.run(command, cwd=folder, env=environ, check=True)
