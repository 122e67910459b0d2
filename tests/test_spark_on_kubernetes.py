"""`--master k8s://`: what Spark's own submission sends to a cluster when it is given the line of docs/cluster.md."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pyspark
import pytest

from distributary.spark.java import find_java
from tests.processes import QUICK, SERIAL
from tests.services.kubernetes import Kubernetes
from tests.test_deploy import KUBERNETES
from tests.test_submit_docs import DOCS, commands, job

DEPLOY = Path(__file__).parent.parent / "deploy"


def documented() -> list[str]:
    """The words behind `spark-submit` in the recipe, with those of the array that it uses; no jars, for no network."""
    (words,) = (words for _, words in commands() if any(word.startswith("k8s://") for word in words))
    (array,) = re.findall(r"^DISTRIBUTARY=\((.*?)^\)", (DOCS / "cluster.md").read_text(), re.MULTILINE | re.DOTALL)
    at = words.index("--packages")
    words[at : at + 2] = []
    return [part for word in words for part in (shlex.split(array) if word.startswith("${DISTR") else [word])]


@pytest.mark.spark
def test_sparks_submission_makes_of_the_documented_line_what_kubernetes_allows(tmp_path: Path) -> None:
    words = documented()
    with Kubernetes(tmp_path, runs=False) as cluster:
        words[words.index("--master") + 1] = f"k8s://{cluster.address}"
        environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith("KUBE")},
            "JAVA_HOME": str(find_java(os.environ)),
            "SPARK_SUBMIT_OPTS": f"{QUICK} {SERIAL}",
            "PYSPARK_PYTHON": sys.executable,
            "HOME": str(tmp_path),  # no kubeconfig of whoever runs this
        }
        submit = Path(str(pyspark.__path__[0])) / "bin" / "spark-submit"
        done = subprocess.run(
            [str(submit), *words], cwd=DEPLOY, env=environ, capture_output=True, text=True, timeout=400
        )
        assert done.returncode == 0, done.stderr[-3000:]
    for thing in cluster.made:
        kubernetes_validate.validate(thing, KUBERNETES, strict=True)
    made = {thing["kind"]: thing for thing in cluster.made}
    pod = made["Pod"]
    driver = next(one for one in pod["spec"]["containers"] if one.get("args"))
    assert driver["args"][0] == "driver"
    assert driver["args"][-3:] == words[job(words) :] == ["local:///opt/job.py", "run", "/etc/distributary/games.yaml"]
    assert driver["image"] == "IMAGE" and pod["spec"]["serviceAccountName"] == "distributary-spark"
    assert {"name": "config", "mountPath": "/etc/distributary"}.items() <= next(
        mount for mount in driver["volumeMounts"] if mount["name"] == "config"
    ).items()
    assert pod["spec"]["terminationGracePeriodSeconds"] == 120, "the template's"
    password = next(value for value in driver["env"] if value["name"] == "REGISTRY_PASSWORD")
    assert password["valueFrom"]["secretKeyRef"]["name"] == "distributary-games"
    settings = made["ConfigMap"]["data"]["spark.properties"]
    assert "spark.executorEnv.TOKIO_WORKER_THREADS=2" in settings
