"""A registry that speaks Confluent's REST API: Confluent, Apicurio (ccompat), Karapace, Redpanda.

confluent-kafka's client makes the requests (addresses, basic and bearer auth, TLS). What it does besides is turned
off here, because it would hide the truth from the caller:

- its retries (`max.retries`): too few statuses, and invisible. Ours are below, with full jitter;
- its caches: the latest version of a subject is kept for ever by default, and a schema that was registered once is
  answered from memory even after its subject was deleted;
- no time limit at all by default.

Error codes are those of https://docs.confluent.io/platform/current/schema-registry/develop/api.html#errors.
"""

from __future__ import annotations

import contextlib
import ssl
import time
import weakref
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from confluent_kafka.schema_registry import Schema as ClientSchema
from confluent_kafka.schema_registry import SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.common._httpx_compat import httpx
from confluent_kafka.schema_registry.error import SchemaRegistryError

from distributary.backoff import Backoff, any_chance
from distributary.errors import (
    DistributaryError,
    RegistryDenied,
    RegistryDown,
    RegistryRefused,
    RegistryTlsFailed,
    SchemaBroken,
    SchemaIncompatible,
    SchemaInUse,
    SchemaNotFound,
)
from distributary.schemas.registry import GLOBAL, Reference, Schema, SchemaVersion, check_level

if TYPE_CHECKING:
    from distributary.config import RegistryConfig

__all__ = ["ConfluentRegistry"]

T = TypeVar("T")

#: 4xx that pass by themselves (RFC 9110 15.5.9, RFC 8470, RFC 6585); every 5xx does too.
_PASSING = {408, 425, 429}
#: 422 that says nothing about the schema text: operation not permitted, reference exists, subject, size.
_NOT_THE_TEXT = {42205, 42206, 42208, 42209}
_REFERENCE_EXISTS = 42206
_CHECK_URL = "Check registry.url: it must be the base of the registry's REST API."


BACKOFF = Backoff(first_sec=0.2, longest_sec=10.0, jitter=1.0)


class ConfluentRegistry:
    """A `Registry` over HTTP. One per process; not for pickling.

    Asked `config.attempts` times in all: 408, 425, 429, 5xx, time-outs, broken connections and answers that are no
    JSON are tried again, then `RegistryDown`. 401 and 403 are `RegistryDenied` at once. 404 is `SchemaNotFound` only
    with a registry's own error code (40401 to 40499): a wrong address or an empty gateway also answers 404, and that
    must not turn good rows into rows of an unknown schema; it is `RegistryRefused`.
    """

    def __init__(
        self,
        config: RegistryConfig,
        *,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = any_chance,
    ) -> None:
        if config.url is None:
            raise ValueError("registry.url is needed")
        self._name = ", ".join(_without_userinfo(url.strip()) for url in config.url.split(","))
        self._secrets = _secrets(config)
        self._auth_keys = "token" if config.token is not None else "username and registry.password"
        self._attempts = config.attempts
        self._sleep = sleep
        self._jitter = jitter
        try:
            self._client: Any = SchemaRegistryClient(_client_options(config))
        except OSError as exc:  # ssl.SSLError is one too
            files = ", ".join(str(f) for f in (config.ca_file, config.cert_file, config.key_file) if f)
            raise RegistryTlsFailed(registry=self._name, detail=f"{exc} (reading {files})") from exc
        self._closer = weakref.finalize(self, self._client.close)

    @property
    def name(self) -> str:
        return self._name

    def close(self) -> None:
        """Close the connections. Also done when the registry is garbage."""
        self._closer()

    # -- the port ------------------------------------------------------------------------------------------

    def get(self, schema_id: int) -> Schema:
        return self._call(f"id {schema_id}", lambda: _schema(schema_id, self._client.get_schema(schema_id)))

    def version(self, subject: str, version: int) -> SchemaVersion:
        return self._call(
            f"{subject} version {version}",
            lambda: _version(subject, self._client.get_version(subject, version, deleted=True)),
        )

    def latest(self, subject: str) -> SchemaVersion:
        return self._call(subject, lambda: _version(subject, self._client.get_latest_version(subject)))

    def versions(self, subject: str) -> list[int]:
        return self._call(subject, lambda: sorted(int(v) for v in self._client.get_versions(subject)))

    def subjects(self) -> list[str]:
        return self._call("subjects", lambda: sorted(str(s) for s in self._client.get_subjects()))

    def register(
        self, subject: str, text: str, references: Sequence[Reference] = (), *, kind: str = "PROTOBUF"
    ) -> SchemaVersion:
        schema = ClientSchema(text, kind, [SchemaReference(ref.name, ref.subject, ref.version) for ref in references])
        try:
            answer = self._call(subject, lambda: self._client.register_schema_full_response(subject, schema))
            if answer.version is None:  # older registries answer with the id alone
                answer = self._call(subject, lambda: self._client.lookup_schema(subject, schema))
        except RegistryRefused as exc:
            raise self._refused_schema(subject, exc) from exc
        return SchemaVersion(subject, int(answer.version), Schema(int(answer.schema_id), kind, text, tuple(references)))

    def set_compatibility(self, subject: str, level: str) -> None:
        check_level(self._name, level)
        target = None if subject == GLOBAL else subject
        try:
            self._call(subject or "global level", lambda: self._client.set_compatibility(target, level))
        except SchemaNotFound:
            # Apicurio (3.0.9) keeps NONE as the absence of a rule: it has nothing to remove from a subject yet to
            # come, and where the global level is another, that one holds.
            if level != "NONE":
                raise

    def delete_subject(self, subject: str, *, permanent: bool = False) -> None:
        try:
            self._call(subject, lambda: self._client.delete_subject(subject))
        except SchemaNotFound:
            if not permanent:
                raise
        if permanent:  # the registry wants a soft delete first (40405)
            self._call(subject, lambda: self._client.delete_subject(subject, permanent=True))

    # -- one request ---------------------------------------------------------------------------------------

    def _call(self, asked_for: str, request: Callable[[], T]) -> T:
        detail = ""
        cause: Exception | None = None
        for failures in range(self._attempts):
            if failures:
                self._sleep(BACKOFF.rest_sec(failures, self._jitter()))
            self._client.clear_caches()
            try:
                return request()
            except SchemaRegistryError as exc:
                if (error := self._permanent(exc, asked_for)) is not None:
                    raise error from self._printable(exc)
                detail = f"HTTP {exc.http_status_code} {self._said(exc)}".strip()
                cause = self._printable(exc)
            except httpx.RequestError as exc:
                if (problem := _tls_problem(exc)) is not None:
                    raise RegistryTlsFailed(registry=self._name, detail=problem) from exc
                detail, cause = self._scrub(f"{type(exc).__name__} {exc}".strip()), self._printable(exc)
            except (ValueError, TypeError, AttributeError) as exc:
                # The client's own failure to read an answer, such as a sign-in page of a proxy.
                detail = self._scrub(f"the answer is not a schema registry's ({exc!r})")
                cause = self._printable(exc)
        raise RegistryDown(registry=self._name, attempts=self._attempts, detail=detail) from cause

    def _permanent(self, exc: SchemaRegistryError, asked_for: str) -> DistributaryError | None:
        """What an answer means for good; None where the next attempt may be answered otherwise."""
        status, code = exc.http_status_code, exc.error_code or 0
        if status in _PASSING or status >= 500:
            return None
        if status in (401, 403):  # without the body: it may repeat what was sent
            return RegistryDenied(registry=self._name, status=status, keys=self._auth_keys)
        if status == 404 and 40400 <= code <= 40499:
            return SchemaNotFound(registry=self._name, what=asked_for)
        if code == _REFERENCE_EXISTS:
            return SchemaInUse(registry=self._name, what=asked_for, detail=self._said(exc))
        return RegistryRefused(
            registry=self._name,
            what=asked_for,
            status=status,
            code=code,
            detail=self._said(exc),
            remedy="" if status in (409, 422) else _CHECK_URL,
        )

    def _refused_schema(self, subject: str, refused: RegistryRefused) -> DistributaryError:
        status, code = refused.parameters["status"], refused.parameters["code"]
        detail = refused.parameters["detail"]
        if status == 422 and code not in _NOT_THE_TEXT:
            return SchemaBroken(what=f"{subject} (new version)", detail=detail)
        if status != 409:
            return refused
        level, version = "level unknown", "unknown"
        # Only decoration of the message: the refusal itself is certain.
        with contextlib.suppress(DistributaryError):
            versions = self.versions(subject)
            version = str(versions[-1])
            level = self._level(subject)
            if level.endswith("_TRANSITIVE") and len(versions) > 1:
                version = f"{versions[0]} to {versions[-1]}"
        return SchemaIncompatible(subject=subject, level=level, version=version, detail=detail)

    def _level(self, subject: str) -> str:
        """The level that refused a schema of `subject`: its own, or else the global one."""
        with contextlib.suppress(SchemaNotFound):
            level = self._call(subject, lambda: str(self._client.get_compatibility(subject)))
            if level != "NONE":  # it refuses nothing: Apicurio's word for "no level of its own"
                return level
        return self._call("global level", lambda: str(self._client.get_compatibility()))

    def _said(self, exc: SchemaRegistryError) -> str:
        return self._scrub(" ".join(str(exc.error_message or "").split())[:1000])

    def _printable(self, exc: Exception) -> Exception | None:
        """The cause that a traceback may show: none where the server repeated a secret."""
        return exc if self._scrub(str(exc)) == str(exc) else None

    def _scrub(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text


def _client_options(config: RegistryConfig) -> dict[str, Any]:
    options: dict[str, Any] = {"url": config.url, "timeout": config.timeout_sec, "max.retries": 0}
    if config.username is not None:
        password = config.password.get_secret_value() if config.password is not None else ""
        options["basic.auth.user.info"] = f"{config.username}:{password}"
    if config.token is not None:
        options["bearer.auth.credentials.source"] = "STATIC_TOKEN"
        options["bearer.auth.token"] = config.token.get_secret_value()
        options["bearer.auth.logical.cluster"] = ""  # Confluent Cloud only, but the client wants the key
    files = {
        "ssl.ca.location": config.ca_file,
        "ssl.certificate.location": config.cert_file,
        "ssl.key.location": config.key_file,
    }
    return options | {key: str(file) for key, file in files.items() if file is not None}


def _secrets(config: RegistryConfig) -> list[str]:
    values = [secret.get_secret_value() for secret in (config.password, config.token) if secret is not None]
    users = {config.username or ""}
    for url in (config.url or "").split(","):
        split_url = urlsplit(url.strip())
        if split_url.password:
            values += [split_url.password, unquote(split_url.password)]
            users |= {split_url.username or "", unquote(split_url.username or "")}
    # As the header of a request says it, which a server may repeat.
    pairs = [f"{user}:{value}".encode() for user in users for value in values if value]
    values += [encoded(pair).decode() for pair in pairs for encoded in (b64encode, urlsafe_b64encode)]
    values += [quote(value, safe="") for value in values]
    # The longest first: one may be a part of another.
    return sorted({value for value in values if value}, key=len, reverse=True)


def _without_userinfo(url: str) -> str:
    split_url = urlsplit(url)
    return urlunsplit((split_url.scheme, split_url.netloc.rpartition("@")[2], split_url.path.rstrip("/"), "", ""))


def _tls_problem(exc: BaseException) -> str | None:
    """What is wrong with the certificates, if that is what broke the connection. Other TLS errors may pass."""
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted ({cause.verify_message})"
        if isinstance(cause, ssl.SSLError) and "ALERT" in (cause.reason or ""):
            return f"it refused the connection ({cause.reason}); it may ask for a client certificate"
        cause = cause.__cause__ or cause.__context__
    return None


def _schema(schema_id: int, answer: Any) -> Schema:
    if not isinstance(answer.schema_str, str):
        raise ValueError("there is no schema text in it")
    references = tuple(Reference(str(ref.name), str(ref.subject), int(ref.version)) for ref in answer.references or ())
    return Schema(int(schema_id), str(answer.schema_type or "AVRO"), answer.schema_str, references)


def _version(subject: str, answer: Any) -> SchemaVersion:
    return SchemaVersion(subject, int(answer.version), _schema(answer.schema_id, answer.schema))
