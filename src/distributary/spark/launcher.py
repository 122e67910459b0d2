"""Start Spark's JVM quietly: jars from Ivy once, chatter kept back, failures in plain words."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import signal
import string
import threading
from collections import deque
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway

from distributary.errors import SparkNotStarted
from distributary.redaction import redacted
from distributary.scratch import Scratch

log = logging.getLogger(__name__)

IVY_KEYS = ("spark.jars.ivy", "spark.jars.ivySettings", "spark.jars.repositories", "spark.jars.excludes")
SUBMIT_ARGS = "PYSPARK_SUBMIT_ARGS"
"""What pyspark gives to spark-submit; a user may have set it."""
_KEPT_LINES = 500
_PLAIN = frozenset(string.ascii_letters + string.digits + "._-/,;*@+")
"""Characters that mean themselves everywhere in a properties file."""


class Console:
    """What the JVM prints: kept while Spark starts, passed on to stderr from then on.

    Ivy's report and the JVM's own warnings can't be switched off by a setting, and real errors must not be
    lost, so the stream is held back instead of thrown away. The JVM's stdout goes the same way: a command's
    JSON on stdout stays clean.
    """

    def __init__(self) -> None:
        self._kept: deque[bytes] = deque(maxlen=_KEPT_LINES)
        self._open = False
        self._reader, self.writer = os.pipe()
        self._thread = threading.Thread(target=self._pump, name="spark-console", daemon=True)
        self._thread.start()

    def _pump(self) -> None:
        announced = False
        with os.fdopen(self._reader, "rb") as stream:
            for line in stream:
                if self._open:
                    os.write(2, redacted(line.decode(errors="surrogateescape")).encode(errors="surrogateescape"))
                    continue
                self._kept.append(line)
                if not announced and line.startswith(b"downloading "):
                    announced = True
                    log.info("fetching Spark's jars for Delta and Kafka (once, about 23 MB)")

    def pass_on(self) -> None:
        self._open = True
        self._kept.clear()

    def close_writer(self) -> None:
        """The JVM has its own copy. Without ours the stream ends when the JVM does."""
        os.close(self.writer)

    def text(self) -> str:
        """All that was kept, once the JVM has ended (waits up to 5 s for its last words)."""
        self._thread.join(timeout=5)
        return b"".join(self._kept).decode(errors="replace")


class Jars:
    """The jars of some Maven coordinates: resolved by Ivy at the first start, then known by path.

    Knowing the paths saves Ivy's look-up (about 1.3 s a start) and makes later starts independent of the network.
    """

    def __init__(self, cache: Path, packages: Sequence[str], excluded: Sequence[str], conf: Mapping[str, str]) -> None:
        self._packages = _joined(conf.get("spark.jars.packages"), packages)
        self._excludes = _joined(conf.get("spark.jars.excludes"), excluded)
        self._own = _joined(conf.get("spark.jars"), ())
        key = repr((self._packages, self._excludes, [conf.get(name) for name in IVY_KEYS]))
        self._list = cache / "jars" / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.txt"

    def known(self) -> list[str]:
        """URLs of the jars, or [] where the next start must ask Ivy."""
        try:
            urls = self._list.read_text().split("\n")
        except OSError:
            return []
        return urls if all(Path(unquote(urlsplit(url).path)).is_file() for url in urls) else []

    def settings(self) -> dict[str, str]:
        if known_jars := self.known():
            return {"spark.jars": ",".join([*self._own, *known_jars]), "spark.jars.packages": ""}
        return {
            "spark.jars.packages": ",".join(self._packages),
            "spark.jars.excludes": ",".join(self._excludes),
        }

    def remember(self, spark_jars: str) -> None:
        """Keep what Ivy found: `spark_jars` is the setting `spark.jars` of the running context."""
        urls = [url for url in spark_jars.split(",") if url.startswith("file:") and url not in self._own]
        if self.known() or not urls:
            return
        try:
            unfinished = self._list.with_suffix(f".{os.getpid()}")
            unfinished.write_text("\n".join(urls))
            unfinished.replace(self._list)
        except OSError as exc:
            log.debug("the list of jars could not be kept: %s", exc)

    @contextmanager
    def first_start_alone(self) -> Iterator[None]:
        """Ivy's cache has no lock: two first starts at once spoil each other's downloads. The second waits."""
        if self.known():
            yield
            return
        try:
            self._list.parent.mkdir(parents=True, exist_ok=True)
            lock = (self._list.parent / "lock").open("w")
        except OSError:
            yield
            return
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def launch(
    settings: Mapping[str, str], console: Console, environ: MutableMapping[str, str], scratch: Scratch | None = None
) -> Any:
    """Start the JVM and return its py4j gateway. JAVA_HOME must be in `environ`, this process' environment.

    `scratch`: a folder that stays as long as the JVM does.

    Raises:
        SparkNotStarted: with the reason that the JVM printed.
    """
    streams = {"stderr": console.writer, "stdout": console.writer}
    try:
        with _handed_over(settings, environ) as file, signals_kept_back():
            files = (file,) if scratch is None else (file, scratch.lock)
            return launch_gateway(popen_kwargs={**streams, "pass_fds": files})  # type: ignore[no-untyped-call]
    except PySparkRuntimeError as exc:
        failure: Exception = exc
    finally:
        console.close_writer()
    raise explained(console.text()) from failure


@contextmanager
def signals_kept_back() -> Iterator[None]:
    """A first SIGINT or SIGTERM that comes meanwhile comes when the JVM is up.

    Were pyspark interrupted while it waits for the JVM, it would remove the folder in which that is to say where it
    listens; the JVM's main thread would end by that, and the JVM itself never, for nothing reads the pipe any more by
    which it learns that its driver is gone (pyspark 4.2.0).
    """
    if threading.current_thread() is not threading.main_thread():
        # Signals are the main thread's.
        yield
        return
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in handlers:
        signal.signal(number, lambda number, _: received.append(number))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for first in received[:1]:
            signal.raise_signal(first)


@contextmanager
def _handed_over(settings: Mapping[str, str], environ: MutableMapping[str, str]) -> Iterator[int]:
    """Hand settings to the JVM that is started meanwhile; gives the open file that it needs.

    `--conf` would put them on its command line, which every user of the machine can read, and the keys of object stores
    are among them. So they are in a file without a name, which only this process and the JVM have: a kill leaves none.
    """
    with TemporaryFile("w", encoding="ascii") as file:
        file.write(properties(settings))
        file.flush()
        with for_now(environ, {SUBMIT_ARGS: _submit_args(file.fileno(), environ.get(SUBMIT_ARGS, "pyspark-shell"))}):
            yield file.fileno()


def _submit_args(file: int, arguments: str) -> str:
    # Without the first, spark-defaults.conf of an installed Spark would not be read beside a file of ours.
    return f"--load-spark-defaults --properties-file /proc/self/fd/{file} {arguments}"


def properties(settings: Mapping[str, str]) -> str:
    """Settings as the text of a properties file, in ASCII: java.util.Properties, `load`."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass")
    codes = (units[index] << 8 | units[index + 1] for index in range(0, len(units), 2))
    return "".join(chr(code) if chr(code) in _PLAIN else f"\\u{code:04x}" for code in codes)


@contextmanager
def for_now(environ: MutableMapping[str, str], values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables while Spark starts. Python's launcher takes them from nowhere else."""
    before = {name: environ.get(name) for name in values}
    environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                environ.pop(name, None)
            else:
                environ[name] = value


_REASONS = (
    (r"unresolved dependency: (\S+?)[:;]?\s*not found", "the jar {0} could not be fetched", "{network}"),
    (r"UNRESOLVED DEPENDENCIES", "a jar could not be fetched", "{network}"),
    (r"(Invalid (?:maximum|initial) heap size.*)", "{0}", "Check spark.driver.memory."),
    (r"(Could not reserve enough space.*)", "{0}", "Lower spark.driver.memory."),
    (r"(UnsupportedClassVersionError.*)", "{0}", "Use Java 17 or 21."),
    (
        r"Invalid UID, could not determine effective user|LoginException: .*invalid null input: name",
        "this process's user has a number and no name, and Hadoop takes no user without one",
        "Add a line for it to /etc/passwd: in an image, RUN useradd --uid NUMBER NAME.",
    ),
)
_TELLING = re.compile(r"Exception\b|[Ee]rror\b")
_NETWORK = (
    "The first start on a machine needs a Maven repository: check the network or the proxy, or name a mirror "
    "with spark.jars.ivySettings. Later starts need none."
)


def explained(text: str) -> SparkNotStarted:
    """Our error for what a JVM printed before it ended."""
    for pattern, detail, remedy in _REASONS:
        if match := re.search(pattern, text):
            return SparkNotStarted(detail=detail.format(*match.groups()), remedy=remedy.format(network=_NETWORK))
    lines = [line.strip(" :\t\r") for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line) and not line.startswith(("at ", "An error occurred"))]
    detail = telling[0] if telling else lines[-1] if lines else "the JVM ended without a word"
    return SparkNotStarted(detail=detail.rstrip("."), remedy="Check Java and the Spark settings.")


def _joined(theirs: str | None, ours: Sequence[str]) -> list[str]:
    """Entries of a comma-separated setting, then ours, without doubles."""
    entries = [entry.strip() for entry in (theirs or "").split(",") if entry.strip()]
    return list(dict.fromkeys([*entries, *ours]))
