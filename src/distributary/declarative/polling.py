"""How often Spark looks which flows of an update have ended."""

from __future__ import annotations

from pyspark.sql import SparkSession

from distributary.config import Pipeline

POLLING = "spark.sql.pipelines.execution.streamstate.pollingInterval"
LOOKED_AT = ("4.2.0",)
"""Sparks that sleep for this setting times 1,000 in milliseconds, a number of 64 bits."""
MILLIS = 104


def poll_often(spark: SparkSession, config: Pipeline) -> None:
    """Let updates of this session end soon after their last flow does; a setting of the pipeline file wins."""
    if POLLING not in config.spark.conf and spark.version in LOOKED_AT:
        spark.conf.set(POLLING, str(seconds_for(MILLIS)))


def seconds_for(millis: int) -> int:
    """The setting takes whole seconds: one, and each update waits two or three times for up to a second; none, and
    Spark looks without a pause. So: those seconds whose milliseconds overflow to `millis`, a multiple of 8.

    A Spark that reckons otherwise would sleep for good. Source: `TriggeredGraphExecution.topologicalExecution`, 4.2.0.
    """
    # 1,000 is 8 x 125, and 125 has an inverse among 61 bits.
    return millis // 8 * pow(125, -1, 1 << 61) % (1 << 61)
