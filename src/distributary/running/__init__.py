"""A pipeline as streams that run: made from its file, hop by hop, with upkeep, views and names in a catalog."""
