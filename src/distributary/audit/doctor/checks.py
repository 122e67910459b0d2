"""The checks of `doctor`, in the order in which a run meets what they look at."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import ssl
import stat
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from urllib.parse import urlsplit

from distributary.audit.doctor.findings import Check, Finding, Level
from distributary.config import Pipeline
from distributary.config.environment import environment
from distributary.config.reading import RegistryConfig
from distributary.errors import SchemaNotFound, StoreUnfit
from distributary.names import counted
from distributary.schemas.registry import open_registry
from distributary.sources.registered import origin_of
from distributary.spark.java import cache_folder, find_java
from distributary.spark.launcher import Jars
from distributary.spark.session import PACKAGES, SHIPPED_BY_SPARK
from distributary.state.ledger import read_entries
from distributary.tables.by_name import is_named
from distributary.tables.put_once import cannot_put_once
from distributary.tables.put_proof import prove_puts_once
from distributary.tables.store import Store, local_path
from distributary.version import __version__

GIB = 1 << 30
LITTLE_DISK, LEAST_DISK = 5 * GIB, 1 * GIB
APART_SEC, FAR_APART_SEC = 30.0, 300.0
"""Clocks that differ by so much are worth a word; object stores refuse requests that are 15 minutes off."""
ASK_SEC = 5.0


def _versions(config: Pipeline) -> Iterator[Finding]:
    yield Finding("versions", "ok", f"distributary {__version__}, Python {platform.python_version()}")
    libraries = (
        (config.metrics.port is not None, "metrics", "prometheus_client"),
        (config.metrics.otlp is not None, "otlp", "opentelemetry"),
    )
    for is_wanted, extra, library in libraries:
        if is_wanted and importlib.util.find_spec(library) is None:
            remedy = f"pip install 'distributary[{extra}]'"
            yield Finding("versions", "fault", f"metrics need {library}, which is not installed", remedy)


def _java(config: Pipeline) -> Iterator[Finding]:
    yield Finding("java", "ok", str(find_java(environment())))


def _jars(config: Pipeline) -> Iterator[Finding]:
    conf = dict(config.spark.conf)
    if Jars(cache_folder(environment()), PACKAGES, [*SHIPPED_BY_SPARK], conf).known():
        yield Finding("spark", "ok", "its jars for Delta and Kafka are here; a start needs no network")
        return
    remedy = "Nothing, where a Maven repository can be reached; else name a mirror with spark.jars.ivySettings."
    yield Finding("spark", "warning", "the first start will fetch Spark's jars for Delta and Kafka", remedy)


def _source(config: Pipeline) -> Iterator[Finding]:
    for sight in origin_of(config).look():
        yield Finding("source", "ok" if sight.remedy is None else "warning", sight.text, sight.remedy)


def _registry(config: Pipeline) -> Iterator[Finding]:
    if config.registry is None:
        return
    # One try: whoever asks waits for the answer.
    registry, subject = open_registry(config.registry.model_copy(update={"attempts": 1})), config.envelope_subject
    if subject is None or config.envelope.format != "protobuf":
        yield Finding("registry", "ok", f"{registry.name}: {counted(len(registry.subjects()), 'subject')}")
        return
    try:
        schema = registry.latest(subject)
        yield Finding("registry", "ok", f"{registry.name}: subject {subject}, version {schema.version}")
    except SchemaNotFound as e:
        remedy = "Name the envelope's subject as envelope.subject, or have its schema registered."
        yield Finding("registry", "warning", f"{registry.name} answers, but {e}", remedy)


# -- the store ---------------------------------------------------------------------------------------------


def _stores(config: Pipeline) -> Iterator[Finding]:
    # A catalog's tables have no folder that we would write.
    for uri in dict.fromkeys(_there(uri) for uri in (config.state_root, config.tables.root) if not is_named(uri)):
        yield from _probed(uri, Store.of(config.tables))


def _probed(uri: str, store: Store) -> Iterator[Finding]:
    """Write an object, be refused the second time, list it, remove it: what every commit and its reader need."""
    if why := cannot_put_once(uri, store):
        remedy = "Nothing where one process writes; else a store with conditional puts: docs/stores.md."
        yield Finding("store", "warning", f"{uri}: {why}", remedy)
    try:
        prove_puts_once(uri, store)
    except StoreUnfit as e:
        yield Finding("store", "fault", f"{uri}: {e.parameters['detail']}", e.parameters["remedy"])
        return
    yield Finding("store", "ok", f"{uri}: written once, refused the second time, listed, removed")


def _there(uri: str) -> str:
    """The address, or of this machine's folders the first one above it that is there: a probe makes none of them."""
    folder = local_path(uri)
    if folder is None:
        return uri
    return str(next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists()))


def _permissions(config: Pipeline) -> Iterator[Finding]:
    folder = local_path(config.state_root)
    if folder is None or not folder.exists():
        return
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & stat.S_IROTH:
        remedy = f"chmod 700 {folder}, unless others are meant to read quarantined records."
        yield Finding("permissions", "warning", f"{folder} can be read by every user of this machine", remedy)
    else:
        yield Finding("permissions", "ok", f"{folder} is closed to other users (mode {mode:o})")


def _state(config: Pipeline) -> Iterator[Finding]:
    entries = read_entries(config.state_root, Store.of(config.tables))
    batches = sum(entry.batches for entry in entries if entry.route is None)
    yield Finding("state", "ok", f"{batches:,} batches in the ledger" if entries else "no batch yet")


def _disk(config: Pipeline) -> Iterator[Finding]:
    uris = (config.tables.root, config.state_root, config.checkpoint_path)
    places = [folder for uri in uris if (folder := local_path(uri)) is not None]
    devices: set[int] = set()
    for place in (*places, Path(config.spark.conf.get("spark.local.dir") or tempfile.gettempdir())):
        folder_there = Path(_there(str(place)))
        if folder_there.stat().st_dev in devices:
            continue
        devices.add(folder_there.stat().st_dev)
        free = shutil.disk_usage(folder_there).free
        level: Level = "fault" if free < LEAST_DISK else "warning" if free < LITTLE_DISK else "ok"
        remedy = None if level == "ok" else "Make room, or put tables, state or spark.local.dir elsewhere."
        yield Finding("disk", level, f"{free / GIB:,.1f} GiB free at {folder_there}", remedy)


# -- clocks ------------------------------------------------------------------------------------------------


def _clocks(config: Pipeline) -> Iterator[Finding]:
    registry = config.registry
    if registry is not None and registry.url is not None:
        their_time, asked_at = _date(registry)
        if their_time is not None:
            yield _compared("the registry's clock", their_time - asked_at)
    if config.source.has_offsets:
        times = origin_of(config).newest(1).column("timestamp").to_pylist()
        if times and times[-1] is not None:
            # A record of long ago says nothing of clocks; one of the future does.
            ahead = times[-1].timestamp() - time.time()
            yield _compared("the time of the newest record", max(0.0, ahead))


def _compared(clock: str, ahead_sec: float) -> Finding:
    if abs(ahead_sec) < APART_SEC:
        return Finding("clocks", "ok", f"{clock} and ours agree")
    level: Level = "fault" if abs(ahead_sec) >= FAR_APART_SEC else "warning"
    text = f"{clock} is {abs(ahead_sec):,.0f} s {'ahead of' if ahead_sec > 0 else 'behind'} ours"
    return Finding(
        "clocks", level, text, "Have both machines keep time by NTP: lag, rests and requests to stores need it."
    )


def _date(registry: RegistryConfig) -> tuple[float | None, float]:
    """What time it is at the registry, by the header of any answer, and here."""
    url = str(registry.url).split(",")[0].strip()
    context = None
    if urlsplit(url).scheme == "https":
        context = ssl.create_default_context(cafile=None if registry.ca_file is None else str(registry.ca_file))
        if registry.cert_file is not None:
            key = None if registry.key_file is None else str(registry.key_file)
            context.load_cert_chain(str(registry.cert_file), key)
    began = time.time()
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/subjects", timeout=ASK_SEC, context=context) as answer:
            date_header = answer.headers["Date"]
    except urllib.error.HTTPError as e:  # it may want a password; it has told the time
        date_header = e.headers["Date"]
        e.close()
    middle = (began + time.time()) / 2
    return (None if date_header is None else parsedate_to_datetime(date_header).timestamp()), middle


CHECKS = (
    Check("versions", _versions, "Install distributary anew."),
    Check("java", _java, "Install Java 17 or 21, or: pip install 'distributary[java]'."),
    Check("spark", _jars, "Install distributary anew."),
    Check(
        "source",
        _source,
        "Check the address, the credentials (source.security), the topic or path, and that this machine may reach it.",
    ),
    Check("registry", _registry, "Check registry.url and its credentials, and that this machine may reach it."),
    Check("store", _stores, "Check tables.root, state and tables.storage_options, and what their owner may do."),
    Check("state", _state, "See docs/reliability.md, and docs/state.md for what each file is."),
    Check("permissions", _permissions, "Let the user that runs the pipeline own its state folder."),
    Check("disk", _disk, "Check the folders of tables, state and checkpoint."),
    Check("clocks", _clocks, "See what source and registry say above."),
)
