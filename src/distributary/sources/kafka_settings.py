"""One set of settings for both of our Kafka clients: Spark's, which is Java's, and librdkafka.

`source.security` and `source.options` say once how the brokers are reached. Options may be spelled as either client has
them; the other gets its own spelling, or nothing where it has no such thing. Names are those of Kafka 3.9
(kafka.apache.org, Consumer Configs) and of librdkafka 2.16 (CONFIGURATION.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from distributary.config import KafkaSecurity, KafkaSource
from distributary.config.environment import environment
from distributary.sources.msk_iam import token_of

ISOLATION = "isolation.level"
NAMES_CHECKED = "ssl.endpoint.identification.algorithm"
"""Java says "" where librdkafka says none."""
PATIENCE = {"default.api.timeout.ms": "30000", "request.timeout.ms": "15000"}
"""Kafka's own let a broker that is away hang a batch for minutes."""
FETCHES = {
    "fetch.max.wait.ms": "5",
    "max.partition.fetch.bytes": str(2 << 20),
    "max.poll.records": "10000",
    "receive.buffer.bytes": "-1",
}
"""How Spark's tasks read: they know that the offsets they want are there, and need not wait for more.

After each poll such a task asks where the topic begins and ends (`InternalKafkaConsumer.fetch`, Spark 4.2). At the end
of a topic that question stands behind a fetch which the consumer has sent ahead, and which the broker holds for
`fetch.max.wait.ms`: 500 ms by default, in every batch and partition. A poll of 500 records and a fetch of 1 MiB,
Kafka's defaults, make such rounds many; Spark's 64 KiB for the socket are too few for a broker that is far away, -1
leaves them to the system. What was polled and not yet asked for stays in memory, of each partition: hence not more.
Figures are in docs/benchmarks.md.
"""
DEFAULTS = {ISOLATION: "read_committed"}
"""Kafka's own gives records of aborted transactions."""

_SAME = (
    "check.crcs client.dns.lookup client.id client.rack connections.max.idle.ms fetch.max.bytes fetch.min.bytes "
    "isolation.level max.partition.fetch.bytes metadata.max.age.ms reconnect.backoff.max.ms reconnect.backoff.ms "
    "retry.backoff.max.ms retry.backoff.ms sasl.kerberos.service.name security.protocol "
    "sasl.oauthbearer.token.endpoint.url session.timeout.ms socket.connection.setup.timeout.ms ssl.cipher.suites "
    "ssl.endpoint.identification.algorithm ssl.key.password ssl.keystore.password"
)
SAME = frozenset(_SAME.split())
"""Spelled alike."""
RENAMED = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "sasl.mechanism": "sasl.mechanisms",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
"""Java's name -> librdkafka's."""
_ONLY = (
    "api.version.request broker.address.family broker.address.ttl debug enable.sasl.oauthbearer.unsecure.jwt "
    "enable.ssl.certificate.verification https.ca.location https.ca.pem log_level sasl.kerberos.keytab "
    "sasl.kerberos.principal sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.config "
    "sasl.oauthbearer.extensions sasl.oauthbearer.method sasl.oauthbearer.scope sasl.password sasl.username "
    "socket.keepalive.enable socket.nagle.disable ssl.ca.location ssl.certificate.location ssl.crl.location "
    "ssl.curves.list ssl.key.location ssl.sigalgs.list statistics.interval.ms"
)
RDKAFKA_ONLY = frozenset(_ONLY.split())
"""What Java does not know by any name: it does not get these, apart from what `_java_files` makes of them."""
JAVA_FORMS = frozenset(
    ("sasl.jaas.config", "ssl.keystore.location", "ssl.keystore.type", "ssl.truststore.location", "ssl.truststore.type")
)
"""What librdkafka gets in another form."""
LISTED = SAME | RDKAFKA_ONLY | JAVA_FORMS | RENAMED.keys() | set(RENAMED.values())
_BACK = {theirs: java for java, theirs in RENAMED.items()}
_LOGIN = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


def java_settings(source: KafkaSource) -> dict[str, str]:
    """All settings of Spark's client, without the prefix `kafka.`."""
    options = source.options
    renamed = {_BACK.get(key, key): value for key, value in options.items() if key not in RDKAFKA_ONLY}
    if renamed.get(NAMES_CHECKED) == "none":
        renamed[NAMES_CHECKED] = ""
    return {**PATIENCE, **FETCHES, **DEFAULTS, **_java_files(options), **renamed, **java_security(source.security)}


def _java_files(options: Mapping[str, str]) -> dict[str, str]:
    """Certificates and a login that are given as librdkafka has them."""
    settings: dict[str, str] = {}
    if "ssl.ca.pem" in options:
        settings["ssl.truststore.type"] = "PEM"
    if "ssl.certificate.pem" in options:
        settings["ssl.keystore.type"] = "PEM"
    if "ssl.ca.location" in options:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": options["ssl.ca.location"]}
    if "ssl.certificate.location" in options and "ssl.key.location" in options:
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.key": _text(options["ssl.key.location"])}
        settings["ssl.keystore.certificate.chain"] = _text(options["ssl.certificate.location"])
    module = _MODULES.get(options.get("sasl.mechanism", options.get("sasl.mechanisms", "")))
    if module is not None and "sasl.username" in options:
        login = {"username": options["sasl.username"], "password": options.get("sasl.password", "")}
        settings["sasl.jaas.config"] = _line(module, login)
    return settings


def client_settings(source: KafkaSource) -> dict[str, Any]:
    """All settings of a client of librdkafka."""
    settings = client_options(source.options)
    return {"bootstrap.servers": source.bootstrap_servers, **DEFAULTS, **settings, **client_security(source.security)}


def client_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options of either spelling as librdkafka has them; those that only Java knows are left out."""
    settings = {}
    for key, value in options.items():
        if key == NAMES_CHECKED:
            settings[key] = value or "none"
        elif key in SAME or key in RDKAFKA_ONLY or key in _BACK:
            settings[key] = value
        elif key in RENAMED:
            settings[RENAMED[key]] = value
    return {**_stores(options), **_login(options.get("sasl.jaas.config", "")), **settings}


def producer_options(options: Mapping[str, str]) -> dict[str, str]:
    """As `client_options`, of a producer: names that neither list has are librdkafka's own, and stay."""
    unlisted = {key: value for key, value in options.items() if key not in RENAMED and key not in JAVA_FORMS}
    return {**unlisted, **client_options(options)}


def _stores(options: Mapping[str, str]) -> dict[str, str]:
    """Files of certificates: librdkafka reads PEM, and a key store also as PKCS#12."""
    settings = {}
    trust, keys = options.get("ssl.truststore.location"), options.get("ssl.keystore.location")
    if trust and options.get("ssl.truststore.type") == "PEM":
        settings["ssl.ca.location"] = trust
    if keys and options.get("ssl.keystore.type") == "PEM":
        settings |= {"ssl.certificate.location": keys, "ssl.key.location": keys}
    elif keys and options.get("ssl.keystore.type") == "PKCS12":
        settings["ssl.keystore.location"] = keys
    return settings


def _login(jaas: str) -> dict[str, str]:
    """User and password of a line of JAAS."""
    return {f"sasl.{key}": re.sub(r"\\(.)", r"\1", value) for key, value in _LOGIN.findall(jaas)}


# -- Java --------------------------------------------------------------------------------------------------

_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
    "AWS_MSK_IAM": "software.amazon.msk.auth.iam.IAMLoginModule",
    "GSSAPI": "com.sun.security.auth.module.Krb5LoginModule",
}
_OAUTH_HANDLER = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_IAM_HANDLER = "software.amazon.msk.auth.iam.IAMClientCallbackHandler"


def java_security(security: KafkaSecurity | None) -> dict[str, str]:
    """Security settings as the Java client spells them (KIP-651: PEM files; KIP-768: OIDC)."""
    if security is None:
        return {}
    settings: dict[str, str] = {"security.protocol": security.protocol}
    if security.mechanism is not None:
        settings |= {"sasl.mechanism": security.mechanism, **_java_login(security)}
        settings["sasl.jaas.config"] = _jaas_line(security)
    if security.ca_file:
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": security.ca_file}
    if security.cert_file and security.key_file:
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": _text(security.cert_file)}
        settings |= {"ssl.keystore.key": _text(security.key_file)}
        if security.key_password:
            settings["ssl.key.password"] = security.key_password.get_secret_value()
    return settings


def _java_login(security: KafkaSecurity) -> dict[str, str]:
    """Who logs in, beside the line of JAAS."""
    if security.oauth is not None:
        handler = {"sasl.login.callback.handler.class": _shaded(_OAUTH_HANDLER)}
        return {**handler, "sasl.oauthbearer.token.endpoint.url": security.oauth.token_url}
    if security.aws is not None:
        return {"sasl.client.callback.handler.class": _IAM_HANDLER}
    if security.kerberos is not None:
        return {"sasl.kerberos.service.name": security.kerberos.service}
    return {}


def _jaas_line(security: KafkaSecurity) -> str:
    return _line(_MODULES[str(security.mechanism)], _jaas_options(security))


def _line(module: str, options: Mapping[str, str]) -> str:
    arguments = " ".join(f"{key}={_jaas(value)}" for key, value in options.items())
    return f"{_shaded(module)} required {arguments}".rstrip() + ";"


def _jaas_options(security: KafkaSecurity) -> dict[str, str]:
    if (oauth := security.oauth) is not None:
        settings = {"clientId": oauth.client_id, "clientSecret": oauth.client_secret.get_secret_value()}
        settings |= {} if oauth.scope is None else {"scope": oauth.scope}
        settings |= {f"extension_{key}": value for key, value in oauth.extensions.items()}
        if oauth.ca_file is not None:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": oauth.ca_file}
        return settings
    if (aws := security.aws) is not None:
        if aws.role_arn is not None:
            role = {"awsRoleArn": aws.role_arn, "awsRoleSessionName": aws.role_session}
            return {**role, "awsStsRegion": aws.region}
        return {} if aws.profile is None else {"awsProfileName": aws.profile}
    if (kerberos := security.kerberos) is not None:
        login = {"keyTab": kerberos.keytab, "principal": kerberos.principal}
        return {"useKeyTab": "true", "storeKey": "true", **login}
    password = "" if security.password is None else security.password.get_secret_value()
    return {"username": security.username or "", "password": password}


def _shaded(name: str) -> str:
    """On Databricks, Kafka's own classes have another name."""
    kafkas = name.startswith("org.apache.kafka.") and "DATABRICKS_RUNTIME_VERSION" in environment()
    return f"kafkashaded.{name}" if kafkas else name


def _jaas(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


# -- librdkafka --------------------------------------------------------------------------------------------


def client_security(security: KafkaSecurity | None) -> dict[str, Any]:
    """Security settings as librdkafka spells them."""
    if security is None:
        return {}
    settings = {
        "security.protocol": security.protocol,
        "sasl.mechanism": security.mechanism,
        "sasl.username": security.username,
        "sasl.password": security.password.get_secret_value() if security.password else None,
        "ssl.ca.location": security.ca_file,
        "ssl.certificate.location": security.cert_file,
        "ssl.key.location": security.key_file,
        "ssl.key.password": security.key_password.get_secret_value() if security.key_password else None,
        **_client_login(security),
    }
    return {k: v for k, v in settings.items() if v is not None}


def _client_login(security: KafkaSecurity) -> dict[str, str | Callable[[str], tuple[str, float]] | None]:
    if (oauth := security.oauth) is not None:
        return {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": oauth.token_url,
            "sasl.oauthbearer.client.id": oauth.client_id,
            "sasl.oauthbearer.client.secret": oauth.client_secret.get_secret_value(),
            "sasl.oauthbearer.scope": oauth.scope,
            "sasl.oauthbearer.extensions": ",".join(f"{k}={v}" for k, v in oauth.extensions.items()) or None,
            "https.ca.location": oauth.ca_file,
        }
    if security.aws is not None:
        # To librdkafka, IAM is a token like any other.
        return {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": token_of(security.aws)}
    if (kerberos := security.kerberos) is not None:
        named = {"principal": kerberos.principal, "keytab": kerberos.keytab, "service.name": kerberos.service}
        return {f"sasl.kerberos.{key}": value for key, value in named.items()}
    return {}
