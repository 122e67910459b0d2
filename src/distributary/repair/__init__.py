"""What mends tables: replay of the quarantine, rebuilding, reconciling, clean-up."""
