"""Spreads a pipeline's routes over several Spark applications: which goes where, on this machine, on Databricks."""
