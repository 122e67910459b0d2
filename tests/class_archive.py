"""A class archive for the JVMs that tests start: Spark's classes are read and checked once, not at each start.

`python -m tests.class_archive` makes it: one declarative update, after which the JVM writes down the classes that it
has loaded (JEP 350). Measured: a session with two small queries takes 10 s of CPU in place of 18 to 24. A JVM whose
class path is another one, such as a broker's, starts as ever.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.processes import QUICK, QUIET_ARCHIVE, SERIAL, SMALL_SPARK, SPARK_JAVA

FILE = Path(sys.prefix) / "spark-classes.jsa"


def java_options() -> str:
    """For `JDK_JAVA_OPTIONS`, which every `java` reads."""
    archive = f" -XX:SharedArchiveFile={FILE}" if FILE.is_file() else ""
    return f"{QUICK} {SERIAL} {QUIET_ARCHIVE}{archive}"


def make(folder: Path) -> None:
    """Write the archive, under another name until it is whole."""
    from distributary.declarative import server
    from tests.declarative import World

    server.END_SEC = 300  # the JVM writes its archive while it ends
    new = FILE.with_suffix(".new")
    new.unlink(missing_ok=True)
    java = f"{SPARK_JAVA} {SERIAL} {QUIET_ARCHIVE} -XX:ArchiveClassesAtExit={new}"
    conf = {**server.catalog_conf(folder), **SMALL_SPARK["conf"], "spark.driver.extraJavaOptions": java}
    with server.Server(conf, SMALL_SPARK["master"]) as connect:
        world = World(folder, connect.remote)
        world.send(1)
        assert world.run().ok
    new.replace(FILE)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        make(Path(temporary))
