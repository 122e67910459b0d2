"""Canaries: a secret of each kind that a pipeline file may hold, and no place in which it may be found but its own."""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml

from distributary.cli.entry import execute
from distributary.cli.output import LogLines, note, say_json
from distributary.config import Notices, load
from distributary.errors import BadInput
from distributary.errors.border import in_words
from distributary.fleet import notices
from distributary.redaction import MASK, hide, redacted


class Canaries:
    """Secrets in files of their own, and what was found of them elsewhere."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "secrets"
        self.folder.mkdir(mode=0o700)
        self.known: dict[str, str] = {}

    def new(self, kind: str, text: str = "{}") -> str:
        """A reference to a new secret, which is a part of `text`."""
        value = f"canary-{len(self.known)}-bird"
        self.known[kind] = value
        (self.folder / kind).write_text(text.format(value))
        return f"${{file:{self.folder / kind}}}"

    def in_text(self, text: str) -> set[str]:
        """Kinds of the secrets in `text`, as they are or as a request's header has them."""
        return {kind for kind, value in self.known.items() if any(form in text for form in _forms(value))}

    def in_files(self, root: Path) -> dict[str, set[str]]:
        """Files below `root` that hold secrets, and of which kinds."""
        files = [path for path in root.rglob("*") if path.is_file() and self.folder not in path.parents]
        found = {str(path): self.in_text(path.read_bytes().decode("latin-1")) for path in files}
        return {path: kinds for path, kinds in found.items() if kinds}


def _forms(value: str) -> list[str]:
    # Base64 of a text that holds it: three ways, by where it begins.
    coded = [base64.b64encode(b"x" * skip + value.encode()).decode()[4:-4] for skip in range(3)]
    return [value, *coded]


@pytest.fixture
def canaries(tmp_path: Path) -> Canaries:
    return Canaries(tmp_path)


class Echo:
    """A server that refuses everything with `status`, and repeats what it was sent."""

    def __init__(self, status: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = json.dumps(
                    {"error_code": status, "message": f"you said {dict(self.headers)} {self.path}"}
                ).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _answer

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def echoes() -> Iterator[dict[str, str]]:
    servers = {str(status): Echo(status) for status in (200, 400, 401, 404, 500)}
    yield {status: echo.url for status, echo in servers.items()} | {"refused": "http://127.0.0.1:1"}
    for echo in servers.values():
        echo.server.shutdown()
        echo.server.server_close()


def pipeline(root: Path, canaries: Canaries, source: str, registry: str, url: str) -> Path:
    """A pipeline file with a secret at every key that may hold one."""
    new = canaries.new
    sources: dict[str, dict[str, Any]] = {
        "delta": {"type": "delta", "path": str(root / "source")},
        "kafka": {
            "type": "kafka",
            "bootstrap_servers": "127.0.0.1:1",
            "topic": "events",
            "security": {
                "protocol": "SASL_SSL",
                "mechanism": "PLAIN",
                "username": "ann",
                "password": new("kafka"),
            },
            "options": {
                "sasl.oauthbearer.client.credentials.client.secret": new("kafka_option"),
                "ssl.truststore.password": new("kafka_truststore"),
                "ssl.keystore.key": new(
                    "kafka_keystore_key", "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----"
                ),
                "ssl.keystore.type": "PEM",
            },
        },
        "datastream": {
            "type": "datastream",
            "path": "s3a://bucket/shop",
            "storage_options": {
                "AWS_ENDPOINT_URL": url,
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "eu-west-1",
                "AWS_ACCESS_KEY_ID": new("source_key_id"),
                "AWS_SECRET_ACCESS_KEY": new("source_key"),
                "AWS_SESSION_TOKEN": new("source_token"),
            },
        },
    }
    google = {"GOOGLE_SERVICE_ACCOUNT_KEY": new("google", '{{"private_key": "{}", "client_email": 3')}
    azure = {"AZURE_STORAGE_ACCOUNT_KEY": new("azure")}
    conf = {
        "spark.hadoop.fs.s3a.secret.key": new("s3a"),
        "spark.hadoop.fs.azure.account.key.acc.dfs.core.windows.net": new("abfs"),
        "spark.hadoop.google.cloud.auth.service.account.private.key": new("gs"),
        "spark.hadoop.javax.jdo.option.ConnectionPassword": new("metastore"),
    }
    roots: dict[str, tuple[str, dict[str, str]]] = {
        "delta": (str(root / "lake"), {**google, **azure}),
        "kafka": (str(root / "lake"), {**google, **azure}),
        "datastream": (str(root / "lake"), {**google, **azure}),
        "gs": ("gs://bucket/lake", google),
    }
    kind, _, place = source.partition(" to ")
    where, given = roots[place or kind]
    document: dict[str, Any] = {
        "pipeline": "games",
        "source": sources[kind],
        "tables": {"root": where, "storage_options": given},
        "trigger": "once",
        "spark": {"master": "local[2]", "conf": conf},
        "notices": {
            "webhooks": [new("webhook", f"{url}/services/{{}}"), new("webhook_odd", f"{url}/services/ ü/{{}}\n")],
            "email": {
                "host": "127.0.0.1",
                "port": 1,
                "username": "ann",
                "password": new("smtp"),
                "sender": "a@example.org",
                "to": ["b@example.org"],
            },
        },
    }
    if kind != "datastream":
        auth = {"username": "ann", "password": new("basic")} if registry == "basic" else {"token": new("bearer")}
        document["registry"] = {"url": url, "attempts": 1, "timeout_sec": 5, **auth}
    else:
        document["tables"]["merged"] = "{table}"
    file = root / "pipeline.yaml"
    file.write_text(yaml.safe_dump(document))
    return file


COMMANDS = [
    ["check"],
    ["status", "--json"],
    ["workflow", "plan", "--clusters", "2"],
    ["workflow", "databricks"],
    ["grants"],
    ["views"],
    ["maintain"],
    ["clean"],
]


@pytest.mark.usefixtures("old_signals")
@pytest.mark.parametrize(
    ("source", "registry", "answer"),
    [
        ("delta", "basic", "401"),
        ("kafka", "bearer", "500"),
        ("datastream", "basic", "400"),
        ("datastream", "basic", "200"),
        ("delta to gs", "bearer", "refused"),
    ],
)
def test_no_command_that_fails_says_or_writes_a_secret(
    source: str,
    registry: str,
    answer: str,
    tmp_path: Path,
    canaries: Canaries,
    echoes: dict[str, str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    file = pipeline(tmp_path, canaries, source, registry, echoes[answer])
    for command in COMMANDS:
        more = ["--out", str(tmp_path / "bundle")] if command[-1] == "databricks" else []
        execute(["--debug", *command, str(file), *more])
        said = capfd.readouterr()
        assert canaries.in_text(said.out + said.err) == set(), f"{command}: {said.err}"
    assert canaries.in_files(tmp_path) == {}


def test_a_secret_is_hidden_in_each_form_in_which_it_may_be_repeated() -> None:
    whole = 'pass"word\\4711\nsecond line of it'
    hide(whole)
    for form in (whole, json.dumps(whole), repr(whole), quote(whole, safe=""), "xx second line of it xx"):
        assert "4711" not in redacted(form) and "second" not in redacted(form)
    hide(json.dumps({"private_key": "-----BEGIN-----\nMIIE4711MIIE4711\n", "client_email": "ann@example.org"}))
    assert redacted("MIIE4711MIIE4711, ann@example.org") == f"{MASK}, ann@example.org"


def test_what_stands_in_texts_by_itself_is_no_secret() -> None:
    for word in ("password", "true", "minioadmin", ""):
        hide(word)
        assert redacted(f"registry.{word} is missing") == f"registry.{word} is missing"


def test_errors_logs_json_and_the_words_of_a_border_hide_what_a_pipeline_file_holds(
    tmp_path: Path, canaries: Canaries, capfd: pytest.CaptureFixture[str]
) -> None:
    load(pipeline(tmp_path, canaries, "kafka", "basic", "http://127.0.0.1:1"))
    text = " ".join(canaries.known.values())
    note(text)
    say_json({"text": text})
    record = logging.LogRecord("distributary", logging.INFO, "f", 1, "%s", (text,), None)
    said = capfd.readouterr()
    words = [LogLines().format(record), in_words(ValueError(text)), str(BadInput(detail=text)), said.out, said.err]
    assert [canaries.in_text(each) for each in words] == [set()] * len(words)
    assert len(canaries.known) > 10


@pytest.mark.parametrize("path", ["services/canary-x-bird", "services/ canary-x-bird", "ü/canary-x-bird\t"])
def test_a_webhook_whose_address_is_malformed_is_logged_without_it(
    path: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "PAUSE_SEC", 0.0)
    told = notices.Notifier("games", Notices.model_validate({"webhooks": [f"http://127.0.0.1:1/{path}"]}))
    told.failed("stream a", "x")
    told.close(60)
    assert "the webhook at 127.0.0.1" in caplog.text
    assert "canary" not in caplog.text
