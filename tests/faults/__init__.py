"""Neighbours that fail: brokers, registries, stores, disks and other writers do what they should not, and the tables
are held against the truth.

    python -m tests.faults --json bench/results/faults.json

What comes in, and what must come out, is `tests.chaos`'s: no part of the product is asked.
"""
