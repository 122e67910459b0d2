"""Jars with which Spark reads and writes object stores, and its settings for the stores of these tests."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.services import ServiceMissing, cached
from tests.services.stores import S3, GoogleStorage

_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>local</groupId><artifactId>fetch</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}
<exclusions>{}</exclusions></dependency>
"""
_EXCLUSION = "<exclusion><groupId>{}</groupId><artifactId>*</artifactId></exclusion>"
_SHADED = "<classifier>shaded</classifier>"

# hadoop-aws by itself brings the whole SDK in one jar of 686 MB; these parts of it are 14 MB. Spark has the rest.
_AWS = (
    ("org.apache.hadoop", "hadoop-aws", "3.5.0", "", "*"),
    ("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1", "", "*"),
    ("software.amazon.awssdk", "s3", "2.35.4", "", "io.netty org.slf4j"),
    ("software.amazon.awssdk", "s3-transfer-manager", "2.35.4", "", "io.netty org.slf4j"),
    ("software.amazon.awssdk", "sts", "2.35.4", "", "io.netty org.slf4j"),
)
_GOOGLE = (("com.google.cloud.bigdataoss", "gcs-connector", "4.0.0", _SHADED, "*"),)


def s3a(store: S3) -> dict[str, str]:
    """`spark.conf` of a pipeline on this store. Raises ServiceMissing."""
    return {
        "spark.jars": _jars("hadoop-aws", _AWS),
        "spark.hadoop.fs.s3a.endpoint": store.endpoint,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.access.key": "test",
        "spark.hadoop.fs.s3a.secret.key": "test",
    }


def google(store: GoogleStorage) -> dict[str, str]:
    """`spark.conf` of a pipeline on this store. Raises ServiceMissing."""
    return {
        "spark.jars": _jars("gcs-connector", _GOOGLE),
        "spark.hadoop.fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
        "spark.hadoop.fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
        # Hadoop 3.5's own defaults are texts like 64m, which Google's connector takes for numbers.
        "spark.hadoop.fs.gs.block.size": "67108864",
        "spark.hadoop.fs.gs.rewrite.max.chunk.size": "536870912",
        "spark.hadoop.fs.gs.outputstream.buffer.size": "8388608",
        # The emulator's: its address, nobody to log in as, and no call to move an object.
        "spark.hadoop.fs.gs.storage.root.url": store.endpoint,
        "spark.hadoop.fs.gs.project.id": "test",
        "spark.hadoop.fs.gs.auth.type": "UNAUTHENTICATED",
        "spark.hadoop.fs.gs.operation.move.enable": "false",
    }


def _jars(name: str, parts: tuple[tuple[str, str, str, str, str], ...]) -> str:
    key = "+".join(f"{artifact}-{version}" for _, artifact, version, _, _ in parts)
    folder = cached(name, key, lambda target: _fetch(name, parts, target))
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))


def _fetch(name: str, parts: tuple[tuple[str, str, str, str, str], ...], target: Path) -> None:
    if (mvn := shutil.which("mvn")) is None:
        raise ServiceMissing(name, "no mvn on the PATH to fetch it with", "Install Maven (apt: maven)")
    dependencies = "".join(
        _DEPENDENCY.format(group, artifact, version, classifier, "".join(map(_EXCLUSION.format, without.split())))
        for group, artifact, version, classifier, without in parts
    )
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "pom.xml").write_text(_POM.format(dependencies=dependencies))
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={target}"]
        done = subprocess.run(
            [mvn, "-q", "-B", *goal], cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    if done.returncode:
        errors = [line for line in done.stdout.splitlines() if "ERROR" in line] or ["mvn failed"]
        raise ServiceMissing(name, errors[0], "Check the network, or Maven's settings.xml for a mirror")
