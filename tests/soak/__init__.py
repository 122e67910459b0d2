"""A pipeline of the command line for hours: 500 routes of a topic, new schemas and routes, faults, kills.

`python -m tests.soak --minutes 120 --events 50_000_000`. Producer, plan and judge share no code with the product:
records are laid down by hand (`records`), what the broker acknowledged is noted by who sent it (`sender`), and DuckDB
reads the tables (`judge`).
"""
