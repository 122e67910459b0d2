"""Benchmarks: `python -m bench [name ...]` from the repository's root. docs/benchmarks.md says what each measures."""
