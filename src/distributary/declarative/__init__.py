"""`layout: declarative`: the parts of the product as a Spark Declarative Pipeline, and a runner for it.

A generated project calls `distributary.declarative.define`; docs/declarative.md says what comes of it.
"""

from distributary.declarative.definitions import Defined, define

__all__ = ["Defined", "define"]
