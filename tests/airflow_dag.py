"""deploy/airflow by Airflow itself: it is loaded, and its tasks do with each exit code what Airflow is to do.

    python tests/airflow_dag.py DAG_FILE

For an environment that has Airflow and nothing of ours; `make airflow` makes one.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(tempfile.mkdtemp(prefix="airflow-"))
os.environ |= {"AIRFLOW_HOME": str(FOLDER), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}

# ruff: noqa: E402
from airflow.dag_processing.dagbag import DagBag
from airflow.exceptions import AirflowException, AirflowFailException

EXPECTED: dict[tuple[str, int], Any] = {
    ("run", 0): None,
    ("run", 1): None,
    ("run", 2): AirflowFailException,
    ("run", 3): AirflowException,
    ("run", 130): AirflowException,
    ("status", 0): None,
    ("status", 1): AirflowFailException,
    ("status", 3): AirflowFailException,
}


def came_of(callable_: Any, code: int) -> tuple[Any, str]:
    """What a task raises where the command ends with `code`, and what the command was given."""
    command, given = FOLDER / "distributary", FOLDER / "given"
    command.write_text(f'#!/bin/sh\necho "$@" >{given}\necho "games: NOT WELL (chess is parked)"\nexit {code}\n')
    command.chmod(0o755)
    os.environ["DISTRIBUTARY"] = str(command)
    try:
        callable_()
    except AirflowException as error:
        return type(error), given.read_text()
    return None, given.read_text()


def main(file: str) -> None:
    bag = DagBag(dag_folder=file)
    assert not bag.import_errors, bag.import_errors
    (dag,) = bag.dags.values()
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert dag.get_task("status").upstream_task_ids == {"run"}
    for (task, code), expected in EXPECTED.items():
        raised, given = came_of(dag.get_task(task).python_callable, code)
        assert raised is expected, f"{task} with exit code {code}: {raised}, not {expected}"
        assert given.split()[:2] == [task, "/etc/distributary/games.yaml"], given
    print(f"Airflow takes {file}: tasks {', '.join(dag.task_ids)}; {len(EXPECTED)} exit codes tried")


if __name__ == "__main__":
    main(sys.argv[1])
