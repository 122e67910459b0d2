"""Demos: everything end to end on this machine, with no server."""
