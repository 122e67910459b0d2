"""Producers of data to try pipelines with, and demos that play them: beside the product, which knows nothing of it."""
