"""A DAG for Airflow 3: take what has come every ten minutes, then see that all is well.

Put it into Airflow's dags folder. It calls the command `distributary`, which every worker needs, best in an environment
of its own (Airflow pins many libraries); the variable `DISTRIBUTARY` says where it is, if not on the PATH. For a stream
that never rests, take a service (systemd, Kubernetes) in place of a DAG.
"""

from __future__ import annotations

import logging
import os
import subprocess
from datetime import UTC, datetime, timedelta

from airflow.exceptions import AirflowException, AirflowFailException
from airflow.sdk import dag, task

log = logging.getLogger(__name__)

PIPELINE = "/etc/distributary/games.yaml"
ATTENTION, BAD_INPUT = 1, 2
"""Exit codes; 3 (Java, broker, registry, store) and all others are worth another try."""


def call(*arguments: str) -> tuple[int, str]:
    """The command's exit code and what it printed, which goes to the task's log too."""
    command = [os.environ.get("DISTRIBUTARY", "distributary"), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    log.info("%s", done.stdout)
    return done.returncode, done.stdout


@dag(
    schedule=timedelta(minutes=10),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,  # a run takes all that is there, so the hours that were missed need no runs of their own
    max_active_runs=1,  # a second run of a pipeline is refused
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True},
    tags=["distributary"],
)
def distributary_games() -> None:
    @task(execution_timeout=timedelta(hours=1))
    def run() -> None:
        """`distributary run --once`. A task that Airflow kills loses nothing: the next run finishes its batch."""
        code, _ = call("run", PIPELINE, "--once")
        if code == BAD_INPUT:
            raise AirflowFailException("the pipeline file is wrong, or a run is refused: a retry does not help")
        if code not in (0, ATTENTION):
            raise AirflowException(f"exit code {code}: tried again")

    @task(retries=0)
    def status() -> None:
        """`distributary status`: fails where a table is parked or refused, so that Airflow tells somebody."""
        code, said = call("status", PIPELINE)
        if code != 0:
            raise AirflowFailException(said.partition("\n")[0] or f"exit code {code}")

    run() >> status()


distributary_games()
