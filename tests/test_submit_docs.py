"""The commands and settings of Spark in the documentation are those of the Spark that is installed.

No cluster is asked: what Spark knows is what the classes of its jars spell out.
"""

from __future__ import annotations

import re
import shlex
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyspark
import pytest

from distributary.spark.session import EXTENSION, RUNTIME_CONF, START_CONF
from tests.test_deploy import accepted

DOCS = Path(__file__).parent.parent / "docs"
JARS = Path(str(pyspark.__path__[0])) / "jars"
PARTS = ("launcher", "core", "common-utils", "sql-api", "catalyst", "sql", "yarn", "kubernetes")
SETTINGS = re.compile(r"(?i)conf|optionparser|package\$|constants|yarn/Client")
"""Classes that name settings."""
# What follows is the user's: a variable, a catalog, a secret.
FAMILIES = (
    "spark.yarn.appMasterEnv.",
    "spark.executorEnv.",
    "spark.kubernetes.driver.secretKeyRef.",
    "spark.kubernetes.executor.secretKeyRef.",
    "spark.sql.catalog.",
)
HADOOP, DELTA, OURS = "spark.hadoop.", "spark.databricks.delta.", ("spark.conf", "spark.master")
CONNECTORS = ("fs.gs.", "fs.AbstractFileSystem.gs.", "fs.azure.account.key.", "fs.s3.impl", "fs.s3a.endpoint.region")
"""Settings of what Spark's distribution has no jar of."""


@cache
def spelled_out() -> str:
    """All texts of these classes, one after the other."""
    found = []
    for jar in (jar for part in PARTS for jar in JARS.glob(f"spark-{part}_*.jar")):
        with zipfile.ZipFile(jar) as classes:
            names = [name for name in classes.namelist() if name.endswith(".class") and SETTINGS.search(name)]
            found += [classes.read(name).decode("latin-1") for name in names]
    return "\n".join(found)


@cache
def hadoops_defaults() -> str:
    (jar,) = JARS.glob("hadoop-client-api-*.jar")
    with zipfile.ZipFile(jar) as classes:
        return classes.read("core-default.xml").decode()


def is_known(key: str) -> bool:
    if key.startswith(HADOOP):
        own = key.removeprefix(HADOOP)
        return own.startswith(CONNECTORS) or f"<name>{own}</name>" in hadoops_defaults()
    family = next((family for family in FAMILIES if key.startswith(family)), None)
    prefix, _, last = key.rpartition(".")
    in_two_parts = prefix in spelled_out() and f"\x01.{last}" in spelled_out()  # how Scala puts a prefix before a name
    return key.startswith(DELTA) or (family or key) in spelled_out() or in_two_parts


def settings() -> Iterator[tuple[str, str]]:
    for page in sorted(DOCS.glob("*.md")):
        for key in re.findall(r"(?<![\w.])(spark\.[A-Za-z]\w*(?:\.[\w-]+)*)(?=[=:])", page.read_text()):
            if key not in OURS:
                yield page.name, key


def commands() -> Iterator[tuple[str, list[str]]]:
    """Each command of spark-submit, as a shell takes it apart."""
    for page in sorted(DOCS.glob("*.md")):
        for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if "spark-submit " in line:
                    yield page.name, shlex.split(line.partition("spark-submit ")[2])


def job(words: list[str]) -> int:
    """Where the program stands."""
    return next(place for place, word in enumerate(words) if word.endswith("job.py"))


def test_every_setting_of_spark_in_the_documentation_is_one_of_sparks() -> None:
    found = set(settings())
    assert len(found) > 20
    assert [place for place in sorted(found) if not is_known(place[1])] == []


def test_a_misspelt_setting_would_be_found() -> None:
    for key in ("spark.executor.memmory", "spark.yarn.appMasterEnvs.X", "spark.hadoop.fs.s3a.endpont"):
        assert not is_known(key)


def test_every_option_of_a_documented_spark_submit_is_one_of_spark_submits() -> None:
    found = list(commands())
    assert len(found) >= 4
    for page, words in found:
        for word in words[: job(words)]:
            assert not word.startswith("--") or word in spelled_out(), (page, word)


@pytest.mark.parametrize(("page", "words"), list(commands()))
def test_what_a_documented_job_is_told_the_command_line_takes(page: str, words: list[str]) -> None:
    assert accepted(words[job(words) + 1 :]) == "run"


def test_a_documented_session_has_the_settings_that_a_run_gives_its_own() -> None:
    """But for the interface of Spark, which is the operator's."""
    page = (DOCS / "cluster.md").read_text()
    (given,) = re.findall(r"^DISTRIBUTARY=\((.*?)^\)", page, re.MULTILINE | re.DOTALL)
    pairs = [word.split("=", 1) for word in shlex.split(given) if word != "--conf"]
    ours = {**START_CONF, "spark.sql.extensions": EXTENSION}
    assert dict(pairs) == {k: v for k, v in ours.items() if not k.startswith("spark.ui.") and k not in RUNTIME_CONF}


def test_the_user_of_a_documented_image_has_a_name() -> None:
    """Without one Hadoop's login fails, and with it the driver."""
    found = 0
    for page in sorted(DOCS.glob("*.md")):
        for block in re.findall(r"^```\w*\n(FROM .*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            (user,) = re.findall(r"^USER (\d+)$", block, re.MULTILINE)
            assert re.search(rf"^RUN useradd .*--uid {user} .*\w$", block, re.MULTILINE), page.name
            found += 1
    assert found
