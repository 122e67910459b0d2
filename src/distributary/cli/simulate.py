"""`distributary simulate`: data to try pipelines with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distributary.cli.options import GROUP, Yes, not_yet
from distributary.cli.output import say, show
from distributary.errors import BadInput

if TYPE_CHECKING:
    from distributary.config import RegistryConfig

simulate = typer.Typer(**GROUP, help="Produce data to try pipelines with.")


Delta = Annotated[str | None, typer.Option(metavar="PATH", help="Write to this Delta table.", show_default=False)]
Kafka = Annotated[
    str | None,
    typer.Option(metavar="SERVERS", help="Send to a topic here (with --delta: from that table).", show_default=False),
]
Topic = Annotated[str, typer.Option(help="The topic, and the wrapper's subject <topic>-value.")]
Partitions = Annotated[int, typer.Option(min=1, help="Of the topic, if it has to be created.")]
KafkaConfig = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="A librdkafka setting, e.g. of SASL.", show_default=False)
]
Registry = Annotated[str | None, typer.Option(metavar="URL", help="A schema registry.", show_default=False)]
RegistryPath = Annotated[
    str | None, typer.Option(metavar="DIR", help="Or a folder: the embedded registry.", show_default=False)
]
RegistryUser = Annotated[str | None, typer.Option(help="Its user.", show_default=False)]
RegistryPassword = Annotated[str | None, typer.Option(help="Its password.", show_default=False)]
RegistryToken = Annotated[str | None, typer.Option(help="Or a bearer token.", show_default=False)]
Games = Annotated[int, typer.Option(min=1, help="How many games.")]
Versions = Annotated[int, typer.Option(min=1, help="Schema versions of each game.")]
Records = Annotated[int, typer.Option(min=1, help="Records per game and version, faulty ones included.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same records.")]
Columns = Annotated[bool, typer.Option("--columns", help="A table with route, id and payload as columns.")]
Corrupt = Annotated[int, typer.Option(min=0, help="Records whose payload is damaged.")]
UnknownId = Annotated[int, typer.Option(min=0, help="Records whose schema id nobody registered.")]
EmptyName = Annotated[int, typer.Option(min=0, help="Records without a game name.")]
Tombstones = Annotated[int, typer.Option(min=0, help="Records without a value.")]
BadEnvelope = Annotated[int, typer.Option(min=0, help="Records whose envelope is damaged.")]
IdMismatch = Annotated[
    int, typer.Option(min=0, help="Good records whose envelope names another id than their payload.")
]
Truth = Annotated[Path, typer.Option(metavar="FILE", help="What was sent is added here.")]
Made = Annotated[Path, typer.Option(metavar="FILE", help="What was created is noted here.")]
Clean = Annotated[bool, typer.Option("--clean", help="Remove what is noted in --made, and nothing else.")]


@simulate.command("games")
def simulate_games(
    delta: Delta = None,
    kafka: Kafka = None,
    topic: Topic = "events",
    partitions: Partitions = 2,
    kafka_config: KafkaConfig = None,
    registry: Registry = None,
    registry_path: RegistryPath = None,
    registry_user: RegistryUser = None,
    registry_password: RegistryPassword = None,
    registry_token: RegistryToken = None,
    games: Games = 12,
    versions: Versions = 3,
    records: Records = 1000,
    seed: Seed = 0,
    columns: Columns = False,
    corrupt: Corrupt = 0,
    unknown_id: UnknownId = 0,
    empty_name: EmptyName = 0,
    tombstones: Tombstones = 0,
    bad_envelope: BadEnvelope = 0,
    id_mismatch: IdMismatch = 0,
    truth: Truth = Path("simulated-truth.json"),
    made: Made = Path("simulated-made.json"),
    clean: Clean = False,
    yes: Yes = False,
) -> None:
    """Send the records of invented games.

    Registers their schemas first, version after version. The same options give the same records, byte for byte.

    Passwords, tokens and values of --kafka-config may be references, as in a pipeline file: '${env:NAME}'.
    """
    given = {"url": registry, "path": registry_path, "username": registry_user, "password": registry_password}
    config = _registry({**given, "token": registry_token})
    settings = _settings(kafka_config or [])
    from distributary.registry import open_registry

    if clean:
        _clean_simulated(made, config, settings, yes)
        return
    if config is None:
        raise BadInput(detail="simulate games: give the registry: --registry URL or --registry-path DIR")
    from distributary.simulate.produce import Target, produce
    from distributary.simulate.records import Faults, Plan

    faults = Faults(corrupt, unknown_id, empty_name, tombstones, bad_envelope, id_mismatch)
    order = Plan(games, versions, records, seed, faults, topic)
    target = Target(delta, kafka, topic, partitions, columns, settings)
    sent = produce(order, open_registry(config), target, truth=truth, made=made, say=say)
    say(f"sent {sent.rows_total:,} good rows, {sent.quarantined:,} bad records, {sent.tombstones:,} tombstones")
    say(f"counts of all that was sent: {truth}; to remove what was made: the same command with --clean --yes")


for _verb, _help in (
    ("database", "Change rows of a database, for change data capture."),
    ("datastream", "Write change events as Google Datastream does."),
):
    not_yet(simulate, _verb, _help)


def _clean_simulated(made: Path, config: RegistryConfig | None, settings: Mapping[str, str], yes: bool) -> None:
    from distributary.registry import open_registry
    from distributary.render import steps_text
    from distributary.simulate.clean import clean
    from distributary.simulate.made import Made

    if not made.exists():
        raise BadInput(
            detail=f"simulate games --clean: there is no file {made}. Name the list of what was made: --made FILE"
        )
    registry = open_registry(config) if config else None
    show(steps_text(clean(Made.open(made), registry, kafka=dict(settings), dry_run=not yes), done=yes))


def _registry(given: Mapping[str, str | None]) -> RegistryConfig | None:
    """The registry that the options name; None where they name none."""
    from pydantic import ValidationError

    from distributary.config import RegistryConfig

    found = _resolved({f"--registry-{key}": value for key, value in given.items() if value is not None})
    values: dict[str, Any] = {key.removeprefix("--registry-"): value for key, value in found.items()}
    if not values:
        return None
    try:
        return RegistryConfig(**values)
    except ValidationError as error:
        detail = error.errors()[0]["msg"]
        raise BadInput(detail=f"simulate games: the registry's options: {detail}") from error


def _settings(given: Sequence[str]) -> dict[str, str]:
    pairs = dict(pair.partition("=")[::2] for pair in given)
    for key, value in pairs.items():
        if not key or not value:
            raise BadInput(detail=f"simulate games: --kafka-config {key!r}: write it as KEY=VALUE")
    return _resolved({f"--kafka-config {key}": value for key, value in pairs.items()}, "--kafka-config ")


def _resolved(values: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    """References replaced by their values. Raises SecretMissing, ConfigError."""
    from distributary.config.secrets import resolve

    found, _ = resolve(dict(values), file="the command line")
    return {key.removeprefix(prefix): str(value) for key, value in found.items()}
