"""The project that Spark's own command and Lakeflow run."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

from distributary.config import Pipeline, load
from distributary.declarative.project import write_project
from distributary.errors import BadInput, LintFailed

KEYS: dict[str, Any] = {
    "pipeline": "games",
    "layout": "declarative",
    "source": {"type": "delta", "path": "/data/source"},
    "registry": {"path": "/data/registry"},
    "tables": {"root": "/data/lake"},
}


def write(folder: Path, **keys: Any) -> tuple[Path, Pipeline]:
    """A pipeline file."""
    file = folder / "games.yaml"
    file.write_text(yaml.safe_dump({**KEYS, **keys}), encoding="utf-8")
    return file, load(file)


def project(folder: Path, **keys: Any) -> Path:
    file, config = write(folder, **keys)
    written = write_project(file, config, folder / "project")
    assert all(path.is_file() for path in written)
    return folder / "project"


def test_a_project_is_a_spec_a_few_lines_settings_and_the_users_files(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "own.sql").write_text("CREATE VIEW mine AS SELECT 1 AS one")
    (tmp_path / "shape.py").write_text("def loud(rows):\n    return rows.select('*')\n")
    out = project(
        tmp_path,
        declarative={"libraries": ["more/**"]},
        tables={"root": "/data/lake", "function": "shape.py:loud"},
    )
    names = sorted(p.relative_to(out).as_posix() for p in out.rglob("*") if p.is_file())
    assert names == [
        "README.md", "conf/spark-defaults.conf", "more/own.sql", "pipeline.yaml", "shape.py", "spark-pipeline.yml",
        "transformations/definitions.py",
    ]  # fmt: skip
    assert load(out / "pipeline.yaml") == load(tmp_path / "games.yaml")
    definitions = (out / "transformations" / "definitions.py").read_text()
    assert len(definitions.splitlines()) < 15
    ast.parse(definitions)


def test_the_spec_has_the_fields_that_spark_takes_and_no_settings(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("")
    spec = yaml.safe_load((project(tmp_path, declarative={"libraries": ["own.py"]}) / "spark-pipeline.yml").read_text())
    # A static setting there fails each flow: CANNOT_MODIFY_STATIC_CONFIG. Unknown fields are errors.
    assert sorted(spec) == ["catalog", "database", "libraries", "name", "storage"]
    assert (spec["catalog"], spec["database"]) == ("spark_catalog", "games")
    assert spec["storage"] == "file:///data/lake/_distributary/games/declarative/storage"
    assert [lib["glob"]["include"] for lib in spec["libraries"]] == ["transformations/**", "own.py"]


def test_the_settings_keep_what_breaks_the_second_run_away(tmp_path: Path) -> None:
    text = (project(tmp_path) / "conf" / "spark-defaults.conf").read_text()
    settings = dict(line.split(" ", 1) for line in text.splitlines())
    assert settings["spark.sql.sources.default"] == "delta"
    assert settings["spark.sql.catalogImplementation"] == "hive"
    assert settings["spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"] == "false"
    assert settings["spark.hadoop.javax.jdo.option.ConnectionURL"].startswith("jdbc:derby:;databaseName=/data/lake/")
    assert "delta-spark_4.2_2.13" in settings["spark.jars.packages"]
    assert settings["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension"


def test_the_pipelines_own_settings_win(tmp_path: Path) -> None:
    out = project(tmp_path, spark={"conf": {"spark.sql.shuffle.partitions": "7"}})
    assert "spark.sql.shuffle.partitions 7\n" in (out / "conf" / "spark-defaults.conf").read_text()


def test_a_setting_from_a_reference_is_named_and_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_KEY", "canary-5d1")
    conf = {"spark.hadoop.fs.s3a.secret.key": "${env:STORE_KEY}", "spark.x": "plain"}
    out = project(tmp_path, spark={"conf": conf})
    lines = (out / "conf" / "spark-defaults.conf").read_text().splitlines()
    assert "spark.x plain" in lines
    assert any(line.startswith("# spark.hadoop.fs.s3a.secret.key: ") and "${env:STORE_KEY}" in line for line in lines)
    assert not [path for path in out.rglob("*") if path.is_file() and "canary-5d1" in path.read_text()]


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    file, config = write(tmp_path)
    (tmp_path / "project").mkdir()
    write_project(file, config, tmp_path / "project")
    with pytest.raises(BadInput):
        write_project(file, config, tmp_path / "project")
    with pytest.raises(BadInput):
        write_project(file, config, file)


@pytest.mark.parametrize(
    "keys",
    [
        {"state": "state"},
        {"tables": {"root": "lake"}},
        {"source": {"type": "delta", "path": "source"}},
        {"registry": {"path": "registry"}},
    ],
)
def test_a_relative_path_is_refused_for_it_would_mean_another_place(tmp_path: Path, keys: dict[str, Any]) -> None:
    file, config = write(tmp_path, **keys)
    with pytest.raises(BadInput, match=next(iter(keys))):
        write_project(file, config, tmp_path / "project")
    assert not (tmp_path / "project").exists()


def test_faults_in_the_users_files_are_found_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "shape.py").write_text("def loud(rows):\n    return rows.withColumn('x', 1)\n")
    file, config = write(tmp_path, tables={"root": "/data/lake", "function": "shape.py:loud"})
    with pytest.raises(LintFailed):
        write_project(file, config, tmp_path / "project")
    assert not (tmp_path / "project").exists()


def test_a_file_outside_of_the_folder_cannot_be_copied(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "own.sql").write_text("CREATE VIEW a AS SELECT 1")
    file, config = write(inside, declarative={"libraries": [str(tmp_path / "own.sql")]})
    with pytest.raises(BadInput, match="outside"):
        write_project(file, config, inside / "project")
