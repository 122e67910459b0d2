"""Avro by its specification: schemas, bounds, blocks, and records to columns."""
