"""A stand-in for an identity provider: tokens for one client (OAuth 2.0, client credentials), signed with RS256, and
the keys by which a broker verifies them."""

from __future__ import annotations

import base64
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

CLIENT_ID, SECRET = "reader", 'se"cret'
KEY_ID = "k1"


class Tokens:
    """Serves `token_url` and `keys_url` while it is open. `asked`: the scopes for which tokens were given."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._key = rsa.generate_private_key(65537, 2048)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        address = f"http://127.0.0.1:{self._server.server_port}"
        self.token_url, self.keys_url = f"{address}/token", f"{address}/keys"

    def __enter__(self) -> Tokens:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

    def token(self, lives_sec: int = 3600) -> str:
        now = int(time.time())
        claims = {"sub": CLIENT_ID, "iat": now, "exp": now + lives_sec, "scope": "kafka"}
        head = {"alg": "RS256", "typ": "JWT", "kid": KEY_ID}
        body = f"{_text(json.dumps(head).encode())}.{_text(json.dumps(claims).encode())}"
        return f"{body}.{_text(self._key.sign(body.encode(), padding.PKCS1v15(), hashes.SHA256()))}"

    def settings(self) -> dict[str, str]:
        """Of a client of librdkafka."""
        client = {"client.id": CLIENT_ID, "client.secret": SECRET, "token.endpoint.url": self.token_url}
        return {f"sasl.oauthbearer.{key}": value for key, value in {"method": "oidc", **client}.items()}

    def keys(self) -> dict[str, Any]:
        numbers = self._key.public_key().public_numbers()
        said = {"n": numbers.n, "e": numbers.e}
        wide = {name: _text(n.to_bytes((n.bit_length() + 7) // 8, "big")) for name, n in said.items()}
        return {"keys": [{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": KEY_ID, **wide}]}

    def _handler(tokens) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(200, tokens.keys())

            def do_POST(self) -> None:
                body = parse_qs(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
                given = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
                # RFC 6749, 2.3.1: both are url-encoded, which not every client does.
                if f"{CLIENT_ID}:{SECRET}" not in (given, unquote(given)):
                    self._answer(401, {"error": "invalid_client"})
                    return
                tokens.asked.append(body.get("scope", [""])[0])
                self._answer(200, {"access_token": tokens.token(), "token_type": "bearer", "expires_in": 3600})

            def _answer(self, status: int, said: dict[str, Any]) -> None:
                text = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                return

        return Handler


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
