"""Several Spark applications for one pipeline, started and kept up from this machine.

Each is a process with a driver of its own. With `via`, their tasks run on a Spark standalone cluster; without it, each
is a whole local Spark, and the machine's cores are shared out among them.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from distributary.config import Pipeline
from distributary.errors import BadInput, ClusterMissing, Exit
from distributary.fleet.notices import Notifier
from distributary.running.bronze.bronze_table import open_bronze
from distributary.shares import Division
from distributary.state.cleaning import at_work
from distributary.state.divisions import claim
from distributary.state.streams import StreamState
from distributary.supervisor.child import SupervisedStream, supervised_command
from distributary.supervisor.pipeline_board import StateBoard
from distributary.supervisor.policy import RestartPolicy
from distributary.supervisor.supervise import Edges, StreamChange, Supervisor
from distributary.tables.store import Store

CONNECT_SEC = 5.0
DEFAULT_MASTER_PORT = 7077

FIRST_HOP = "hop-1"
WHOLE = "whole"
"""The stream of a pipeline that is not divided."""
_CORES = "spark.cores.max"


@dataclass(frozen=True)
class LocalRun:
    """What `workflow local` was asked for. `division` None: one stream takes all routes. `conf`: Spark settings of
    every stream, over the file's."""

    file: Path
    config: Pipeline
    division: Division | None
    logs: Path
    once: bool = False
    via: str | None = None
    cores: int | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    policy: RestartPolicy = field(default_factory=RestartPolicy)

    @property
    def names(self) -> list[str]:
        """Of the clusters, without hop 1."""
        return [WHOLE] if self.division is None else [cluster.name for cluster in self.division.clusters]

    def about(self) -> str:
        """What is going to run, in words."""
        count = len(self.names)
        processes = f"{count} process{'' if count == 1 else 'es'}"
        first_hop = " and one for hop 1" if self.config.bronze_table is not None else ""
        cluster = f" on {self.via}" if self.via is not None else ""
        return f"pipeline {self.config.pipeline}: {processes}{first_hop}{cluster}; logs in {self.logs}"

    def streams(self, plan_file: Path) -> list[SupervisedStream]:
        """A stream per cluster. `plan_file`: where the division is, as JSON."""
        return [
            SupervisedStream(
                name,
                supervised_command(self._arguments(name, plan_file), self.policy.grace_sec),
                self.logs / f"{name}.log",
            )
            for name in self.names
        ]

    def first_hop(self, *, once: bool) -> SupervisedStream:
        """Hop 1 of two: from the source to bronze, which all shares read."""
        arguments = self._command(["--hop", "1"], once=once)
        return SupervisedStream(
            FIRST_HOP, supervised_command(arguments, self.policy.grace_sec), self.logs / f"{FIRST_HOP}.log"
        )

    def _arguments(self, cluster: str, plan_file: Path) -> list[str]:
        if self.division is None:
            return self._command([], once=self.once)
        return self._command(["--plan-file", str(plan_file), "--cluster", cluster], once=self.once)

    def _command(self, which: list[str], *, once: bool) -> list[str]:
        arguments = ["run", str(self.file), *which, "--json", "--supervised", *(["--once"] if once else [])]
        for key, value in {**self._settings(), **self.conf}.items():
            arguments += ["--conf", f"{key}={value}"]
        return arguments

    def _settings(self) -> dict[str, str]:
        if self.via is not None:
            # A standalone master gives its first application all cores unless told otherwise, and the next ones none.
            return {"spark.master": self.via, _CORES: str(self.cores or 2)}
        if self.config.spark.master is not None or "spark.master" in self.config.spark.conf:
            return {}
        cores = self.cores or max(1, (os.cpu_count() or 1) // len(self.names))
        return {"spark.master": f"local[{cores}]"}


def supervise(
    run: LocalRun,
    *,
    changed: Callable[[StreamChange], None] = lambda _: None,
    batch: Callable[[str, Mapping[str, Any]], None] = lambda *_: None,
    handle: Callable[[Supervisor], None] = lambda _: None,
) -> Exit:
    """Run all streams until each is over, or the supervisor is stopped (`handle` gets it before it starts).

    Raises AlreadyRunning, CleanUnfinished, ShareConflict, ClusterMissing, OSError.
    """
    if run.via is not None:
        check_master(run.via)
    config, store = run.config, Store.of(run.config.tables)
    with at_work(config, store, "supervisor"):
        claim(config, run.division, store)
        run.logs.mkdir(parents=True, exist_ok=True)
        plan_file = run.logs / "plan.json"
        if run.division is not None:
            plan_file.write_text(json.dumps(run.division.to_json()), encoding="utf-8")
        notifier = Notifier(config.pipeline, config.notices)

        def on_change(change: StreamChange) -> None:
            tell(notifier, change)
            changed(change)

        def on_batch(stream: str, report: Mapping[str, Any]) -> None:
            notifier.batch(report)
            batch(stream, report)

        edges, board = Edges(changed=on_change, batch=on_batch), StateBoard(config.state_root, store)
        try:
            for streams in _phases(run, run.streams(plan_file), store):
                supervisor = Supervisor(streams, board, run.policy, edges)
                handle(supervisor)
                code = supervisor.run()
                if code != Exit.OK or supervisor.stopping:
                    break
            return code
        finally:
            notifier.close()


def _phases(run: LocalRun, shares: list[SupervisedStream], store: Store) -> list[list[SupervisedStream]]:
    """Streams that run together, in this order. Shares of two hops begin when there is a bronze table to read."""
    if run.config.bronze_table is None:
        return [shares]
    if run.once:
        return [[run.first_hop(once=True)], shares]
    together = [run.first_hop(once=False), *shares]
    return [together] if open_bronze(run.config, store) is not None else [[run.first_hop(once=True)], together]


def tell(notifier: Notifier, change: StreamChange) -> None:
    """The notice that a change is worth, if any."""
    before, after, subject = change.before, change.after, f"stream {change.after.name}"
    if after.state == StreamState.PARKED:
        notifier.parked(subject, after.error or "")
    elif after.state == StreamState.RESTING:
        notifier.failed(subject, after.error or "")
    elif before.failures and not after.failures and after.state in (StreamState.RUNNING, StreamState.DONE):
        notifier.recovered(subject)


def check_master(url: str) -> None:
    """Raises BadInput for what is not spark://host:port, ClusterMissing when nobody listens there."""
    masters = url.removeprefix("spark://").split(",")
    if not url.startswith("spark://") or not all(masters):
        raise BadInput(detail=f"--via {url}: allowed: spark://host:port (several, separated by commas)")
    faults = []
    for master in masters:
        address = urlsplit(f"spark://{master}")
        try:
            host_port = (address.hostname or "", address.port or DEFAULT_MASTER_PORT)
            with socket.create_connection(host_port, CONNECT_SEC):
                return
        except (OSError, ValueError) as e:
            faults.append(str(e))
    raise ClusterMissing(master=url, detail="; ".join(faults))
