"""Spark for commands that look at tables which are found by their names only."""

from __future__ import annotations

from distributary.config import Pipeline


def with_session(config: Pipeline) -> None:
    """Start Spark where the tables are the catalog's own (`tables.managed`): it opens them. Raises JavaMissing,
    EnvironmentFault."""
    if config.tables.managed:
        # All other pipelines are looked at without a JVM.
        from distributary.running.stream import session_of

        session_of(config)
