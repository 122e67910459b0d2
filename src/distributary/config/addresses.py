"""Addresses in a pipeline file: folders and tables, brokers, a registry's URL. What can't be one is refused here, where
the file and the line are known, and not by a client minutes later."""

from __future__ import annotations

import os
import re
from typing import Annotated, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator

from distributary.config.quantities import REFERENCE, Text

_HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ONE_SLASH = re.compile(r"(s3[an]?|gc?s|az|abfss?|https?|hdfs):/(?!/)")
_WEB = (
    "allowed: a folder, or a bucket as in s3a://bucket/prefix; of a store like S3, its web address goes into "
    "tables.storage_options, as endpoint"
)
_OTHERS = {"gcs": "write gs://, as Google's own tools do", "http": _WEB, "https": _WEB}
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]")
_WILDCARD = re.compile(r"[*?]|\{[^{}]*,[^{}]*\}")
_SHELL = re.compile(r"\$\{?(\w+)")
_BROKER = re.compile(r"(?:[A-Z_]+://)?(?:\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]]+):(\d+)")


def _expanded_by_nobody(text: str) -> str:
    """Raises ValueError for what a shell would replace, and nobody here does."""
    if text.startswith("~"):
        raise ValueError("allowed: a path from the root, or from the working directory; ~ is not replaced")
    if "{{" in text:
        raise ValueError("a template's {{ }} is not replaced here; write ${env:NAME} as the whole value")
    if (match := _SHELL.search(text)) is not None and not REFERENCE.fullmatch(text):
        raise ValueError(f"a shell's ${match[1]} is not replaced here; write ${{env:{match[1]}}} as the whole value")
    return text


def _one_line(text: str) -> None:
    """Raises ValueError for what is seen in no print-out."""
    if text != text.strip() or not text.isprintable():
        raise ValueError("allowed: an address without spaces around it and without line breaks")


def _place(text: str) -> str:
    _expanded_by_nobody(text)
    _one_line(text)
    if _WINDOWS.match(text):
        raise ValueError("allowed: a path of Linux, as /data/lake; nothing here runs on Windows")
    if (match := _WILDCARD.search(text)) is not None and not REFERENCE.fullmatch(text):
        raise ValueError(f"allowed: one folder; {match[0]} is not expanded here")
    if (match := _ONE_SLASH.match(text)) is not None:
        raise ValueError(
            f"allowed: {match[1]}://bucket/prefix, with two slashes; this would be a folder named {match[1]}:"
        )
    scheme, separator, rest = text.partition("://")
    if separator and scheme in _OTHERS:
        raise ValueError(_OTHERS[scheme])
    if separator and scheme not in ("file", "hdfs") and not rest.strip("/"):
        raise ValueError(f"allowed: {scheme}://bucket/prefix; this names no bucket")
    if separator and " " in rest.partition("/")[0]:
        raise ValueError("allowed: a bucket's name, which has no spaces")
    return text


def _file(text: str) -> str:
    """It need not be here: a pipeline file is also checked on other machines."""
    if text.endswith("/") or os.path.isdir(text):
        raise ValueError("allowed: a file; this is a folder")
    return text


def _url(text: str) -> str:
    """One URL, or several that are tried in turn."""
    _expanded_by_nobody(text)
    if REFERENCE.fullmatch(text):
        return text
    for url in text.split(","):
        try:
            split_url = urlsplit(url.strip())
            good = (
                split_url.scheme in ("http", "https")
                and bool(split_url.hostname)
                and (split_url.port is None or split_url.port > 0)
                and not (set(url.strip()) & set(" #"))
            )
        except ValueError:
            good = False
        if not good:
            raise ValueError("allowed: an address like http://registry:8081 or https://registry.example.org")
    return text


def _brokers(text: str) -> str:
    _expanded_by_nobody(text)
    if REFERENCE.fullmatch(text):
        return text
    for broker in text.split(","):
        match = _BROKER.fullmatch(broker.strip())
        if match is None or not 0 < int(match[1]) < 65536:
            raise ValueError("allowed: host:port, several separated by commas, as in broker-1:9092,broker-2:9092")
    return text


def absolute(path: str) -> str:
    """A folder on this machine from its root: Spark, its workers and delta-rs may each have another working folder."""
    return os.path.abspath(path) if is_relative(path) else path


def is_relative(path: str) -> bool:
    """Does it name a folder of this machine, from the working folder?"""
    return not path.startswith("/") and _HAS_SCHEME.match(path) is None


Address: TypeAlias = Annotated[Text, AfterValidator(_place)]
"""An address of a store, or a path on this machine."""
Folder: TypeAlias = Annotated[Address, AfterValidator(absolute)]
"""As `Address`; a path on this machine is held from its root."""
File: TypeAlias = Annotated[Address, AfterValidator(_file)]
"""A file of this machine, or of those that read it."""
Url: TypeAlias = Annotated[Text, AfterValidator(_url)]
Brokers: TypeAlias = Annotated[Text, AfterValidator(_brokers)]
