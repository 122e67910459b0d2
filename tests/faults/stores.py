"""Tables and state in a real object store (S3), behind a proxy that is busy, slow, deaf or dumb."""

from __future__ import annotations

from tests.faults.pipelines import Piped, Place, Seen, concluded, expect
from tests.faults.proxy import WELL, Fault, Proxy, Rule

SLOW_DOWN = b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SlowDown</Code><Message>slow</Message></Error>'
EXISTS = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>PreconditionFailed</Code><Message>there</Message></Error>'
)
CONFLICT = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b"<Error><Code>ConditionalRequestConflict</Code><Message>conflict</Message></Error>"
)


def _piped(place: Place, proxy: Proxy) -> Piped:
    bucket = place.s3().bucket()
    own = {"aws_endpoint_url": proxy.endpoint, "timeout": "10s", "max_retries": "1", "retry_timeout": "15s"}
    keys = {
        "tables": {"root": f"{bucket.url}/lake"},
        "state": f"{bucket.url}/state",
        "checkpoint": str(place.folder / "checkpoint"),
    }
    return Piped(place.folder, keys, options={**bucket.options, **own}, straight=bucket.options)


def _passing(place: Place, fault: Fault) -> Seen:
    """A fault of all requests: said at `--once`, and got over by a run that goes on."""
    seen = Seen()
    with Proxy(place.s3().endpoint) as proxy:
        piped = _piped(place, proxy)
        piped.feed()
        expect(seen, piped.run(), "")
        piped.feed()
        proxy.rule = Rule(fault)
        expect(seen, piped.run(), "STORE_DOWN", "STORE_UNREADABLE", names=("s3://",))
        proxy.rule = WELL
        with piped.going() as run:
            run.wait_right()
            piped.feed()
            proxy.rule = Rule(fault)
            hits = proxy.hits
            run.wait(lambda: proxy.hits > hits + 3, 60)
            proxy.rule = WELL
            seen.went_on = "by itself" if run.wait_right() else ""
        if not seen.went_on:
            seen.wrong.append("it did not go on by itself")
        return concluded(piped, seen)


def busy(place: Place) -> Seen:
    return _passing(place, Fault.answer(503, SLOW_DOWN))


def broken(place: Place) -> Seen:
    return _passing(place, Fault.answer(500, b"internal"))


def dropping(place: Place) -> Seen:
    return _passing(place, Fault.dropped())


def slow(place: Place) -> Seen:
    return _passing(place, Fault.slow(15))


def half(place: Place) -> Seen:
    return _passing(place, Fault.half())


def _commits(place: Place, fault: Fault) -> Seen:
    """Some batches, each commit of which has this fault once: tables, ledger and quarantine."""
    seen = Seen()
    with Proxy(place.s3().endpoint) as proxy:
        piped = _piped(place, proxy)
        proxy.rule = Rule(fault, r"^PUT .*_delta_log/.*\.json", once=True)
        for progress in (0.0, 0.4, 1.0):
            for _ in range(2):
                piped.feed(40, progress)
            # A run may stop for it: the next one goes on.
            for _ in range(4):
                if not piped.run().condition:
                    break
        if proxy.hits < 10:
            seen.wrong.append(f"only {proxy.hits} commits were met")
        proxy.rule = WELL
        seen.went_on = "by itself" if not any(a.condition for a in piped.attempts) else "by the next run"
        seen.words = next((a.words for a in piped.attempts if a.condition), "")
        return concluded(piped, seen)


def answer_lost(place: Place) -> Seen:
    return _commits(place, Fault.unanswered())


def answered_500_though_made(place: Place) -> Seen:
    return _commits(place, Fault(forward=True, status=500, body=b"internal"))


def refused_412(place: Place) -> Seen:
    return _commits(place, Fault.answer(412, EXISTS))


def refused_409(place: Place) -> Seen:
    return _commits(place, Fault.answer(409, CONFLICT))


def journal_lost(place: Place) -> Seen:
    """Data files and plans, whose answers are lost, while commits are well."""
    seen = Seen()
    with Proxy(place.s3().endpoint) as proxy:
        piped = _piped(place, proxy)
        proxy.rule = Rule(Fault.unanswered(), r"^PUT (?!.*_delta_log)", once=True)
        for _ in range(3):
            piped.feed(40)
            expect(seen, piped.run(), "")
        proxy.rule = WELL
        seen.went_on = "by itself"
        return concluded(piped, seen)


SCENARIOS = {
    "store answers 503 SlowDown": busy,
    "store answers 500": broken,
    "store drops connections": dropping,
    "store is slow": slow,
    "store's answers end half way": half,
    "answer to a commit lost": answer_lost,
    "500 for a commit that was made": answered_500_though_made,
    "412 for a commit that nobody made": refused_412,
    "409 for a commit": refused_409,
    "answers to files and plans lost": journal_lost,
}
