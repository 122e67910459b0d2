"""One page about a pipeline, for people: live on this machine (`serve`), or as one file (`status --html`)."""

from distributary.audit.page.document import document
from distributary.audit.page.gathered import Facts, Gatherer
from distributary.audit.page.loopback import served

__all__ = ["Facts", "Gatherer", "document", "served"]
