"""Spark's own way in: `df.writeStream.format("distributary")`, a table per route for the rows of any DataFrame.

    tasks: rows -> by route -> in the columns of the route's table -> files      `by_routes`
    beside the driver: what is committed, written down once -> one marked commit per table -> quarantine   `committing`

docs/sink.md says what it does.
"""
