"""Which Sparks there is a Delta Lake for, and the jars that go with the one that is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

import pyspark

from distributary.errors import EnvironmentFault

KNOWN = ("4.0", "4.1", "4.2")
"""Each with a release of Delta Lake that is built for it."""
SCALA = "2.13"


def minor(spark: str) -> str:
    """`4.2` of `4.2.0`."""
    return ".".join(spark.split(".")[:2])


def number(text: str) -> tuple[int, ...]:
    """A version to compare: its first two numbers."""
    return tuple(int(digits) for digits in text.split(".")[:2])


def packages_of(spark: str, delta: str) -> tuple[str, str]:
    """Maven coordinates of Delta and of Spark's Kafka source. Since 4.1 Delta is built for each Spark apart."""
    built_for = f"_{minor(spark)}" if number(delta) >= (4, 1) else ""
    return (
        f"io.delta:delta-spark{built_for}_{SCALA}:{delta}",
        f"org.apache.spark:spark-sql-kafka-0-10_{SCALA}:{spark}",
    )


def delta_version() -> str:
    """That of the installed `delta-spark`; without it, one that goes with every known Spark."""
    try:
        return version("delta-spark")
    except PackageNotFoundError:
        return "4.4.0"


def check_spark(spark: str) -> None:
    """Raises EnvironmentFault for a Spark that cannot start with Delta."""
    if minor(spark) in KNOWN:
        return
    if number(spark) < number(KNOWN[0]):
        why = "it lacks what the streams and tasks here are made of"
    else:
        why = "there was no Delta Lake for it when this version was made"
    remedy = f"There is one for Spark {', '.join(KNOWN)}: pip install 'pyspark~={KNOWN[-1]}.0'"
    raise EnvironmentFault(detail=f"pyspark {spark} is installed: {why}. {remedy}")


def check_since(first: str, what: str) -> None:
    """Raises EnvironmentFault where the installed Spark is older than `first`, which brought what `what` needs."""
    if number(pyspark.__version__) < number(first):
        remedy = f"pip install 'pyspark~={KNOWN[-1]}.0'"
        raise EnvironmentFault(
            detail=f"{what} needs Spark {first}; pyspark {pyspark.__version__} is installed: {remedy}"
        )


PACKAGES = packages_of(pyspark.__version__, delta_version())
