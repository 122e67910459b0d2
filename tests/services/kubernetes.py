"""As much of Kubernetes as Spark asks for: an API that keeps what is made, and runs pods as processes (as root).

A pod's process has a mount name space of its own: its config maps lie where the pod says, Spark at /opt/spark, and the
names of services in its /etc/hosts. All pods share the machine's loopback. It knows no images: what an image brings is
what this machine has. Spark's own images start by a script of Spark's; `_command` does what that does.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyspark

from distributary.spark.java import find_java

Thing = dict[str, Any]
SPARK = "/opt/spark"


class Pod:
    """A pod and its process, which begins once all that it mounts is there."""

    def __init__(self, thing: Thing, folder: Path) -> None:
        self.thing, self.folder = thing, folder
        self.log = folder / "log"
        folder.mkdir(parents=True)
        self.log.touch()
        self._container = thing["spec"]["containers"][0]
        self._process: subprocess.Popen[bytes] | None = None
        self._made: list[Path] = []

    def configure(self, things: Mapping[tuple[str, str], Thing]) -> None:
        """Tell it what there is."""
        services = [f"{name}.default.svc" for kind, name in things if kind == "services"]
        # Written over, not anew: a process has it mounted.
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost {' '.join(services)}\n")
        volumes = self.thing["spec"].get("volumes", [])
        names = [volume["configMap"]["name"] for volume in volumes if "configMap" in volume]
        if self._process is None and all(("configmaps", name) in things for name in names):
            self._start(things)

    def _start(self, things: Mapping[tuple[str, str], Thing]) -> None:
        script = self.folder / "run.sh"
        script.write_text("\n".join(["set -e", *self._mounts(things), f"exec {shlex.join(self._command())}"]))
        with self.log.open("wb") as out:
            self._process = subprocess.Popen(
                ["unshare", "-m", "bash", str(script)],
                env=self._environ(),
                cwd="/tmp",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def role(self) -> str:
        """`driver` or `executor`, as Spark marks it."""
        return str(self.thing["metadata"].get("labels", {}).get("spark-role", ""))

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def exit_code(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)
        for folder in reversed(self._made):
            folder.rmdir()
        self._made.clear()

    def status(self) -> Thing:
        code = self.exit_code()
        phase = "Running" if code is None else "Failed" if code else "Succeeded"
        ended = {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
        state = {"running": {"startedAt": _now()}} if code is None else ended
        about = {"name": self._container["name"], "ready": code is None, "restartCount": 0, "state": state}
        return {"phase": phase, "podIP": "127.0.0.1", "hostIP": "127.0.0.1", "containerStatuses": [about]}

    def _mounts(self, things: Mapping[tuple[str, str], Thing]) -> Iterator[str]:
        home = Path(str(pyspark.__path__[0]))
        program = "from distributary.cli.job import main\nmain()\n"
        yield f"mount --bind {self.folder / 'hosts'} /etc/hosts"
        yield f"mount -t tmpfs none /opt && mkdir -p {SPARK}/conf {SPARK}/work-dir"
        yield f"for part in bin jars python sbin; do ln -s {home}/$part {SPARK}/$part; done"
        yield f"printf %s {shlex.quote(program)} > /opt/job.py"
        volumes = {volume["name"]: volume for volume in self.thing["spec"].get("volumes", [])}
        for mount in self._container.get("volumeMounts", []):
            place, volume = Path(mount["mountPath"]), volumes[mount["name"]]
            if not place.is_relative_to("/opt"):
                self._make(place)
            yield f"mkdir -p {place} && mount -t tmpfs none {place}"
            kept = things["configmaps", volume["configMap"]["name"]] if "configMap" in volume else {}
            for name, text in kept.get("data", {}).items():
                yield f"printf %s {shlex.quote(text)} > {place}/{name}"

    def _make(self, folder: Path) -> None:
        """A place to mount something at; it goes with the pod."""
        for path in [*reversed(folder.parents), folder]:
            if not path.exists():
                path.mkdir()
                self._made.append(path)

    def _environ(self) -> dict[str, str]:
        image = {
            "PATH": os.environ["PATH"],
            "HOME": str(Path.home()),
            "JAVA_HOME": str(find_java(os.environ)),
            "SPARK_HOME": SPARK,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        given = {}
        for one in self._container.get("env", []):
            field = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            fields = {"status.podIP": "127.0.0.1", "metadata.name": self.thing["metadata"]["name"]}
            given[one["name"]] = fields.get(field, one.get("value", ""))
        return image | given

    def _command(self) -> list[str]:
        environ = self._environ()
        kind, *rest = self._container["args"]
        if kind == "driver":
            bound = f"spark.driver.bindAddress={environ['SPARK_DRIVER_BIND_ADDRESS']}"
            return [f"{SPARK}/bin/spark-submit", "--conf", bound, "--deploy-mode", "client", *rest]
        names = sorted((name for name in environ if name.startswith("SPARK_JAVA_OPT_")), key=lambda n: int(n[15:]))
        memory = environ["SPARK_EXECUTOR_MEMORY"]
        about = {
            "driver-url": "DRIVER_URL",
            "executor-id": "EXECUTOR_ID",
            "cores": "EXECUTOR_CORES",
            "app-id": "APPLICATION_ID",
            "hostname": "EXECUTOR_POD_IP",
            "resourceProfileId": "RESOURCE_PROFILE_ID",
            "podName": "EXECUTOR_POD_NAME",
        }
        return [
            f"{environ['JAVA_HOME']}/bin/java",
            *(environ[name] for name in names),
            *(f"-Xms{memory}", f"-Xmx{memory}", "-cp", f"{SPARK}/conf:{SPARK}/jars/*"),
            "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
            *(word for option, name in about.items() for word in (f"--{option}", environ[f"SPARK_{name}"])),
        ]


class Kubernetes:
    """`address` of its API. `made`: each thing as it was first sent. `runs`: pods are run, not only kept."""

    def __init__(self, folder: Path, runs: bool = True) -> None:
        self.folder, self._runs = folder, runs
        self.things: dict[tuple[str, str], Thing] = {}
        self.pods: dict[str, Pod] = {}
        self.made: list[Thing] = []
        self._lock = threading.RLock()
        handler = type("Handler", (_Handler,), {"kubernetes": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pod in self.pods.values():
            pod.kill()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def kept(self, plural: str, name: str) -> Thing | None:
        """A thing as it is now."""
        with self._lock:
            thing = self.things.get((plural, name))
            if thing is not None and plural == "pods" and name in self.pods:
                thing["status"] = self.pods[name].status()
            return thing

    def put(self, plural: str, thing: Thing) -> Thing:
        with self._lock:
            name = thing["metadata"]["name"]
            before = self.things.get((plural, name))
            if before is None:
                self.made.append(json.loads(json.dumps(thing)))
            number = str(len(self.made))
            uid = before["metadata"]["uid"] if before else f"uid-{number}"
            thing["metadata"] |= {"uid": uid, "namespace": "default", "resourceVersion": number}
            thing["metadata"]["creationTimestamp"] = _now()
            self.things[plural, name] = thing
            if plural == "pods" and name not in self.pods and self._runs:
                self.pods[name] = Pod(thing, self.folder / name)
            for pod in self.pods.values():
                pod.configure(self.things)
            return self.kept(plural, name) or thing

    def listed(self, plural: str, selector: str) -> list[Thing]:
        """Those with the labels of `a=b,c=d`; any other condition holds for all."""
        wanted = dict(re.findall(r"([^,=!]+)=([^,]+)", selector))
        with self._lock:
            names = [name for kind, name in self.things if kind == plural]
            things = [thing for name in names if (thing := self.kept(plural, name))]
        return [t for t in things if wanted.items() <= t["metadata"].get("labels", {}).items()]

    def remove(self, plural: str, name: str) -> Thing | None:
        with self._lock:
            if plural == "pods" and name in self.pods:
                self.pods[name].kill()
            return self.things.pop((plural, name), None)


class _Handler(BaseHTTPRequestHandler):
    kubernetes: Kubernetes

    def do_POST(self) -> None:
        plural, _ = self._place()
        self._answer(201, self.kubernetes.put(plural, self._body()))

    def do_PATCH(self) -> None:
        plural, name = self._place()
        sent, before = self._body(), self.kubernetes.kept(plural, name)
        whole = "apply" in self.headers.get("Content-Type", "") or before is None
        self._answer(200, self.kubernetes.put(plural, sent if whole else _merged(before or {}, sent)))

    do_PUT = do_PATCH

    def do_GET(self) -> None:
        plural, name = self._place()
        if name:
            self._answer_found(self.kubernetes.kept(plural, name))
            return
        about = {"apiVersion": "v1", "kind": f"{plural[:-1].capitalize()}List", "metadata": {"resourceVersion": "1"}}
        self._answer(200, {**about, "items": self.kubernetes.listed(plural, self._asked("labelSelector"))})

    def do_DELETE(self) -> None:
        plural, name = self._place()
        if name:
            self._answer_found(self.kubernetes.remove(plural, name))
            return
        for thing in self.kubernetes.listed(plural, self._asked("labelSelector")):
            self.kubernetes.remove(plural, thing["metadata"]["name"])
        self._answer(200, {"apiVersion": "v1", "kind": "Status", "status": "Success"})

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _place(self) -> tuple[str, str]:
        """The kind of things, and a name or nothing."""
        parts = urllib.parse.urlsplit(self.path).path.partition("/namespaces/")[2].split("/")
        return (*parts[1:3], "", "")[0], (*parts[1:3], "", "")[1]

    def _asked(self, name: str) -> str:
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query)).get(name, "")

    def _body(self) -> Thing:
        body: Thing = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        return body

    def _answer_found(self, thing: Thing | None) -> None:
        absent = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"}
        self._answer(404 if thing is None else 200, absent if thing is None else thing)

    def _answer(self, code: int, body: Thing) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def _merged(into: Mapping[str, Any], given: Mapping[str, Any]) -> Thing:
    result = dict(into)
    for key, value in given.items():
        before = result.get(key)
        result[key] = _merged(before, value) if isinstance(value, dict) and isinstance(before, dict) else value
    return result


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
