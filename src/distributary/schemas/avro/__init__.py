"""Avro payloads: one record a message, behind Confluent's header, by the schema of its writer."""
