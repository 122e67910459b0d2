"""Change files to log tables and merged tables: what is done with the events that `datastream` reads."""
