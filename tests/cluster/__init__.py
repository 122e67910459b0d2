"""A cluster whose workers share no disk with the driver, by hand: `python -m tests.cluster FOLDER [CASE ...]`."""
