"""What a pipeline is doing: `status` gathers it, `render`, `watched` and `html` show it."""

from distributary.audit.status.facts import Status, TableStatus, status
from distributary.audit.status.pages import html, render, watched

__all__ = ["Status", "TableStatus", "html", "render", "status", "watched"]
