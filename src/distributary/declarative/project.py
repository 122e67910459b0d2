"""The project of a declarative pipeline on disk: a spec, definitions of a few lines, settings.

The stock command runs it (`spark-pipelines run`), and so does Lakeflow, where the package is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from distributary.config import Pipeline
from distributary.declarative.datasets import Datasets, storage
from distributary.declarative.libraries import Library, find_libraries
from distributary.declarative.lint import own_files
from distributary.declarative.server import server_conf
from distributary.errors import BadInput
from distributary.spark.session import EXTENSION, PACKAGES, SHIPPED_BY_SPARK, START_CONF
from distributary.tables.store import local_path

SPEC = "spark-pipeline.yml"
FILE = "pipeline.yaml"
CODE = "transformations"
DEFINITIONS = f"{CODE}/definitions.py"
CONF = "conf"

_DEFINITIONS = '''\
"""Bronze, silver per route, gold and unified gold of pipeline.yaml. Put files of your own beside this one."""

from pathlib import Path

from pyspark.sql import SparkSession

from distributary.declarative import define

spark: SparkSession  # given by the pipeline

define(Path(__file__).resolve().parent.parent / "pipeline.yaml", spark)
'''

_README = """\
# Pipeline {name}

Written by `distributary pipeline init`. `pipeline.yaml` says what the pipeline does; docs/declarative.md of
distributary says how.

With Spark's own command, in this folder (one run at a time: the metastore in `{metastore}` has room for one):

    SPARK_CONF_DIR=$PWD/conf PYSPARK_PYTHON=$(which python) spark-pipelines --remote "local[2]" run

With distributary's runner, which keeps Spark warm, goes on, and says how many rows went where:

    distributary pipeline run pipeline.yaml --every 30s
"""


def sources(file: Path, config: Pipeline) -> dict[str, bytes]:
    """What the pipeline is made of, by path in a project: its file, the definitions, and the user's own files.

    Raises BadInput (a path in the pipeline file is relative, a file lies elsewhere), ConfigError, LintFailed.
    """
    if relative := sorted(_relative(config)):
        raise BadInput(
            detail=f"{file}: {', '.join(relative)}: a relative path means another place in a project; make it absolute"
        )
    files = {FILE: file.read_bytes(), DEFINITIONS: _DEFINITIONS.encode()}
    for library in own_files(config, file.resolve().parent):
        name = _inside(library).as_posix()
        if name in (FILE, DEFINITIONS):
            raise BadInput(detail=f"{library.path}: a file of this name is in the project already; rename yours")
        files[name] = library.path.read_bytes()
    return files


def includes(file: Path, config: Pipeline) -> list[str]:
    """Which of `sources` define datasets, as the globs that a pipeline names them by. Raises BadInput, ConfigError."""
    library_files = [_inside(library) for library in find_libraries(config, file.resolve().parent)]
    return [f"{CODE}/**", *(path.as_posix() for path in library_files if path.parts[0] != CODE)]


def write_project(file: Path, config: Pipeline, out: Path) -> list[Path]:
    """Write the project into `out`; returns the files.

    Raises BadInput (the folder is not empty), ConfigError (a secret in the file itself), and what `sources` raises.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadInput(detail=f"{out} is not an empty folder; name a new one with --out")
    config.check_portable(str(file))
    contents = sources(file, config)
    metastore = local_path(config.state_root)
    readme = _README.format(name=config.pipeline, metastore=metastore or "your metastore")
    files = {
        SPEC: _spec(config, includes(file, config)).encode(),
        **contents,
        f"{CONF}/spark-defaults.conf": _conf(config).encode(),
        "README.md": readme.encode(),
    }
    for name, body in files.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(body)
    return [out / name for name in files]


def _inside(library: Library) -> Path:
    """Where a file of the user's is in the project: where it is beside the pipeline file."""
    if not library.path.is_relative_to(library.root):
        raise BadInput(detail=f"{library.path} is outside of {library.root}; put it beside the pipeline file")
    return library.path.relative_to(library.root)


def _spec(config: Pipeline, names: Sequence[str]) -> str:
    datasets = Datasets.of(config)
    storage_uri = storage(config)
    folder = local_path(storage_uri)
    spec = {
        "name": config.pipeline,
        "storage": storage_uri if folder is None else folder.as_uri(),
        "catalog": datasets.catalog,
        "database": datasets.database,
        "libraries": [{"glob": {"include": name}} for name in names],
    }
    return "# Fields: name, storage, catalog, database, configuration, libraries.\n" + yaml.safe_dump(
        spec, sort_keys=False
    )


def _conf(config: Pipeline) -> str:
    """Static settings: they work here only, not in the spec (CANNOT_MODIFY_STATIC_CONFIG) nor as --packages."""
    settings = {
        "spark.jars.packages": ",".join(PACKAGES),
        "spark.jars.excludes": ",".join(SHIPPED_BY_SPARK),
        "spark.sql.extensions": EXTENSION,
        "spark.databricks.delta.snapshotPartitions": "2",
        **START_CONF,
        **server_conf(config),
    }
    hidden = config.as_dict_masked()["spark"]["conf"]
    lines = (_conf_line(key, value, hidden.get(key, value)) for key, value in sorted(settings.items()))
    return "".join(f"{line}\n" for line in lines)


def _conf_line(key: str, value: str, shown: str) -> str:
    """`shown`: the value, or the reference that it came from, which Spark cannot resolve."""
    return f"{key} {value}" if shown == value else f"# {key}: not written, it is {shown}; give it to spark-pipelines"


def _relative(config: Pipeline) -> Iterator[str]:
    """Keys that name a path of this machine which is relative."""
    yield from config.relative_folders
    registry = config.registry
    paths = {
        "source.path": config.source.address,
        "registry.path": registry.path if registry is not None else None,
        "registry.cache": registry.cache if registry is not None else None,
        "envelope.proto": config.envelope.proto,
    }
    for key, path in paths.items():
        folder = local_path(path) if path is not None else None
        if folder is not None and not folder.is_absolute():
            yield key
