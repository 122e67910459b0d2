"""Hadoop's own YARN and HDFS, in one process: what Hadoop and Spark test themselves with (as root)."""

from __future__ import annotations

import json
import shlex
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pyspark

from tests.processes import QUICK, SERIAL
from tests.services import Server, maven

VERSION = "3.5.0"
JARS = (
    f"org.apache.hadoop:hadoop-client-minicluster:{VERSION}",
    # What its classes ask for and it does not bring.
    "org.bouncycastle:bcprov-jdk18on:1.78.1",
    "org.bouncycastle:bcpkix-jdk18on:1.78.1",
    "org.junit.jupiter:junit-jupiter-api:5.13.4",
)


class Yarn(Server):
    """A resource manager, nodes and HDFS. `settings`: the folder that clients take for HADOOP_CONF_DIR.

    Containers are processes below this one, and do not see the folders of `hidden`.
    """

    name = "yarn"

    def __init__(self, folder: Path, nodes: int = 2, hidden: Sequence[Path] = ()) -> None:
        super().__init__(folder)
        self._nodes, self._hidden = nodes, hidden
        self._jars = maven.jars("yarn", *JARS)
        self.settings = folder / "settings"

    def command(self) -> list[str]:
        jars = Path(str(pyspark.__path__[0])) / "jars"
        # Spark's logging first: its binding is for a later slf4j than Hadoop's.
        logging = [str(jar) for name in ("slf4j-api", "log4j-") for jar in jars.glob(f"{name}*.jar")]
        classes = ":".join([*logging, f"{self._jars}/*"])
        source = Path(__file__).with_name("MiniYarn.java")
        run = [self.java, "-Xmx768m", SERIAL, QUICK, "-cp", classes, str(source), str(self.settings), str(self._nodes)]
        java = f"export JAVA_HOME={shlex.quote(str(Path(self.java).parents[1]))}"
        mounts = [f"mount -t tmpfs none {shlex.quote(str(path))}" for path in self._hidden]
        return ["unshare", "-m", "sh", "-c", " && ".join([*mounts, java, f"exec {shlex.join(run)}"])]

    def is_ready(self) -> bool:
        return (self.settings / "yarn-site.xml").exists() and self._running_nodes() == self._nodes

    def applications(self) -> list[dict[str, Any]]:
        """As the resource manager describes them."""
        apps: dict[str, list[dict[str, Any]]] = self._ask("apps")["apps"] or {}
        return apps.get("app", [])

    def processes(self, main: str) -> list[psutil.Process]:
        """JVMs of containers whose main class has this name."""
        family = psutil.Process(self.pid).children(recursive=True)
        return [one for one in family if one.name() == "java" and any(part.endswith(main) for part in one.cmdline())]

    def output(self) -> str:
        """What containers have printed."""
        files = self.folder.glob("target/test/data/yarn/*/*-logDir-*/application_*/container_*/std*")
        return "\n".join(file.read_text(errors="replace") for file in sorted(files))

    def _running_nodes(self) -> int:
        return int(self._ask("metrics")["clusterMetrics"]["activeNodes"])

    def _ask(self, what: str) -> dict[str, Any]:
        kept = ElementTree.parse(self.settings / "yarn-site.xml")
        address = next(
            str(one.findtext("value")) for one in kept.iter("property")
            if one.findtext("name") == "yarn.resourcemanager.webapp.address"
        )  # fmt: skip
        with urllib.request.urlopen(f"http://{address}/ws/v1/cluster/{what}", timeout=60) as answer:
            said: dict[str, Any] = json.load(answer)
        return said
