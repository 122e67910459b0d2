"""`distributary simulate debezium`: messages of an invented history."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from distributary.cli.output import say
from distributary.errors import BadInput
from distributary_simulate.cli.simulate import (
    Delta,
    KafkaConfig,
    Kinds,
    PerKind,
    Registry,
    RegistryPath,
    Seed,
    Tables,
    history_of,
    kafka_settings,
    registry_config,
)
from distributary_simulate.cli.simulate import (
    simulate as simulate,
)

if TYPE_CHECKING:
    from distributary.config import RegistryConfig
    from distributary_simulate.change_messages.debezium import ChangeMessage
    from distributary_simulate.changes.history import History

Form = Literal["json", "avro", "protobuf"]


@simulate.command("debezium")
def simulate_debezium(
    delta: Delta = None,
    kafka: Annotated[
        str | None, typer.Option(metavar="SERVERS", help="Send to topics here, one for each table.", show_default=False)
    ] = None,
    kafka_config: KafkaConfig = None,
    form: Annotated[Form, typer.Option("--format", help="How the messages are written.")] = "json",
    registry: Registry = None,
    registry_path: RegistryPath = None,
    events: Annotated[int, typer.Option(min=1, help="How many changes.")] = 10_000,
    rows: Annotated[int, typer.Option(min=0, help="Rows of each table that only its snapshot shows.")] = 20,
    schema_changes: Annotated[int, typer.Option(min=0, help="Of JSON: one per so many transactions; 0: none.")] = 0,
    seed: Seed = 0,
    kinds: Kinds = "mysql,postgresql,oracle,sqlserver",
    per_kind: PerKind = 2,
    truth: Tables = Path("simulated-tables.json"),
) -> None:
    """Write change messages as Debezium does.

    Of an invented history, to a topic for each table (srv.<database>.<table>), or to a Delta table of such records.
    Avro and protobuf need a registry.
    """
    from distributary_simulate.change_messages.topics import to_kafka, to_table
    from distributary_simulate.changes.truth import save_truth

    if (delta is None) == (kafka is None):
        raise BadInput(detail="simulate debezium: give either --delta PATH or --kafka SERVERS")
    config, settings = registry_config({"url": registry, "path": registry_path}), kafka_settings(kafka_config or [])
    history = history_of(kinds, per_kind, seed, rows, schema_changes, 20.0)
    messages = _messages(history, events, form, config)
    sent = to_table(delta, messages) if delta is not None else to_kafka(str(kafka), messages, settings)
    save_truth(history.truth(), truth)
    say(f"sent {sent:,} messages; what the {len(history.truth())} tables hold in the end: {truth}")


def _messages(history: History, events: int, form: Form, config: RegistryConfig | None) -> Iterator[ChangeMessage]:
    """All messages of a history. Raises BadInput."""
    from distributary.schemas.registry import open_registry
    from distributary_simulate.change_messages.connect_avro_form import AvroForm
    from distributary_simulate.change_messages.connect_protobuf_form import ProtobufForm
    from distributary_simulate.change_messages.debezium import DebeziumTopics

    topics, changes = DebeziumTopics(), chain(history.changes(events), history.finish())
    messages = (message for change in changes for message in topics.messages(change))
    if form == "json":
        return messages
    if config is None:
        raise BadInput(detail=f"simulate debezium: --format {form} needs --registry URL or --registry-path DIR")
    registry, kind = open_registry(config), form.upper()
    writer = AvroForm if form == "avro" else ProtobufForm
    form_writer = writer(lambda subject, text: registry.register(subject, text, kind=kind).schema.id)
    return (form_writer.message(message) for message in messages)
