"""A pipeline spread over several Spark applications; who is told, and who may read."""
