"""Found by Spark: it looks for modules `pyspark_*` with a `DefaultSource` where a format has no other name.

df.writeStream.format("distributary").option("route", "game").option("checkpointLocation", ...).start("/data/lake")

Spark 4.0 looks here for every format, and lacks what the sink is made of: there it finds nothing.
"""


def __getattr__(name: str) -> object:
    """`DefaultSource` comes once it is asked for: each worker of Spark imports this package for `worker` alone."""
    if name == "DefaultSource":
        from pyspark.sql import datasource

        if hasattr(datasource, "DataSourceStreamArrowWriter"):
            from distributary.sink.data_source import DistributarySource

            return DistributarySource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
