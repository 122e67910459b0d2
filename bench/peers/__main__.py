"""Run the same work by every peer: `python -m bench.peers`; writes bench/results/peers.json and docs/peers.md.

Each peer gets a topic of its own with the same records in the same order, on one broker, one peer after the other. A
peer that cannot be had, or that does not get through, is named with the reason.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.services.kafka import Kafka

from bench.peers.known import PEERS
from bench.peers.peer import ROOT, Job, Missing, Peer
from bench.peers.records import PARTITIONS, record
from bench.peers.report import page
from bench.peers.trial import QUICK, Size, Trial
from bench.result import machine
from bench.workload import as_installed, say

RESULTS = ROOT / "bench" / "results" / "peers.json"
PAGE = ROOT / "docs" / "peers.md"


def main() -> int:
    options = _options()
    as_installed()
    # Whoever ends this ends the broker and the peer with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    size = QUICK if options.quick else Size()
    root = Path(tempfile.mkdtemp(prefix="peers-", dir=options.dir))
    path = options.results or (None if options.quick else RESULTS)
    try:
        with Kafka(root / "kafka") as kafka:
            for peer in PEERS:
                if not options.only or peer.name in options.only:
                    _kept({peer.name: _tried(peer, kafka, root, size)}, path, size, options.remark)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


def _kept(found: dict[str, Any], path: Path | None, size: Size, remark: str) -> None:
    """After each peer, so that what was measured stays if the next one never ends."""
    if path is None:
        print(json.dumps(found, indent=2))
        return
    kept = keep(found, path, size, remark)
    if path == RESULTS:
        PAGE.write_text(page(PAGE.read_text(), kept))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--only", nargs="*", choices=names, help="these alone; others keep the results they have")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; shows that it runs, keeps no figures")
    parser.add_argument("--dir", type=Path, help="where to work (a new folder in it, removed at the end)")
    parser.add_argument("--results", type=Path, help="the file that keeps the figures, in place of peers.json")
    parser.add_argument("--remark", default="", help="a sentence for the page, as of what else the machine did")
    return parser.parse_args()


def _tried(peer: Peer, kafka: Kafka, root: Path, size: Size) -> dict[str, Any]:
    about: dict[str, Any] = {
        "title": peer.title,
        "writes": peer.writes,
        "settings": peer.settings,
        "tolerance": peer.tolerance,
    }
    try:
        about["versions"] = peer.install()
    except Missing as missing:
        say(f"{peer.name}: {missing}")
        return {**about, "missing": str(missing)}
    folder = root / peer.name
    topic = kafka.create_topic(f"events-{peer.name}", PARTITIONS)
    job = Job(folder, kafka.bootstrap_servers, topic, tuple(f"kind{number}" for number in range(size.kinds)))
    peer.prepare(job)
    try:
        return {**about, "found": Trial(peer, job, size).run()}
    finally:
        kafka.delete_topic(topic)
        shutil.rmtree(folder, ignore_errors=True)


def keep(found: dict[str, Any], path: Path, size: Size, remark: str) -> dict[str, Any]:
    """Put the results into the file, beside those of peers that were not tried now, and return what it holds."""
    known = json.loads(path.read_text())["peers"] if path.exists() else {}
    both = {**known, **found}
    kept = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "machine": machine(),
        "size": asdict(size),
        "bytes": len(json.dumps(record(12_345, "kind5"))),
        "remark": remark,
        "peers": {peer.name: both[peer.name] for peer in PEERS if peer.name in both},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=2) + "\n")
    return kept


if __name__ == "__main__":
    sys.exit(main())
