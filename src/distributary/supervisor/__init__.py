"""Keeps streams running, each a process of its own: start, watch, back off, restart, park; the others unaffected."""
