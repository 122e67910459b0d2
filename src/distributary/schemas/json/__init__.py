"""JSON payloads: one object a record, by the JSON Schema of its writer, or by columns that the pipeline file says."""
