"""Credentials that Unity Catalog vends, kept while they last: asked by the driver, handed to tasks, written nowhere.

    driver: a place -> `options`, asked anew when half of their time is over
    pickled with a batch's tasks -> what is there, without the catalog's token: a task asks nobody

A place is a folder of the pipeline (root of the tables, state, bronze, a Delta source); credentials are for all below.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from distributary.redaction import forget, hide
from distributary.tables.unity import CatalogDown, PathOperation, UnityCatalog, Vended

log = logging.getLogger("distributary")

REST_SEC = 30.0
"""So long a catalog that does not answer is not asked again, while the credentials before last."""


_handed: list[Vended] = []
_handed_lock = threading.Lock()


class Vault:
    """Thread-safe. `catalog`: None in a task, which has what it was handed. `places`: address -> what for; None: the
    catalog is not asked."""

    def __init__(
        self,
        catalog: UnityCatalog | None,
        places: Mapping[str, PathOperation | None],
        credentials: Mapping[str, Vended] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._catalog = catalog
        self._places = dict(places)
        self._kept = dict(credentials or {})
        self._now = now
        self._rests: dict[str, float] = {}
        self._replaced: list[Vended] = []
        self._doubted: set[str] = set()
        self._lock = threading.Lock()
        if self._kept:
            _hide_handed(self._kept.values(), now())

    def __reduce__(self) -> tuple[type[Vault], tuple[None, Mapping[str, PathOperation | None], Mapping[str, Vended]]]:
        with self._lock:
            if self._catalog is not None:
                for place in (place for place, use in self._places.items() if use is not None):
                    try:
                        self._current(place)
                    except CatalogDown as e:
                        log.warning("tasks get the credentials that are there: %s", e)
            return Vault, (None, self._places, dict(self._kept))

    def options(self, uri: str) -> Mapping[str, str]:
        """Credentials for `uri`, as delta-rs names them. Raises CatalogDown."""
        place = max((p for p in self._places if _is_below(uri, p)), key=len, default=uri)
        if self._places.get(place, "PATH_READ_WRITE") is None:
            return {}
        with self._lock:
            return self._current(place).options

    def doubt(self) -> None:
        """What is kept may have ended before its time: the next use asks anew."""
        with self._lock:
            self._doubted = set(self._kept)
            self._rests.clear()

    def _current(self, place: str) -> Vended:
        current, now = self._kept.get(place), self._now()
        if self._catalog is None:
            if current is None:
                raise CatalogDown(f"no credentials for {place} were handed to this task")
            return current
        asks = current is None or current.is_half_over(now) or place in self._doubted
        if current is not None and (not asks or now < self._rests.get(place, now)):
            return current
        try:
            vended = self._catalog.path_credentials(place, self._places.get(place) or "PATH_READ_WRITE")
        except CatalogDown as e:
            if current is None or current.is_over(now):
                raise
            self._rests[place] = now + REST_SEC
            log.warning("the credentials for %s are used on: %s", place, e)
            return current
        self._replaced = [*self._replaced, *([] if current is None else [current])]
        for old in [old for old in self._replaced if old.is_over(now)]:
            forget(old.options.values())
            self._replaced.remove(old)
        self._kept[place] = vended
        # A server with keys of its own gives the same ones again.
        for used in (*self._kept.values(), *self._replaced):
            _hide(used)
        self._doubted.discard(place)
        return vended


def _hide(vended: Vended) -> None:
    """A store's answer may repeat a token."""
    for secret in vended.options.values():
        hide(secret)


def _hide_handed(credentials: Iterable[Vended], now: float) -> None:
    """A worker of Spark lives for long, and each batch may hand it others: those that have ended are not looked for."""
    with _handed_lock:
        over = [vended for vended in _handed if vended.is_over(now)]
        for vended in over:
            forget(vended.options.values())
        _handed[:] = [vended for vended in _handed if vended not in over]
        _handed.extend(vended for vended in credentials if vended not in _handed)
        for vended in _handed:
            _hide(vended)


def _is_below(uri: str, place: str) -> bool:
    return uri == place or uri.startswith(f"{place.rstrip('/')}/")


@lru_cache(maxsize=16)
def vault_of(catalog: UnityCatalog, places: tuple[tuple[str, PathOperation | None], ...]) -> Vault:
    """The one of this process."""
    return Vault(catalog, dict(places))
