"""A pipeline's own books, all below its state folder: ledger, journal, lock, and the checkpoint as Spark keeps it."""
