"""What a payload's bytes mean: the registry that has the schemas, the decoders, and what a row should be."""
