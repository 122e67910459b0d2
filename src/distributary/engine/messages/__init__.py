"""The fan-out of one micro-batch: source rows to tables in two Spark jobs. Read `micro_batch` first."""
