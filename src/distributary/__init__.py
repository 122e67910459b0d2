"""distributary: one stream in, a Delta table per route out, on Apache Spark."""

__version__ = "0.1.0"
