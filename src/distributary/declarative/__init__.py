"""`layout: declarative`: the parts of the product as a Spark Declarative Pipeline, and a runner for it.

A generated project calls `distributary.declarative.define`; docs/declarative.md says what comes of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributary.declarative.definitions import Defined, define

__all__ = ["Defined", "define"]


def __getattr__(name: str) -> Any:
    # Only when asked for: Spark's tasks and `status` import other parts of the package, without `pyspark.pipelines`.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.definitions"), name)
