"""The table between the two hops: every record of the source with its bytes, partitioned by route."""
