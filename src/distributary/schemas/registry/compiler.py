"""The compiler's process as the driver sees it: started when it is needed, ended when a schema oversteps a limit.

A schema that ends the process is tried once more in a new one, so that whatever else may have ended it (an operator, a
machine out of memory) is not held against the schema. What a limit or a crash has refused is remembered, on disk too
where there is a cache: the same texts are never given to a process twice under the same limits.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import hashlib
import json
import logging
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from distributary.errors import CompilerDown, SchemaBroken
from distributary.schemas.registry.jsonfile import read_json, write_json
from distributary.scratch import Scratch

if TYPE_CHECKING:
    from distributary.config import RegistryConfig

__all__ = ["Compiler", "Limits"]

log = logging.getLogger(__name__)

DONE: Final = 0
BROKEN: Final = 1
TOO_LARGE: Final = 2
LENGTH: Final = struct.Struct(">I")
"""What goes to the process and comes back: see `compiler_child`."""
FORMAT: Final = 2
"""Raised when the same texts compile to something else: what older versions have stored is then no answer."""
PATIENCE: Final = 20
"""A process is given up after this many times its seconds of CPU: it does not get any."""
_PROGRAM: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from distributary.schemas.registry.compiler_child import main; main(sys.argv[2], int(sys.argv[3]))"
)
_CRASHES: Final = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one schema with all its imports may take to compile."""

    cpu_sec: float = 10.0
    memory: int = 2**30
    """Bytes of address space."""
    size: int = 8 * 2**20
    """Bytes of text."""

    @classmethod
    def of(cls, config: RegistryConfig) -> Limits:
        return cls(config.compile_sec, config.compile_memory, config.max_schema_size)


class Compiler:
    """Compiles texts to descriptors. Threads may share one; their schemas are compiled one after the other.

    `cache`: a folder for results, found by the digest of what was compiled. One that cannot be read or written costs
    time, never an error.
    """

    def __init__(self, limits: Limits | None = None, cache: Path | None = None) -> None:
        self.limits = limits or Limits()
        self._cache = cache
        self._refused: dict[str, str] = {}

    def compile(self, root: str, texts: Mapping[str, str], subject: str, *, strict: bool = False) -> bytes:
        """A serialised `FileDescriptorSet`, dependencies first, `root` last. `texts`: by import path.

        `strict`: whatever is wrong counts, also what no payload needs.

        Raises:
            SchemaBroken: the texts do not compile, or not within the limits.
            CompilerDown: no process could be had that answers.
        """
        size = sum(len(text) for text in texts.values())
        if size > self.limits.size:
            over = f"it has {size:,} bytes with its imports; registry.max_schema_size allows {self.limits.size:,}"
            raise SchemaBroken(what=subject, detail=over)
        key = _digest(root, texts, strict)
        if (stored := self._stored(key)) is not None:
            return stored
        if (why := self._refused.get(key) or self._read(self._refusal(key), "refused")) is not None:
            raise SchemaBroken(what=subject, detail=why)
        request = {"cpu_sec": self.limits.cpu_sec, "root": root, "files": dict(texts), "strict": strict}
        try:
            status, body = _process(self.limits).ask(json.dumps(request).encode())
        except _Refused as refused:
            self._refused[key] = str(refused)
            self._write(self._refusal(key), {"refused": str(refused)})
            raise SchemaBroken(what=subject, detail=str(refused)) from None
        if status == BROKEN:
            raise SchemaBroken(what=subject, detail=body.decode())
        self._write(self._result(key), {"descriptors": base64.b64encode(body).decode(), "sha256": _sha256(body)})
        return body

    def _stored(self, key: str) -> bytes | None:
        text = self._read(self._result(key), "descriptors")
        with contextlib.suppress(ValueError):
            result = base64.b64decode(text or "", validate=True)
            if result and _sha256(result) == self._read(self._result(key), "sha256"):
                return result
        return None

    def _result(self, key: str) -> Path | None:
        return None if self._cache is None else self._cache / f"{key}.json"

    def _refusal(self, key: str) -> Path | None:
        """Under other limits it may compile."""
        return None if self._cache is None else self._cache / f"{key}.{_sha256(repr(self.limits).encode())[:8]}.json"

    def _read(self, path: Path | None, key: str) -> str | None:
        if path is None:
            return None
        try:
            value = (read_json(path) or {}).get(key)
        except (OSError, ValueError):
            return None
        return value if isinstance(value, str) else None

    def _write(self, path: Path | None, value: dict[str, str]) -> None:
        if path is None:
            return
        try:
            write_json(path, value)
        except OSError as error:
            log.warning("the schema cache cannot be written: %s", error)


def _digest(root: str, texts: Mapping[str, str], strict: bool) -> str:
    return _sha256(json.dumps([_tools(), strict, root, sorted(texts.items())]).encode())


@cache
def _tools() -> list[Any]:
    return [FORMAT, version("grpcio-tools"), version("protobuf")]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


# -- the process -------------------------------------------------------------------------------------------


class _Refused(Exception):
    """A schema that oversteps a limit or crashes the compiler."""


class _Gone(Exception):
    """The process ended without an answer; `status` as `Popen.returncode`."""

    def __init__(self, status: int) -> None:
        self.status = status


class _Process:
    """One process for all compilers of this process with the same limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._scratch: Scratch | None = None

    def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the reply. Raises _Refused, CompilerDown."""
        with self._lock:
            # One that has worked before may have been idle too long, or be worn out by others' schemas.
            tries = 2 if self._child is None else 3
            while True:
                tries -= 1
                try:
                    status, body = self._exchange(request)
                except _Gone as gone:
                    if tries and gone.status != -signal.SIGXCPU:
                        continue
                    raise self._verdict(gone.status) from None
                if status != TOO_LARGE:
                    return status, body
                self._end()
                if not tries:
                    raise _Refused(self._too_large())

    def _verdict(self, status: int) -> Exception:
        if status == -signal.SIGXCPU:
            return _Refused(
                f"it takes more than {self._limits.cpu_sec:g} s of CPU time to compile (registry.compile_sec)"
            )
        if status == -signal.SIGABRT:
            return _Refused(self._too_large())
        if status < 0 and -status in _CRASHES:
            return _Refused(f"it crashes the schema compiler ({signal.Signals(-status).name})")
        return CompilerDown(detail=f"it ended with status {status}")

    def _too_large(self) -> str:
        return f"it takes more than {self._limits.memory:,} bytes to compile (registry.compile_memory)"

    def _exchange(self, request: bytes) -> tuple[int, bytes]:
        child = self._child or self._start()
        until = time.monotonic() + 60 + PATIENCE * self._limits.cpu_sec
        assert child.stdin is not None
        try:
            child.stdin.write(LENGTH.pack(len(request)) + request)
            child.stdin.flush()
        except OSError:
            raise _Gone(self._end()) from None
        head = self._read(child, 1 + LENGTH.size, until)
        return head[0], self._read(child, LENGTH.unpack(head[1:])[0], until)

    def _read(self, child: subprocess.Popen[bytes], length: int, until: float) -> bytes:
        assert child.stdout is not None
        reply = bytearray()
        while len(reply) < length:
            seconds_left = until - time.monotonic()
            if seconds_left <= 0 or not select.select([child.stdout], [], [], seconds_left)[0]:
                child.kill()
                self._end()
                raise CompilerDown(detail="it did not answer in time")
            piece = os.read(child.stdout.fileno(), length - len(reply))
            if not piece:
                raise _Gone(self._end())
            reply += piece
        return bytes(reply)

    def _start(self) -> subprocess.Popen[bytes]:
        try:
            self._scratch = Scratch("schemas")
            arguments = [json.dumps(sys.path), str(self._scratch.folder), str(self._limits.memory)]
            self._child = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # what interrupts this process must not look like a schema's fault
            )
        except OSError as error:
            raise CompilerDown(detail=str(error)) from error
        return self._child

    def _end(self) -> int:
        """Let the process end; its status."""
        child, self._child = self._child, None
        if child is None:
            return 0
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            status = child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            status = child.wait()
        if self._scratch is not None:
            self._scratch.close()
        return status

    def close(self) -> None:
        with self._lock:
            self._end()


_processes: dict[tuple[int, Limits], _Process] = {}
_processes_lock = threading.Lock()


def _process(limits: Limits) -> _Process:
    """This process's own: one that a fork has inherited belongs to the parent."""
    with _processes_lock:
        return _processes.setdefault((os.getpid(), limits), _Process(limits))


@atexit.register
def _close_all() -> None:
    for (owner, _), process in list(_processes.items()):
        if owner == os.getpid():
            process.close()
