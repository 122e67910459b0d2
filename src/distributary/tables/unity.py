"""Unity Catalog's REST API, as far as tables outside of it need it: credentials that it vends for a path or a table.

The open-source server and Databricks have the same calls (`api/all.yaml` of unitycatalog/unitycatalog, "Generate
temporary path credentials", "Generate temporary table credentials"). `tests/unity_contract.py` says what must hold.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any, Literal

from distributary.backoff import Backoff
from distributary.redaction import redacted

PathOperation = Literal["PATH_READ", "PATH_READ_WRITE"]
TableOperation = Literal["READ", "READ_WRITE"]

API = "/api/2.1/unity-catalog"
TIMEOUT_SEC = 10.0
ATTEMPTS = 3
PAUSE_SEC = 0.2
AGAIN = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses of a server that may answer later."""
_AWS = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Elsewhere nobody is to see the token, and urllib would send it along."""

    def redirect_request(self, *_: Any) -> None:
        return None


class CatalogDown(ConnectionError):
    """Unity Catalog does not answer, or does not give what it was asked for; says what. It counts as a fault of the
    whole store: nothing is set aside, and the batch comes again. `status`: of its answer, where there was one."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Vended:
    """Credentials for a while. `options`: as delta-rs names them. `since`, `ends`: seconds since 1970; None: nobody
    said when."""

    options: Mapping[str, str] = field(repr=False)
    since: float
    ends: float | None = None

    def is_half_over(self, now: float) -> bool:
        """Whether to ask anew: a task that gets them has at least half of their time left."""
        return self.ends is not None and now >= self.since + (self.ends - self.since) / 2

    def is_over(self, now: float) -> bool:
        return self.ends is not None and now >= self.ends


@dataclass(frozen=True)
class UnityCatalog:
    """The catalog at `url`: `https://acme.cloud.databricks.com`, `http://localhost:8080`. Every method raises
    CatalogDown."""

    url: str
    token: str | None = field(default=None, repr=False)

    def path_credentials(self, place: str, operation: PathOperation) -> Vended:
        """For all that lies below `place`, an external location or a folder in one."""
        body = {"url": place, "operation": operation}
        return self._vended(place, "/temporary-path-credentials", body)

    def table_credentials(self, name: str, operation: TableOperation) -> Vended:
        """For the table of this full name, `main.silver.chess`."""
        about = self.call("GET", f"/tables/{name}", name) or {}
        body = {"table_id": about.get("table_id"), "operation": operation}
        return self._vended(name, "/temporary-table-credentials", body)

    def _vended(self, what: str, path: str, body: Mapping[str, Any]) -> Vended:
        now = time.time()
        answer = self.call("POST", path, what, body) or {}
        ends = answer.get("expiration_time")
        return Vended(self._options(what, answer), now, None if ends is None else float(ends) / 1000)

    def _options(self, what: str, answer: Mapping[str, Any]) -> dict[str, str]:
        if keys := answer.get("aws_temp_credentials") or answer.get("r2_temp_credentials"):
            # A server with static keys may give no session token.
            return {ours: str(keys[theirs]) for theirs, ours in _AWS.items() if keys.get(theirs)}
        if sas := (answer.get("azure_user_delegation_sas") or {}).get("sas_token"):
            return {"azure_storage_sas_key": str(sas)}
        if token := (answer.get("azure_aad") or {}).get("aad_token"):
            return {"azure_storage_token": str(token)}
        if answer.get("gcp_oauth_token"):
            raise CatalogDown(
                f"Unity Catalog gives a token of Google's for {what}, which delta-rs cannot take: leave tables.unity "
                "out, and give google_service_account_key in tables.storage_options"
            )
        raise CatalogDown(f"Unity Catalog at {self.url} gives no credentials for {what} that are known here")

    def call(
        self, method: str, path: str, what: str, body: Mapping[str, Any] | None = None, *, absent: bool = False
    ) -> dict[str, Any] | None:
        """The answer; None where there is none, and, with `absent`, where what is asked about is not there."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(_base(self.url) + path, data, headers, method=method)
        opener = urllib.request.build_opener(_NoRedirects)
        why, status = "", None
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(Backoff(PAUSE_SEC).rest_sec(attempt))
            try:
                with opener.open(request, timeout=TIMEOUT_SEC) as answer:
                    return _content(answer.read())
            except urllib.error.HTTPError as e:
                why, status = f"answers {e.code}: {_message(e)}", e.code
                if absent and status == 404:
                    return None
                if status not in AGAIN:
                    break
            except (OSError, ValueError, HTTPException) as e:
                why = f"does not answer: {getattr(e, 'reason', None) or e}"
        raise CatalogDown(redacted(f"Unity Catalog at {self.url} {why} (asked about {what})"), status)


def _base(url: str) -> str:
    plain = url.rstrip("/")
    return plain if plain.endswith(API) else plain + API


def _content(body: bytes) -> dict[str, Any] | None:
    """Raises ValueError."""
    content = json.loads(body or b"null")
    if content is not None and not isinstance(content, dict):
        raise ValueError("what it sends is no JSON object")
    return content


def _message(error: urllib.error.HTTPError) -> str:
    """What the server says of a fault, in one line."""
    with error:
        try:
            body = error.read(10_000)
            content = json.loads(body)
            text = " ".join(str(content[key]) for key in ("error_code", "message") if content.get(key)) or str(content)
        except (OSError, ValueError, AttributeError, HTTPException):
            text = str(error.reason)
    return " ".join(text.split())[:300]
