"""Every type of exception there is: of the standard library, and of each library that a route's rows go through."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
import sys
from collections.abc import Iterator
from functools import cache
from string import Formatter
from typing import Any

import pyarrow as pa

from distributary.errors import DistributaryError

STANDARD = """
    argparse ast asyncio binascii bz2 calendar cmd codecs concurrent.futures configparser contextvars copy csv ctypes
    dataclasses datetime decimal email.errors fractions ftplib getopt gzip hashlib html http.client http.cookies
    imaplib importlib.metadata inspect ipaddress json locale logging lzma mailbox multiprocessing netrc numbers os
    pickle platform plistlib poplib queue random re runpy sched select selectors shelve shutil signal smtplib socket
    sqlite3 ssl statistics string struct subprocess tarfile tempfile threading tokenize tomllib traceback unicodedata
    unittest urllib.error urllib.request uuid wave xml.dom xml.etree.ElementTree xml.parsers.expat xml.sax
    xmlrpc.client zipfile zipimport zlib zoneinfo
"""
LIBRARIES = """
    datafusion deltalake.exceptions distributary.errors fastavro.schema fastavro.validation google.protobuf.json_format
    google.protobuf.message google.protobuf.text_format msgspec numpy.exceptions obstore.exceptions ptars py4j.protocol
    pyarrow.lib pydantic pyspark.errors yaml
"""
_NATIVE = {"builtins", "pyo3_runtime", "_internal"}
"""Modules of types that are made in C and Rust (delta-rs: `_internal`)."""
_ROOTS = {*_NATIVE, *sys.stdlib_module_names, *(name.split(".")[0] for name in LIBRARIES.split())}
PROCESS = (KeyboardInterrupt, SystemExit, GeneratorExit)


@cache
def all_types() -> tuple[type[BaseException], ...]:
    """Every subclass of BaseException that the modules above bring, but those that end the process."""
    for name in (*STANDARD.split(), *LIBRARIES.split()):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    package = importlib.import_module("distributary.errors")
    for found in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{found.name}")
    panic()
    unique = dict.fromkeys(_below(BaseException))
    return tuple(t for t in unique if not issubclass(t, PROCESS) and _counts(t) and instance(t) is not None)


def _counts(kind: type[BaseException]) -> bool:
    """Those of the modules above; not the signals of our own between two functions."""
    inside = kind.__module__.startswith("distributary.") and not kind.__module__.startswith("distributary.errors")
    return kind.__module__.split(".")[0] in _ROOTS and not inside


def _below(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for found in type.__subclasses__(kind):
        yield found
        yield from _below(found)


def panic() -> BaseException:
    """A real panic of Rust: ptars reads a length of nearly 2**64."""
    from ptars import PtarsConfig
    from ptars._lib import ProtoRegistry

    from distributary_simulate.games.events import message_class

    descriptor = message_class('syntax = "proto3"; message m { string f1 = 1; }', "m").DESCRIPTOR
    handler = ProtoRegistry([descriptor.file.serialized_pb]).create_for_message("m", PtarsConfig())
    payload = b"\x0a" + b"\xff" * 9 + b"\x01"
    try:
        handler.array_to_record_batch(pa.array([payload], pa.binary()))
    except BaseException as error:
        return error
    raise AssertionError("ptars has read a length of 2**64")


def instance(kind: type[BaseException]) -> BaseException | None:
    """One of the type; one that was never initialised where its constructor wants what nobody knows."""
    if issubclass(kind, DistributaryError):
        return kind(**{name: "boom" for _, name, _, _ in Formatter().parse(kind.template) if name})
    attempts: tuple[tuple[Any, ...], ...] = (
        ("boom", 500, "boom", {}, None),
        ("boom", [ValueError("boom")]),
        ("utf-8", b"\xff", 0, 1, "boom"),
        ("boom",),
        (),
    )
    for arguments in attempts:
        with contextlib.suppress(BaseException):
            made = kind(*arguments)
            if isinstance(made, BaseException):
                return made
    with contextlib.suppress(BaseException):
        return kind.__new__(kind)
    return None
