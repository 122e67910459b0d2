"""A schema registry with the Confluent REST API: Apicurio 3.0.9, ccompat v7.

Later versions refuse a new optional field under FULL ("fields removed without reservation"); Confluent's own
registry accepts it, and so does this one.
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.processes import SERVICE_JAVA
from tests.services import Server, free_ports, maven

ARCHIVE = "io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all"


class Registry(Server):
    """A registry. Its data are in memory, or in `folder` with `keep=True`, and then outlive `stop`.

    Args:
        users: name -> password; empty = open to all.
        compatibility: the global level (Apicurio's own default is NONE, Confluent's is BACKWARD).
    """

    name = "registry"

    def __init__(
        self,
        folder: Path,
        *,
        users: Mapping[str, str] | None = None,
        keep: bool = False,
        compatibility: str = "BACKWARD",
    ) -> None:
        super().__init__(folder)
        self.users = dict(users or {})
        self._keep = keep
        self._compatibility = compatibility
        (self._jar,) = maven.archive(self.name, ARCHIVE).glob("*-runner.jar")
        (self._port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def command(self) -> list[str]:
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self._port),
            "quarkus.http.access-log.enabled": "false",
            "quarkus.log.level": "WARN",
        }
        if self._keep:
            settings["apicurio.datasource.url"] = f"jdbc:h2:file:{self.folder / 'db'}"
        if self.users:
            settings |= self._basic_auth()
        properties = (f"-D{key}={value}" for key, value in settings.items())
        return [self.java, *SERVICE_JAVA, *properties, "-jar", str(self._jar)]

    def start(self) -> Registry:
        super().start()
        if self._compatibility != "NONE":
            self.request("PUT", "/config", {"compatibility": self._compatibility})
        return self

    def is_ready(self) -> bool:
        return isinstance(self.request("GET", "/subjects"), list)

    def request(self, method: str, path: str, body: object = None) -> object:
        """One call as the first user; the parsed answer. Raises OSError (urllib.error.HTTPError) else."""
        request = urllib.request.Request(self.url + path, method=method)
        request.add_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        for name, password in list(self.users.items())[:1]:
            token = base64.b64encode(f"{name}:{password}".encode()).decode()
            request.add_header("Authorization", f"Basic {token}")
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(request, data, timeout=60) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as exc:
            exc.close()
            raise

    def _basic_auth(self) -> dict[str, str]:
        embedded = "quarkus.security.users.embedded"
        settings = {
            "quarkus.http.auth.basic": "true",
            f"{embedded}.plain-text": "true",
            "quarkus.http.auth.permission.p.paths": "/apis/ccompat/*",
            "quarkus.http.auth.permission.p.policy": "authenticated",
        }
        for name, password in self.users.items():
            settings |= {f"{embedded}.users.{name}": password, f"{embedded}.roles.{name}": "sr-admin"}
        return settings
