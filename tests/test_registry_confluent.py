"""How answers of a registry's HTTP server become errors: over a real server on 127.0.0.1 that follows a script."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import pickle
import socket
import ssl
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from distributary.config import RegistryConfig
from distributary.errors import (
    RegistryDenied,
    RegistryDown,
    RegistryRefused,
    RegistryTlsFailed,
    SchemaBroken,
    SchemaIncompatible,
    SchemaInUse,
    SchemaNotFound,
)
from distributary.schemas.registry import Reference, Schema, SchemaVersion
from distributary.schemas.registry.confluent import ConfluentRegistry

TEXT = 'syntax = "proto3"; message Event { int32 a = 1; }'


@dataclass
class Answer:
    status: int = 200
    body: Any = None
    how: str = "json"  # or raw, hang, close


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Stub:
    """A server that gives its answers in order, the last one for ever, and keeps what it was asked."""

    url: str
    answers: list[Answer] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)

    def next(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def _serve(context: ssl.SSLContext | None = None) -> Iterator[Stub]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            script.seen.append(Seen(self.command, self.path, dict(self.headers), body))
            answer = script.next()
            if answer.how == "hang":
                script.release.wait(60)
            if answer.how in ("hang", "close"):
                self.close_connection = True
                return
            content = answer.body.encode() if answer.how == "raw" else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _answer

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a refused TLS handshake is the point of the test

    server = Server(("127.0.0.1", 0), Handler)
    scheme = "http"
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        scheme = "https"
    script = Stub(f"{scheme}://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    try:
        yield script
    finally:
        script.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def stub() -> Iterator[Stub]:
    yield from _serve()


class Sleeps(list[float]):
    def __call__(self, seconds: float) -> None:
        self.append(seconds)


@pytest.fixture
def sleeps() -> Sleeps:
    return Sleeps()


@pytest.fixture
def opened() -> Iterator[list[ConfluentRegistry]]:
    registries: list[ConfluentRegistry] = []
    yield registries
    for registry in registries:
        registry.close()


@pytest.fixture
def connect(stub: Stub, sleeps: Sleeps, opened: list[ConfluentRegistry]) -> Any:
    def open_(**config: Any) -> ConfluentRegistry:
        settings: dict[str, Any] = {"url": stub.url, "attempts": 3, "timeout_sec": 5.0} | config
        opened.append(ConfluentRegistry(RegistryConfig(**settings), sleep=sleeps, jitter=lambda: 1.0))
        return opened[-1]

    return open_


def _error(status: int, code: int | None, message: str = "no") -> Answer:
    return Answer(status, {"error_code": code, "message": message})


# -- good answers ----------------------------------------------------------------------------------------------


def test_a_schema_with_references_is_read(stub: Stub, connect: Any) -> None:
    references = [{"name": "a/b.proto", "subject": "b", "version": 3}]
    stub.answers = [Answer(body={"schema": TEXT, "schemaType": "PROTOBUF", "references": references})]
    assert connect().get(7) == Schema(7, "PROTOBUF", TEXT, (Reference("a/b.proto", "b", 3),))
    assert stub.seen[0].path == "/schemas/ids/7"


def test_a_schema_without_a_type_is_avro(stub: Stub, connect: Any) -> None:
    stub.answers = [Answer(body={"schema": '"string"'})]
    assert connect().get(1).kind == "AVRO"


def test_a_version_is_looked_up_among_the_deleted_ones_too(stub: Stub, connect: Any) -> None:
    stub.answers = [Answer(body={"subject": "a b/c", "id": 4, "version": 2, "schema": TEXT, "schemaType": "PROTOBUF"})]
    assert connect().version("a b/c", 2) == SchemaVersion("a b/c", 2, Schema(4, "PROTOBUF", TEXT))
    assert stub.seen[0].path == "/subjects/a%20b%2Fc/versions/2?deleted=true"


def test_nothing_is_answered_from_the_clients_own_memory(stub: Stub, connect: Any) -> None:
    first = {"subject": "s", "id": 4, "version": 1, "schema": TEXT, "schemaType": "PROTOBUF"}
    stub.answers = [Answer(body=first), Answer(body=first | {"version": 2, "id": 5}), Answer(body=[2, 1])]
    registry = connect()
    assert registry.latest("s").version == 1
    assert registry.latest("s").version == 2
    assert registry.versions("s") == [1, 2]


def test_the_version_is_looked_up_where_registering_answers_with_the_id_alone(stub: Stub, connect: Any) -> None:
    looked_up = {"subject": "s", "id": 9, "version": 3, "schema": TEXT, "schemaType": "PROTOBUF"}
    stub.answers = [Answer(body={"id": 9}), Answer(body=looked_up)]
    reference = Reference("b.proto", "b", 1)
    registered = connect().register("s", TEXT, [reference])
    assert registered == SchemaVersion("s", 3, Schema(9, "PROTOBUF", TEXT, (reference,)))
    assert stub.seen[0].path.startswith("/subjects/s/versions")
    sent = stub.seen[0].body
    assert (sent["schema"], sent["schemaType"]) == (TEXT, "PROTOBUF")
    assert sent["references"] == [{"name": "b.proto", "subject": "b", "version": 1}]


def test_a_permanent_delete_deletes_softly_first(stub: Stub, connect: Any) -> None:
    stub.answers = [_error(404, 40404, "Subject 's' was soft deleted."), Answer(body=[1])]
    connect().delete_subject("s", permanent=True)
    assert [(seen.method, seen.path) for seen in stub.seen] == [
        ("DELETE", "/subjects/s"),
        ("DELETE", "/subjects/s?permanent=true"),
    ]


# -- credentials -----------------------------------------------------------------------------------------------


def test_basic_credentials_are_sent(stub: Stub, connect: Any) -> None:
    stub.answers = [Answer(body=[])]
    connect(username="reader", password="p:w/d").subjects()
    expected = base64.b64encode(b"reader:p:w/d").decode()
    assert stub.seen[0].headers["Authorization"] == f"Basic {expected}"


def test_a_bearer_token_is_sent(stub: Stub, connect: Any) -> None:
    stub.answers = [Answer(body=[])]
    connect(token="t0ken").subjects()
    assert stub.seen[0].headers["Authorization"] == "Bearer t0ken"


def test_without_credentials_no_header_is_sent(stub: Stub, connect: Any) -> None:
    stub.answers = [Answer(body=[])]
    connect().subjects()
    assert "Authorization" not in stub.seen[0].headers


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize(
    ("config", "keys"),
    [({"username": "reader", "password": "s3cret"}, "username and registry.password"), ({"token": "s3cret"}, "token")],
    ids=["basic", "bearer"],
)
def test_refused_credentials_fail_at_once_and_are_not_repeated(
    stub: Stub, connect: Any, sleeps: Sleeps, status: int, config: dict[str, str], keys: str
) -> None:
    stub.answers = [Answer(status, {"error_code": status, "message": "who is s3cret?"})]
    registry = connect(**config)
    with pytest.raises(RegistryDenied) as caught:
        registry.get(1)
    assert caught.value.parameters == {"registry": stub.url, "status": status, "keys": keys}
    shown = "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value)) + registry.name
    assert "s3cret" not in shown
    assert (len(stub.seen), sleeps) == (1, [])


@pytest.mark.parametrize("status", [401, 500])
def test_credentials_that_the_server_repeats_as_the_header_has_them_are_masked(
    stub: Stub, connect: Any, status: int
) -> None:
    encoded = base64.b64encode(b"reader:s3cret>>").decode()
    stub.answers = [_error(status, status, f"Authorization: Basic {encoded} is not known")]
    with pytest.raises((RegistryDenied, RegistryDown)) as caught:
        connect(username="reader", password="s3cret>>").get(1)
    assert encoded not in "".join(traceback.format_exception(caught.value)) + repr(vars(caught.value))


def test_a_secret_that_the_server_repeats_is_masked(stub: Stub, connect: Any) -> None:
    stub.answers = [_error(500, 500, "token s3cret is odd")]
    registry = connect(token="s3cret")
    with pytest.raises(RegistryDown) as caught:
        registry.get(1)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    assert "***" in str(caught.value)


# -- facts about data ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [40401, 40402, 40403])
def test_404_with_a_registry_code_is_not_found_and_asked_once(
    stub: Stub, connect: Any, sleeps: Sleeps, code: int
) -> None:
    stub.answers = [_error(404, code)]
    with pytest.raises(SchemaNotFound) as caught:
        connect().get(999_999)
    assert caught.value.parameters == {"registry": stub.url, "what": "id 999999"}
    assert (len(stub.seen), sleeps) == (1, [])


@pytest.mark.parametrize(
    "answer",
    [
        Answer(404, "", "raw"),
        Answer(404, "<html>default backend - 404</html>", "raw"),
        Answer(404, {"error_code": 404, "message": "HTTP 404 Not Found"}),
        Answer(404, {"detail": "no such resource", "status": 404}),
    ],
    ids=["empty", "html", "wrong path", "no code"],
)
def test_404_that_no_registry_sent_says_to_check_the_url(stub: Stub, connect: Any, answer: Answer) -> None:
    stub.answers = [answer]
    with pytest.raises(RegistryRefused, match=r"registry\.url") as caught:
        connect().get(1)
    assert caught.value.parameters["status"] == 404


def test_409_is_incompatible_with_level_and_version(stub: Stub, connect: Any) -> None:
    stub.answers = [
        _error(409, 409, "FIELD_SCALAR_KIND_CHANGED at #/Event/1"),
        Answer(body=[1, 2]),
        Answer(body={"compatibilityLevel": "FULL"}),
    ]
    with pytest.raises(SchemaIncompatible) as caught:
        connect().register("s", TEXT)
    assert caught.value.parameters == {
        "subject": "s",
        "level": "FULL",
        "version": "2",
        "detail": "FIELD_SCALAR_KIND_CHANGED at #/Event/1",
    }


def test_409_at_a_transitive_global_level_names_all_versions(stub: Stub, connect: Any) -> None:
    stub.answers = [
        _error(409, 40901),
        Answer(body=[1, 2]),
        _error(404, 40408, "no level of its own"),
        Answer(body={"compatibilityLevel": "FULL_TRANSITIVE"}),
    ]
    with pytest.raises(SchemaIncompatible) as caught:
        connect().register("s", TEXT)
    assert (caught.value.parameters["level"], caught.value.parameters["version"]) == ("FULL_TRANSITIVE", "1 to 2")


def test_409_stays_incompatible_when_the_level_cannot_be_read(stub: Stub, connect: Any) -> None:
    stub.answers = [_error(409, 409), _error(503, 503)]
    with pytest.raises(SchemaIncompatible):
        connect(attempts=1).register("s", TEXT)


@pytest.mark.parametrize("code", [42201, 422])
def test_422_on_registering_is_a_broken_schema(stub: Stub, connect: Any, code: int) -> None:
    stub.answers = [_error(422, code, "Syntax error in :1:1")]
    with pytest.raises(SchemaBroken, match="Syntax error"):
        connect().register("s", TEXT)


@pytest.mark.parametrize("code", [42205, 42208, 42209])
def test_422_about_something_else_is_refused(stub: Stub, connect: Any, code: int) -> None:
    stub.answers = [_error(422, code, "Subject s is in read-only mode")]
    with pytest.raises(RegistryRefused, match="read-only"):
        connect().register("s", TEXT)


def test_deleting_what_is_referenced_is_in_use(stub: Stub, connect: Any) -> None:
    stub.answers = [_error(422, 42206, "One or more references exist to the schema {s}")]
    with pytest.raises(SchemaInUse, match="references exist"):
        connect().delete_subject("s")


def test_any_other_refusal_says_what_was_asked(stub: Stub, connect: Any) -> None:
    stub.answers = [_error(405, 405, "HTTP 405 Method Not Allowed")]
    with pytest.raises(RegistryRefused, match=r"ann-value version 3 \(HTTP 405"):
        connect().version("ann-value", 3)


def test_an_unknown_level_is_refused_before_anything_is_sent(stub: Stub, connect: Any) -> None:
    with pytest.raises(RegistryRefused):
        connect().set_compatibility("s", "full")
    assert stub.seen == []


def test_level_none_for_a_subject_to_come_is_fine_where_none_is_no_rule(stub: Stub, connect: Any) -> None:
    stub.answers = [_error(404, 40401)]
    connect().set_compatibility("s", "NONE")
    with pytest.raises(SchemaNotFound):
        connect().set_compatibility("s", "FULL")


def test_the_global_level_has_no_subject(stub: Stub, connect: Any) -> None:
    stub.answers = [Answer(body={"compatibility": "FULL"})]
    connect().set_compatibility("", "FULL")
    assert (stub.seen[0].method, stub.seen[0].path, stub.seen[0].body) == ("PUT", "/config", {"compatibility": "FULL"})


# -- outages ---------------------------------------------------------------------------------------------------

GOOD = Answer(body={"schema": TEXT, "schemaType": "PROTOBUF"})
OUTAGES = {
    **{str(status): _error(status, status) for status in (408, 425, 429, 500, 502, 503, 504, 507, 521)},
    "a page of a gateway": Answer(503, "<html>busy</html>", "raw"),
    "a sign-in page": Answer(200, "<html>sign in</html>", "raw"),
    "nothing": Answer(200, "", "raw"),
    "other json": Answer(200, ["hello"]),
    "half an answer": Answer(200, {"schemaType": "PROTOBUF"}),
    "a closed connection": Answer(how="close"),
}


@pytest.mark.parametrize("name", OUTAGES)
def test_an_outage_is_retried_with_growing_waits_and_then_down(
    stub: Stub, connect: Any, sleeps: Sleeps, name: str
) -> None:
    stub.answers = [OUTAGES[name]]
    with pytest.raises(RegistryDown) as caught:
        connect(attempts=4).get(1)
    assert caught.value.retryable
    assert caught.value.parameters["attempts"] == 4
    assert (len(stub.seen), sleeps) == (4, [0.2, 0.4, 0.8])


@pytest.mark.parametrize("name", OUTAGES)
def test_a_short_outage_is_not_seen(stub: Stub, connect: Any, sleeps: Sleeps, name: str) -> None:
    stub.answers = [OUTAGES[name], GOOD]
    assert connect().get(1).text == TEXT
    assert sleeps == [0.2]


def test_a_registry_that_hangs_is_down_after_the_time_limit(stub: Stub, connect: Any) -> None:
    stub.answers = [Answer(how="hang")]
    with pytest.raises(RegistryDown, match="ReadTimeout"):
        connect(timeout_sec=0.1, attempts=2).get(1)
    assert len(stub.seen) == 2


def test_a_port_where_nobody_listens_is_down(connect: Any) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(RegistryDown, match="ConnectError"):
            connect(url=f"http://127.0.0.1:{port}", attempts=2).get(1)


def test_an_outage_crosses_process_borders_whole(stub: Stub, connect: Any) -> None:
    stub.answers = [_error(503, 503, "busy")]
    with pytest.raises(RegistryDown) as caught:
        connect().get(1)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


# -- TLS -------------------------------------------------------------------------------------------------------


@dataclass
class Authority:
    folder: Path
    name: str = "test authority"

    def __post_init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign(self.name, self.key, authority=True)
        self.file = self._write(f"{self.name}.pem", self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str) -> tuple[str, str]:
        """Paths of a certificate for 127.0.0.1 and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem = serialization.Encoding.PEM
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        certificate = self._sign(name, key, authority=False).public_bytes(pem)
        return self._write(f"{name}.pem", certificate), self._write(f"{name}.key", private)

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, *, authority: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self.name)])
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        )
        if not authority:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([address]), critical=False)
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def _write(self, name: str, content: bytes) -> str:
        path = self.folder / name
        path.write_bytes(content)
        return str(path)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture(params=[False, True], ids=["server certificate", "client certificate too"])
def tls(request: pytest.FixtureRequest, authority: Authority) -> Iterator[tuple[Stub, bool]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    if request.param:
        context.load_verify_locations(authority.file)
        context.verify_mode = ssl.CERT_REQUIRED
    for stub in _serve(context):
        stub.answers = [GOOD]
        yield stub, request.param


def test_tls_with_a_private_authority_and_a_client_certificate(
    tls: tuple[Stub, bool], authority: Authority, connect: Any
) -> None:
    stub, wants_client = tls
    cert, key = authority.issue("client")
    client = {"cert_file": cert, "key_file": key} if wants_client else {}
    assert connect(url=stub.url, ca_file=authority.file, **client).get(1).text == TEXT


def test_an_unknown_authority_is_not_an_outage(
    tls: tuple[Stub, bool], tmp_path: Path, connect: Any, sleeps: Sleeps
) -> None:
    stub, _ = tls
    with pytest.raises(RegistryTlsFailed, match=r"registry\.ca_file") as caught:
        connect(url=stub.url, ca_file=Authority(tmp_path, "another authority").file).get(1)
    assert not caught.value.retryable
    assert (sleeps, stub.seen) == ([], [])


def test_a_missing_client_certificate_is_not_an_outage(
    tls: tuple[Stub, bool], authority: Authority, connect: Any, sleeps: Sleeps
) -> None:
    stub, wants_client = tls
    registry = connect(url=stub.url, ca_file=authority.file)
    if not wants_client:
        assert registry.get(1).text == TEXT
        return
    with pytest.raises(RegistryTlsFailed, match="client certificate"):
        registry.get(1)
    assert sleeps == []


def test_a_certificate_file_that_cannot_be_read_is_named(connect: Any, tmp_path: Path) -> None:
    with pytest.raises(RegistryTlsFailed, match=r"gone\.pem"):
        connect(url="https://127.0.0.1:1", ca_file=str(tmp_path / "gone.pem"))
    broken = tmp_path / "broken.pem"
    broken.write_text("not a certificate")
    with pytest.raises(RegistryTlsFailed, match=r"broken\.pem"):
        connect(url="https://127.0.0.1:1", ca_file=str(broken))
