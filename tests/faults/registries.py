"""A real schema registry behind a proxy that answers in its place, late, or half."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from distributary.config import RegistryConfig
from distributary.schemas.registry import open_registry
from tests.faults.pipelines import Piped, Place, Seen, concluded, expect
from tests.faults.proxy import WELL, Fault, Proxy, Rule

HTML = b"<html><body>Please sign in</body></html>"


def _ids(fault: Fault) -> Rule:
    return Rule(fault, "/schemas/ids/")


def _piped(place: Place, proxy: Proxy, keys: Mapping[str, Any] | None = None) -> Piped:
    url = place.registry().url
    registry = open_registry(RegistryConfig(url=url))
    mine = uuid.uuid4().hex[:8]

    def register(subject: str, text: str) -> int:
        return registry.register(f"{subject}-{mine}", text).schema.id

    address = proxy.endpoint + "/apis/ccompat/v7"
    own = {"url": address, "attempts": 2, "timeout_sec": 3, "cache": str(place.folder / "cache"), **(keys or {})}
    return Piped(place.folder, {"registry": own}, register=register)


def _target(place: Place) -> str:
    return str(place.registry().url.split("/apis", 1)[0])


def _passing(place: Place, fault: Fault, *conditions: str) -> Seen:
    """A fault of all requests: said at `--once`, then a run that goes on gets over it when it ends."""
    seen = Seen()
    with Proxy(_target(place)) as proxy:
        piped = _piped(place, proxy)
        piped.feed()
        proxy.rule = _ids(fault)
        expect(seen, piped.run(), *conditions, names=(proxy.endpoint,))
        with piped.going() as run:
            hits = proxy.hits
            run.wait(lambda: proxy.hits >= hits + 3, 60)
            if conditions[0] in ("REGISTRY_DENIED", "REGISTRY_REFUSED"):
                # Waiting does not help: it has ended, and says which key may be wrong.
                run.wait(lambda: bool(run.errors), 30)
                proxy.rule = WELL
                seen.went_on = "by the next run"
            else:
                proxy.rule = WELL
                seen.went_on = "by itself" if run.wait_right() else ""
        if not seen.went_on:
            seen.wrong.append("it did not go on by itself")
        return concluded(piped, seen)


def broken(place: Place) -> Seen:
    return _passing(place, Fault.answer(500, b'{"error_code": 50001, "message": "store"}'), "REGISTRY_DOWN")


def busy(place: Place) -> Seen:
    return _passing(place, Fault.answer(429, b"slow down", Retry_After="1"), "REGISTRY_DOWN")


def denied(place: Place) -> Seen:
    return _passing(place, Fault.answer(401, b"{}"), "REGISTRY_DENIED")


def slow(place: Place) -> Seen:
    return _passing(place, Fault.slow(6), "REGISTRY_DOWN")


def html(place: Place) -> Seen:
    return _passing(place, Fault.answer(200, HTML, Content_Type="text/html"), "REGISTRY_DOWN")


def half(place: Place) -> Seen:
    return _passing(place, Fault.half(), "REGISTRY_DOWN")


def gateway_404(place: Place) -> Seen:
    """A 404 of a gateway, not of the registry: no row may become one of an unknown schema."""
    return _passing(place, Fault.answer(404, HTML, Content_Type="text/html"), "REGISTRY_REFUSED")


def busy_for_a_moment(place: Place) -> Seen:
    """429 with Retry-After: 2, once: the one batch waits for it and is done."""
    seen = Seen()
    with Proxy(_target(place)) as proxy:
        piped = _piped(place, proxy)
        piped.feed()
        proxy.rule = Rule(Fault.answer(429, b"slow down", Retry_After="2"), "/schemas/ids/", first=1)
        done = piped.run()
        if done.condition:
            seen.wrong.append(f"{done.condition}: {done.words[:200]}")
        seen.went_on = "by itself"
        return concluded(piped, seen)


def other_text(place: Place) -> Seen:
    """A registry made anew: ids have another text now. What they were found to be at first holds for good."""
    seen = Seen()
    with Proxy(_target(place)) as proxy:
        piped = _piped(place, proxy)
        piped.feed(400)
        expect(seen, piped.run(), "")
        other = {"schema": 'syntax = "proto3"; message Foreign { bytes number = 1; }', "schemaType": "PROTOBUF"}
        proxy.rule = _ids(Fault.answer(200, json.dumps(other).encode(), Content_Type="application/json"))
        piped.feed()
        expect(seen, piped.run(), "")
        proxy.rule = WELL
        seen.went_on = "by itself"
        return concluded(piped, seen)


SCENARIOS = {
    "registry answers 500": broken,
    "registry answers 429": busy,
    "registry answers 429 once, Retry-After": busy_for_a_moment,
    "registry answers 401": denied,
    "registry is slow": slow,
    "registry answers HTML": html,
    "registry's answer ends half way": half,
    "a gateway answers 404": gateway_404,
    "another text for a known id": other_text,
}
