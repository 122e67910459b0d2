"""Certificates are verified by default, and a private authority is made known by the setting that the docs name.

The registry's are in tests/test_registry_confluent.py; here are those who are told (webhook, SMTP) and the stores.
"""

from __future__ import annotations

import smtplib
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from deltalake import DeltaTable

from distributary.config import Email, Notices
from distributary.fleet import notices
from distributary.fleet.notices import Notice, senders_of
from tests.test_registry_confluent import Authority

NOTICE = Notice("failure", "games", "stream a", "x", "2026-01-01T00:00:00Z", "here")
TRUST = "SSL_CERT_FILE"
"""OpenSSL's own variable: Python's clients and those of the stores read it."""


class Secure:
    """A server on loopback with a certificate of a private authority. `asked`: paths of requests that came through."""

    def __init__(self, authority: Authority) -> None:
        self.asked: list[str] = []
        asked = self.asked

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                asked.append(self.path)
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(200 if self.command == "POST" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST = do_HEAD = do_PUT = _answer

            def log_message(self, *_: object) -> None: ...

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: object, client_address: object) -> None: ...

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.issue("server"))
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.port = self._server.server_port
        self.url = f"https://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "private authority")


@pytest.fixture
def secure(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secure]:
    monkeypatch.setattr(notices, "PAUSE_SEC", 0.0)
    server = Secure(authority)
    yield server
    server.close()


def test_a_webhook_is_sent_nothing_before_its_certificate_is_verified(
    secure: Secure, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    [send] = senders_of(Notices.model_validate({"webhooks": [f"{secure.url}/hook"]}))
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        send(NOTICE)
    assert secure.asked == []
    monkeypatch.setenv(TRUST, authority.file)
    send(NOTICE)
    assert secure.asked == ["/hook"]


def test_a_mail_server_is_told_no_password_before_its_certificate_is_verified(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "PAUSE_SEC", 0.0)
    heard: list[bytes] = []
    with _mail_server(authority, heard) as listener:
        keys = {"host": "127.0.0.1", "port": listener.getsockname()[1], "security": "tls", "username": "ann"}
        email = Email.model_validate({**keys, "password": "canary", "sender": "a@b.org", "to": ["c@d.org"]})
        [send] = senders_of(Notices(email=email))
        with pytest.raises(OSError, match="SSLCertVerificationError"):
            send(NOTICE)
        assert heard == []
        monkeypatch.setenv(TRUST, authority.file)
        with pytest.raises(OSError, match=smtplib.SMTPServerDisconnected.__name__):
            send(NOTICE)
        assert heard and heard[0].startswith(b"ehlo")


def _mail_server(authority: Authority, heard: list[bytes]) -> socket.socket:
    """Greets, hears one line and hangs up."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("server"))
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(plain, server_side=True) as client:
                    client.sendall(b"220 ready\r\n")
                    heard.append(client.recv(1000))
            except OSError:
                plain.close()

    threading.Thread(target=serve, daemon=True).start()
    return listener


def test_a_store_is_asked_nothing_before_its_certificate_is_verified(
    secure: Secure, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        "AWS_ENDPOINT_URL": secure.url,
        "AWS_REGION": "here",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "max_retries": "0",
    }
    with pytest.raises(OSError, match=r"(?s)certificate"):
        DeltaTable("s3://bucket/table", storage_options=options)
    assert secure.asked == []
    monkeypatch.setenv(TRUST, authority.file)
    with pytest.raises(OSError, match="404 Not Found"):
        DeltaTable("s3://bucket/table", storage_options=options)
    assert secure.asked
