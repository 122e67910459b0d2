"""What a pipeline is doing: `status` gathers it, `render` and `watched` show it."""

from distributary.audit.status.facts import Status, TableStatus, status
from distributary.audit.status.pages import naming, render, watched

__all__ = ["Status", "TableStatus", "naming", "render", "status", "watched"]
