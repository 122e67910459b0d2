"""Datastream change files: bytes in, events in one normal form out. No Spark, no store."""
