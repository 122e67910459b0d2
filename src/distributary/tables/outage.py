"""Does an error speak of the store as a whole, so of all tables, or of one table?

By its type, its error number, or the status of the store's answer. Errors of the Rust libraries (delta-rs, obstore)
come with a text only; of that the fixed beginning is read, which the library itself has written, up to the status.
Paths and names, which a producer may choose, and the body of an answer are never searched.
"""

from __future__ import annotations

import errno
import re
from typing import Final

from distributary.errors import EnvironmentFault, Outage, StoreDown
from distributary.errors.border import contained

_NUMBERS: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT),
        *(errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.EHOSTUNREACH, errno.ENETUNREACH),
    }
)
"""The device is full, read-only or broken; this process can open no more files; the network is away."""
_STATUSES: Final = frozenset({401, 408, 429, 500, 502, 503, 504})
"""Answers of a store that is away, busy, or does not know us."""
_CODES: Final = frozenset(
    {
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "RequestTimeTooSkewed"),
        *("AuthenticationFailed", "AuthorizationFailure", "AccountIsDisabled"),
    }
)
"""Of a 400 or 403: it is about who asks, not about what for. S3's and Google's, then Azure's. S3 answers 400 where a
token has ended."""

_TREE = re.compile(r"\n\s*(?:\x1b\[\d+m)?↳(?:\x1b\[\d+m)? ?")
"""How delta-rs shows what caused an error: a line each."""
_ANSWER = re.compile(
    # The chain of libraries, letters only: no name of ours is in it.
    r"(?:[A-Za-z][A-Za-z ]*(?: -> |: ))*"
    r"(?:Generic \w+ error|The operation lacked [a-z ]+ for path [^:\n]+)"
    r": (?:Error performing [a-z ]+: )?"
    # Addresses are percent-encoded: there is no blank in one.
    r"Error performing (?P<method>[A-Z]+) \S+ in \S+?(?:, after \d+ retries, max_retries: \d+, retry_timeout: \S+)? +- "
    r"(?:(?P<none>HTTP error)\b"
    r"|Server returned [a-z0-9-]+ status code: (?P<status>\d{3})\b"
    r"(?:[A-Za-z ]*: \ufeff?(?:<\?xml[^>]*>\s*)?<Error>\s*<Code>(?P<code>\w+)</Code>)?)"
)
_LOCAL = re.compile(
    r"(?:[A-Za-z][A-Za-z ]*(?: -> |: ))*Generic LocalFileSystem error: .*\(os error (?P<io>\d+)\)\s*"
    r"|Could not create local directory: .*\nError: Os \{ code: (?P<made>\d+), kind: \w+, message: \"[^\"]*\" \}\s*",
    re.DOTALL,
)
"""The operating system's number ends the text; what stands before it may be a path."""


def is_store_fault(error: BaseException) -> bool:
    """True when an error speaks of the store as a whole (full, read-only, away, locked), not of one table."""
    if isinstance(error, (Outage, ConnectionError, TimeoutError)):
        return True
    if not isinstance(error, OSError):
        return False
    if error.errno is not None:
        return error.errno in _NUMBERS
    return _says_so(_TREE.sub(": ", str(error)))


def own_fault(error: BaseException, path: str, outage: type[EnvironmentFault] = StoreDown) -> str:
    """The error in words, where it is the fault of the one table or file at `path` (`border.contained`).

    Raises `outage` where it speaks of the store as a whole, `PROCESS` as it is.
    """
    why = contained(error)
    if is_store_fault(error):
        raise outage(path=path, detail=why) from error
    return why


def may_be_store(error: BaseException) -> bool:
    """True when an error came from below the tables, so that all tables together having it is the store's fault."""
    return isinstance(error, (OSError, Outage))


def _says_so(text: str) -> bool:
    if match := _LOCAL.fullmatch(text):
        return int(match["io"] or match["made"]) in _NUMBERS
    match = _ANSWER.match(text)
    if match is None:
        return False
    if match["none"]:
        return True
    status = int(match["status"])
    if status == 400 and match["method"] == "HEAD":
        return True  # its answer has no body, so no code: a token that has ended, or another region than the bucket's
    return status in _STATUSES or (status in (400, 403) and match["code"] in _CODES)
