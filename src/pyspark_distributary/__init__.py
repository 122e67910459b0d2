"""Found by Spark: it looks for modules `pyspark_*` with a `DefaultSource` where a format has no other name.

df.writeStream.format("distributary").option("route", "game").option("checkpointLocation", ...).start("/data/lake")
"""

from distributary.sink.data_source import DistributarySource as DefaultSource

__all__ = ["DefaultSource"]
