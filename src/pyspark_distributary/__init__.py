"""Found by Spark: it looks for modules `pyspark_*` with a `DefaultSource` where a format has no other name.

df.writeStream.format("distributary").option("route", "game").option("checkpointLocation", ...).start("/data/lake")

Spark 4.0 looks here for every format, and lacks what the sink is made of: there it finds nothing.
"""

from pyspark.sql import datasource

__all__ = []

if hasattr(datasource, "DataSourceStreamArrowWriter"):
    from distributary.sink.data_source import DistributarySource as DefaultSource

    __all__ += ["DefaultSource"]
