"""Commands and pipeline files that stand in the pages are those of the product as it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from distributary.config import Pipeline, load
from tests.test_deploy import accepted

ROOT = Path(__file__).resolve().parent.parent
KAFKA = {"type": "kafka", "bootstrap_servers": "broker:9092", "topic": "events"}
PAGES = [
    page
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    if page.name not in ("cli.md", "CHANGELOG.md")  # made from the command line; of all releases
]


def commands(text: str) -> Iterator[str]:
    """As they would be typed: in blocks of code, and within a sentence where more than a verb is said."""
    for block in re.findall(r"```(?:\w*)\n(.*?)```", text, re.S):
        for line in block.splitlines():
            command = re.sub(r"\s+#\s.*", "", line.strip().removeprefix("$ "))
            if command.startswith("distributary "):
                yield command
    for command in re.findall(r"`(distributary [^`\n]+)`", text):
        if len(command.split()) > 2:
            yield command


def pipelines(text: str) -> Iterator[str]:
    """Blocks of YAML that are whole pipeline files."""
    for block in re.findall(r"```yaml\n(.*?)```", text, re.S):
        found = yaml.safe_load(block)
        if isinstance(found, dict) and {"pipeline", "source", "tables"} <= found.keys():
            yield block


def parts(text: str) -> Iterator[str]:
    """Blocks of YAML that are some keys of a pipeline file, made whole by the plainest of the others."""
    for block in re.findall(r"```yaml\n(.*?)```", text, re.S):
        found = yaml.safe_load(block)
        if not isinstance(found, dict) or not found.keys() <= Pipeline.model_fields.keys():
            continue
        source = {**KAFKA, **found.get("source", {})} if "type" not in found.get("source", {}) else found["source"]
        plain = source["type"] not in ("kafka", "delta") or found.get("envelope") in (
            "debezium",
            "maxwell",
            "openlogreplicator",
        )
        registry = {} if plain else {"registry": {"url": "http://registry:8081"}}
        given = found.get("tables", {})
        # Where managed tables lie, their catalog says.
        tables = given if given.get("managed") else {"root": "/data/lake", **given}
        yield yaml.safe_dump({"pipeline": "games", **registry, **found, "source": source, "tables": tables})


def test_each_command_of_the_pages_is_one_that_the_command_line_takes() -> None:
    tried = 0
    for page in PAGES:
        for command in commands(page.read_text(encoding="utf-8")):
            arguments = shlex.split(re.sub(r"\s+[|>].*", "", command))[1:]
            try:
                accepted(arguments)
            except Exception as error:
                pytest.fail(f"{page.name}: {command}: {error}")
            tried += 1
    assert tried > 100


@pytest.mark.parametrize(("blocks_of", "least"), [(pipelines, 14), (parts, 35)], ids=["whole files", "keys alone"])
def test_each_pipeline_file_of_the_pages_is_valid_and_so_are_keys_that_stand_alone(
    tmp_path: Path, blocks_of: Callable[[str], Iterator[str]], least: int
) -> None:
    tried = 0
    for page in PAGES:
        for number, block in enumerate(blocks_of(page.read_text(encoding="utf-8"))):
            file = tmp_path / f"{page.stem}-{number}.yaml"
            file.write_text(block, encoding="utf-8")
            load(file, secrets=False)
            tried += 1
    assert tried >= least


def test_each_target_of_make_in_the_pages_is_there() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    for page in PAGES:
        named = set(re.findall(r"(?:`|```\n)make ([a-z]+)", page.read_text(encoding="utf-8")))
        assert named <= targets, page.name


@pytest.mark.spark
def test_spark_can_read_each_query_of_the_pages(spark: Any) -> None:
    parser = spark._jsparkSession.sessionState().sqlParser()
    queries = [
        (page.name, query)
        for page in PAGES
        for block in re.findall(r"^```sql\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        for query in block.split(";")
        if query.strip()
    ]
    assert len(queries) > 6
    for page, query in queries:
        assert parser.parsePlan(query) is not None, (page, query)
