"""Put on PYTHONPATH by tests/test_killed.py, so that every Python process of a run has readers that some bytes end.

What holds `sigkill` ends its process as the kernel does when memory runs out, `segfault` reads address 0, `forever` is
a loop. `once` ends the first process that reads it, and `worker` each of Spark's, as somebody from outside would. Of
messages, events are meant, and envelopes with `opening`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.abc
import importlib.util
import os
import signal
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def deadly(body: bytes) -> None:
    if b"sigkill" in body:
        os.kill(os.getpid(), signal.SIGKILL)
    if b"segfault" in body:
        ctypes.string_at(0)
    while b"forever" in body:
        pass
    if b"worker" in body and "pyspark.worker" in sys.modules:
        os.kill(os.getpid(), signal.SIGKILL)
    if b"once" in body:
        with contextlib.suppress(FileExistsError):
            open(os.environ["PLANTS_MARK"], "x").close()
            os.kill(os.getpid(), signal.SIGKILL)


def plant(module: ModuleType) -> None:
    if module.__name__ == "distributary.schemas.protobuf.protobuf":
        decode = module.MessageDecoder.decode

        def planted(self: Any, payloads: Any) -> Any:
            for payload in payloads.to_pylist():
                if self.full_name == "event" or b"opening" in payload:
                    deadly(payload)
            return decode(self, payloads)

        module.MessageDecoder.decode = planted
        return
    for name in ("read_events", "peek"):
        setattr(module, name, planted_read(getattr(module, name)))


def planted_read(read: Any) -> Any:
    def planted(body: Any, path: str, *more: Any) -> Any:
        deadly(path.encode())
        return read(body, path, *more)

    return planted


PLANTED = (
    "distributary.schemas.protobuf.protobuf",
    "distributary.changes.file_events",
)


class Planter(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in PLANTED:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def run(module: ModuleType) -> None:
            execute(module)
            plant(module)

        spec.loader.exec_module = run  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, Planter())
