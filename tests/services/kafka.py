"""One Kafka 4.3 broker (KRaft, one node), without or with SASL, and with TLS beside it."""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.processes import SERVICE_JAVA
from tests.services import Server, ServiceFailed, free_ports, maven, wait_until
from tests.services.tokens import Tokens

JARS = ("org.apache.kafka:kafka_2.13:4.3.1", "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4")

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]

# CLIENT is the listener that tests use; SECURE is the same with TLS, where there is a certificate. Only these have
# SASL, so that the broker's talk with itself (transaction markers) needs no credentials. After a kill the controller
# refuses the broker's return until its old session has ended: 3 s, not the default 9 s.
_PROPERTIES = """
process.roles=broker,controller
node.id=1
listeners=CLIENT://127.0.0.1:{client},INTERNAL://127.0.0.1:{internal},CONTROLLER://127.0.0.1:{controller}{secure}
advertised.listeners=CLIENT://127.0.0.1:{told},INTERNAL://127.0.0.1:{internal}{secure}
listener.security.protocol.map=CLIENT:{plain},SECURE:{tls},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller}
inter.broker.listener.name=INTERNAL
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
log.cleaner.dedupe.buffer.size=4194304
"""

_LOG4J = """
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n
"""


class Kafka(Server):
    """A broker. Topics are never created by themselves.

    Args:
        folder: data, settings and log; must be empty at first.
        mechanism: None = no security; else SASL_PLAINTEXT with `users` (name -> password), or with `tokens`.
        tokens: who signs the tokens of OAUTHBEARER.
        certificate: PEM files of a certificate and its key, for a second door with TLS (`secure_servers`).
        through: the port that clients are sent to, of a proxy in front of `port`; without one, the broker's own.
    """

    name = "kafka"

    def __init__(
        self,
        folder: Path,
        *,
        mechanism: Mechanism | None = None,
        users: Mapping[str, str] | None = None,
        tokens: Tokens | None = None,
        certificate: tuple[str, str] | None = None,
        through: int | None = None,
    ) -> None:
        super().__init__(folder)
        self.mechanism = mechanism
        self.users = dict(users or {})
        self.tokens = tokens
        self._lib = maven.jars(self.name, *JARS)
        client, secure, internal, controller = free_ports(4)
        self.port = client
        self.bootstrap_servers = f"127.0.0.1:{through or client}"
        self.secure_servers = f"127.0.0.1:{secure}"
        (folder / "log4j2.properties").write_text(_LOG4J)
        settings = _PROPERTIES.format(
            client=client,
            told=through or client,
            internal=internal,
            controller=controller,
            secure=f",SECURE://{self.secure_servers}" if certificate else "",
            plain="SASL_PLAINTEXT" if mechanism else "PLAINTEXT",
            tls="SASL_SSL" if mechanism else "SSL",
            data=folder / "data",
        )
        (folder / "server.properties").write_text(settings + self._sasl() + self._tls(certificate))
        self._format()

    def command(self) -> list[str]:
        return [*self._jvm(), "kafka.Kafka", "server.properties"]

    def client(self, user: str | None = None, **more: str) -> dict[str, str]:
        """Settings of a librdkafka client; `user` defaults to the first one."""
        conf = {"bootstrap.servers": self.bootstrap_servers, **more}
        if self.tokens is not None:
            conf |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER", **self.tokens.settings()}
        elif self.mechanism:
            name = user or next(iter(self.users))
            conf |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": self.mechanism}
            conf |= {"sasl.username": name, "sasl.password": self.users[name]}
        return conf

    def is_ready(self) -> bool:
        try:
            self._admin().list_topics(timeout=1)
        except KafkaException:
            return False
        return True

    def create_topic(self, topic: str, partitions: int = 2, **config: str) -> str:
        """Create a topic and wait until clients can see it; `config` with _ for . (retention_ms="1000")."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=settings)
        admin = self._admin()  # held until the answer is there: its end cancels what it was asked
        admin.create_topics([new])[topic].result(120)
        wait_until(lambda: self._partitions(topic) == partitions, 30, f"topic {topic}")
        return topic

    def delete_topic(self, topic: str) -> None:
        admin = self._admin()
        try:
            admin.delete_topics([topic])[topic].result(120)
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        wait_until(lambda: self._partitions(topic) == 0, 30, f"topic {topic} to go")

    @contextmanager
    def topic(self, partitions: int = 2, **config: str) -> Iterator[str]:
        """A topic with a name of its own, deleted afterwards."""
        name = self.create_topic(f"t-{uuid.uuid4().hex[:12]}", partitions, **config)
        try:
            yield name
        finally:
            self.delete_topic(name)

    def source(self, topic: str) -> dict[str, str]:
        """`source:` of a pipeline file."""
        return {"type": "kafka", "bootstrap_servers": self.bootstrap_servers, "topic": topic}

    def send(self, topic: str, records: Iterable[tuple[int, bytes | None]]) -> dict[tuple[int, int], bytes | None]:
        """Produce (partition, value), with a key so that a null value is a tombstone, and wait for the broker.

        Returns what the broker has confirmed, in its order: (partition, offset) -> value.
        """
        sent: dict[tuple[int, int], bytes | None] = {}

        def confirmed(error: Any, record: Any) -> None:
            assert error is None, error
            sent[record.partition(), record.offset()] = record.value()

        producer = Producer(self.client())
        for partition, value in records:
            producer.produce(topic, value, b"key", partition=partition, on_delivery=confirmed)
        assert producer.flush(30) == 0
        return sent

    @contextmanager
    def transaction(self, topic: str, values: Iterable[bytes], *, commit: bool = True) -> Iterator[None]:
        """Produce to partition 0 in a transaction that is open inside of the block, and ends behind it."""
        producer = Producer(self.client(**{"transactional.id": uuid.uuid4().hex}))
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, b"key", partition=0)
        assert producer.flush(30) == 0
        try:
            yield
        finally:
            (producer.commit_transaction if commit else producer.abort_transaction)(30)

    def _admin(self) -> AdminClient:
        # librdkafka tells of a broker that is not up yet on stderr; only the answer matters here.
        return AdminClient({**self.client(), "log_level": "0"})

    def _partitions(self, topic: str) -> int:
        found = self._admin().list_topics(timeout=60).topics.get(topic)
        return 0 if found is None else len(found.partitions)

    def _jvm(self) -> list[str]:
        logging = f"-Dlog4j2.configurationFile={(self.folder / 'log4j2.properties').as_uri()}"
        allowed = (
            [] if self.tokens is None else [f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.tokens.keys_url}"]
        )
        return [self.java, *SERVICE_JAVA, *allowed, logging, "-cp", f"{self._lib}/*"]

    def _sasl(self) -> str:
        if self.mechanism is None:
            return ""
        package = "org.apache.kafka.common.security"
        login = f"{package}.scram.ScramLoginModule required;"
        if self.tokens is not None:
            return "sasl.enabled.mechanisms=OAUTHBEARER\n" + "".join(
                f"listener.name.client.oauthbearer.{line}\n"
                for line in (
                    f"sasl.jaas.config={package}.oauthbearer.OAuthBearerLoginModule required;",
                    f"sasl.server.callback.handler.class={package}.oauthbearer.OAuthBearerValidatorCallbackHandler",
                    f"sasl.oauthbearer.jwks.endpoint.url={self.tokens.keys_url}",
                )
            )
        if self.mechanism == "PLAIN":
            users = " ".join(f'user_{name}="{password}"' for name, password in self.users.items())
            login = f"{package}.plain.PlainLoginModule required {users};"
        doors = "".join(
            f"listener.name.{door}.{self.mechanism.lower()}.sasl.jaas.config={login}\n" for door in ("client", "secure")
        )
        return f"sasl.enabled.mechanisms={self.mechanism}\n{doors}"

    def _tls(self, certificate: tuple[str, str] | None) -> str:
        if certificate is None:
            return ""
        store = self.folder / "keystore.pem"
        store.write_text("".join(Path(file).read_text() for file in reversed(certificate)))
        return f"listener.name.secure.ssl.keystore.type=PEM\nlistener.name.secure.ssl.keystore.location={store}\n"

    def _format(self) -> None:
        command = [*self._jvm(), "kafka.tools.StorageTool", "format"]
        command += ["-t", "4L6g3nShT-eMCtK--X86sw", "-c", "server.properties"]
        if self.mechanism and self.mechanism.startswith("SCRAM"):
            for name, password in self.users.items():
                command += ["--add-scram", f"{self.mechanism}=[name={name},password={password}]"]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServiceFailed(f"kafka: its data folder could not be formatted:\n{done.stdout}{done.stderr}")
