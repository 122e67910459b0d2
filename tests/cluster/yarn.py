"""YARN, whose containers see neither the driver's folders nor the package's source."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import psutil

from tests.cluster.cases import Case
from tests.cluster.package import libraries, registry, wheel
from tests.cluster.submission import SPARK_HOME, Driver, adapted, recipe
from tests.services.yarn import Yarn

MAINS = {"executor": "YarnCoarseGrainedExecutorBackend", "driver": "ApplicationMaster"}
CONF = {
    "spark.executor.instances": "2",
    "spark.executor.memoryOverhead": "1g",
    "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",  # nodes that have Spark, as those of EMR and Dataproc
    "spark.driver.memory": "1g",
    "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
    "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
}


class ApartYarn(Yarn):
    """Python, the libraries and the package come with the job, as an archive."""

    def __init__(self, folder: Path, hidden: Sequence[Path]) -> None:
        super().__init__(folder, hidden=hidden)
        self._packed = folder.parents[1] / "packed"

    def submit(self, case: Case, log: Path) -> Driver:
        """The driver is a container."""
        return ContainedDriver(self, self._words(case, "cluster"), case.driver, log, self._environ())

    def kill_part(self, what: str) -> None:
        """An `executor`, or the container of the `driver`."""
        process = self.processes(MAINS[what])[0]
        with suppress(psutil.NoSuchProcess):
            process.kill()
            print(f"killed {what}: {process.pid}", flush=True)

    def _words(self, case: Case, mode: str, conf: Mapping[str, str] = MappingProxyType({})) -> list[str]:
        shutil.copy(libraries(self._packed, wheel(self._packed)), case.driver)
        registry(case.driver)
        options = {"--deploy-mode": mode, "--archives": "env.tar.gz#env,registry.zip#registry"}
        return adapted(recipe("YARN"), case, options, {**CONF, **conf})

    def _environ(self) -> dict[str, str]:
        return {"HADOOP_CONF_DIR": str(self.settings), "SPARK_LOCAL_IP": "127.0.0.1"}


class ApartYarnClient(ApartYarn):
    """Executors are containers, the driver is not."""

    def submit(self, case: Case, log: Path) -> Driver:
        words = self._words(case, "client", {"spark.pyspark.driver.python": sys.executable})
        return Driver(words, case.driver, log, self._environ())


class ContainedDriver(Driver):
    """A driver that `spark-submit` has handed over: how it goes on, the resource manager says."""

    def __init__(self, yarn: Yarn, words: Sequence[str], folder: Path, log: Path, environ: dict[str, str]) -> None:
        super().__init__(words, folder, log, environ)
        self._yarn = yarn

    def exit_code(self) -> int | None:
        if (code := super().exit_code()) != 0:
            return code
        (application,) = self._yarn.applications()
        # The final status alone is also that of an attempt, after which there comes another one.
        if application["state"] not in ("FINISHED", "FAILED", "KILLED"):
            return None
        return 0 if application["finalStatus"] == "SUCCEEDED" else 1

    def output(self) -> str:
        return f"{super().output()}\n{self._yarn.output()}"

    def close(self) -> None:
        super().close()
        kept = f"{self._yarn.output()}\n{json.dumps(self._yarn.applications(), indent=2)}\n{self._yarn.tail()}\n"
        self._log.with_name("containers.log").write_text(kept)
