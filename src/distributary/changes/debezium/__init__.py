"""Change messages of Debezium to events in normal form. Pure: no broker, no registry, no table."""
