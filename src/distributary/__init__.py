"""distributary: one stream in, a Delta table per route out, on Apache Spark.

    import distributary as dy

    pipeline = dy.load("games.yaml")
    print(pipeline.run(once=True))
    assert pipeline.verify().ok

What stands in `__all__` is public; everything else may change. Nothing heavy is imported before a verb is called.
"""

from distributary.api import Pipeline, decode, fan_out, load
from distributary.errors import DistributaryError, Exit, Reason
from distributary.version import __version__

__all__ = ["DistributaryError", "Exit", "Pipeline", "Reason", "__version__", "decode", "fan_out", "load"]
