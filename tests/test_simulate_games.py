"""The simulated games: repeatable bytes, a truth that another decoder confirms, cleaning that spares others."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable, write_deltalake
from google.protobuf.message import DecodeError

from distributary.config import RegistryConfig
from distributary.errors import SchemaIncompatible, SchemaNotFound, SourceDown, StoreDown
from distributary.schemas.formats import FORMATS, compile_payload
from distributary.schemas.protobuf.protobuf import decoder_for
from distributary.schemas.registry import Registry, open_registry
from distributary.schemas.registry.compile import compile_schema
from distributary.schemas.registry.compiler import Compiler
from distributary_simulate.errors import KafkaDown, SimulationInvalid
from distributary_simulate.games.clean import Step, clean
from distributary_simulate.games.encodings import Format
from distributary_simulate.games.events import message_class
from distributary_simulate.games.live import produce_live
from distributary_simulate.games.manifest import Manifest
from distributary_simulate.games.records import UNKNOWN_ID, VALUE_SCHEMA, Faults, Plan, Record
from distributary_simulate.games.schemas import WRAPPER_TEXT, event_text, game_names
from distributary_simulate.games.sinks import kafka_from_delta, write_delta, write_kafka
from distributary_simulate.games.stream import Games
from distributary_simulate.games.truth import Truth
from tests.services import wait_until

FAULTS = Faults(corrupt=6, unknown_id=3, empty_name=4, tombstones=5, bad_envelope=2, id_mismatch=3)
PLAN = Plan(games=4, versions=3, records=20, seed=7, faults=FAULTS)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return open_registry(RegistryConfig(path=str(tmp_path / "registry")))


def every(games: Games) -> list[Record]:
    return [record for version in range(1, games.plan.versions + 1) for record in games.records(version)]


@pytest.mark.parametrize("form", ["avro", "json"])
def test_games_in_other_formats_say_the_same_as_in_protobuf(registry: Registry, tmp_path: Path, form: Format) -> None:
    plan = Plan(games=2, versions=3, records=20, seed=7, faults=FAULTS)
    other = open_registry(RegistryConfig(path=str(tmp_path / "other")))
    told, found = every(Games(plan, registry)), every(Games(replace(plan, form=form), other))
    assert [one.fault for one in found] == [one.fault for one in told]
    for one, same in zip(found, told, strict=True):
        rows = _rows(one, other, form)
        if one.fault in ("corrupt", "tombstones", "bad_envelope", "unknown_id"):
            assert one.fault != "corrupt" or rows == []
            continue
        (row,) = rows
        (expected,) = _rows(same, registry, "protobuf")
        row.pop("_undeclared", None)
        if form == "json":
            row["event_timestamp"] = datetime.fromisoformat(row["event_timestamp"])
        assert row == expected


def _rows(record: Record, registry: Registry, form: Format) -> list[dict[str, Any]]:
    """What a record's payload says, by its own writer's schema."""
    if record.envelope.payload is None or record.fault == "unknown_id":
        return []
    schema = compile_payload(registry.get(record.schema_id), registry, Compiler())
    frames = FORMATS[form].split_frames(pa.array([record.envelope.payload], pa.binary()))
    assert frames.schema_id.to_pylist() == [record.schema_id]
    rows: list[dict[str, Any]] = FORMATS[form].decoder_for(schema).decode(frames.body).rows.to_pylist()
    return rows


# -- an independent reader: the official library, the schema texts from the registry, the header by hand --------------


class Reader:
    """Decodes envelopes and payloads without any module of the product beyond the schema compiler."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._classes: dict[int, Any] = {}
        self._wrapper = message_class(WRAPPER_TEXT, "wrapper")

    def outcome(self, value: bytes | None) -> tuple[str, str]:
        """("row", game) or (reason, "")."""
        if value is None:
            return "tombstone", ""
        try:
            wrapper = self._wrapper.FromString(value[6:])
        except DecodeError:
            return "CORRUPT_ENVELOPE", ""
        if not wrapper.game_name:
            return "NO_ROUTE", ""
        try:
            event = self.event(wrapper.payload)
        except SchemaNotFound:
            return "UNKNOWN_SCHEMA_ID", ""
        except DecodeError:
            return "CORRUPT_PAYLOAD", ""
        assert event.game_name == wrapper.game_name
        return "row", wrapper.game_name

    def event(self, payload: bytes) -> Any:
        schema_id = int.from_bytes(payload[1:5], "big")
        if schema_id not in self._classes:
            self._classes[schema_id] = message_class(self._registry.get(schema_id).text, "event")
        return self._classes[schema_id].FromString(payload[6:])


def expected(truth: Truth) -> Counter[tuple[str, str]]:
    return Counter(
        {("row", game): truth.rows_of(game) for game in truth.rows}
        | {
            ("tombstone", ""): truth.tombstones,
            ("CORRUPT_ENVELOPE", ""): truth.fault_total("bad_envelope"),
            ("NO_ROUTE", ""): truth.fault_total("empty_name"),
            ("UNKNOWN_SCHEMA_ID", ""): truth.fault_total("unknown_id"),
            ("CORRUPT_PAYLOAD", ""): truth.fault_total("corrupt"),
        }
    )


# -- names and schemas -------------------------------------------------------------------------------------------------


def test_game_names_are_unique_valid_in_proto_and_stable() -> None:
    names = game_names(5000)
    assert len({name.lower() for name in names}) == 5000
    assert all(name.endswith("_game") and name.isidentifier() and name.isascii() for name in names)
    assert names[:12] == game_names(12)
    assert names[:2] == ["amber_anchor_game", "brave_badger_game"]


def test_a_version_has_the_columns_up_to_its_number_and_a_detail_that_grows() -> None:
    fields = [message_class(event_text("ann_game", v), "event").DESCRIPTOR.fields_by_name for v in (1, 2, 3, 6)]
    assert list(fields[0])[-1] == "col_ann_game_1"
    assert [list(f)[4:] for f in fields] == [[f"col_ann_game_{c}" for c in range(1, v + 1)] for v in (1, 2, 3, 6)]
    assert list(fields[1]["col_ann_game_2"].message_type.fields_by_name) == ["zone", "level_1", "level_2"]
    assert list(fields[2]["col_ann_game_2"].message_type.fields_by_name) == ["zone", "level_1", "level_2", "level_3"]
    assert all(field.has_presence for field in list(fields[3].values())[4:])


def test_the_registry_accepts_every_version_under_full_compatibility(registry: Registry) -> None:
    games = Games(Plan(games=2, versions=9), registry)
    for version in range(1, 10):
        registered = games.register(version)
        assert {game: found.version for game, found in registered.items()} == dict.fromkeys(games.names, version)
    assert registry.versions("events-value") == [1]


def test_the_subjects_of_the_games_really_have_full_compatibility(registry: Registry) -> None:
    Games(Plan(games=1), registry).register(2)
    (game,) = game_names(1)
    for wrong in (
        event_text(game, 3).replace("optional string col", "optional int32 col"),
        event_text(game, 3).replace("optional int64 level_1 ", "optional string level_1 "),
    ):
        with pytest.raises(SchemaIncompatible) as caught:
            registry.register(f"{game}-value", wrong)
        assert caught.value.parameters["level"] == "FULL"


@pytest.mark.services
def test_a_real_registry_accepts_every_version_under_full_compatibility_and_is_cleaned(registry_url: str) -> None:
    registry = open_registry(RegistryConfig(url=registry_url))
    before = registry.subjects()
    manifest = Manifest()
    games = Games(Plan(games=2, topic="simulated-here"), registry, manifest=manifest)
    for version in range(1, 7):
        assert {found.version for found in games.register(version).values()} == {version}
    with pytest.raises(SchemaIncompatible):
        registry.register(
            f"{games.names[0]}-value", event_text(games.names[0], 7).replace("optional string", "optional int32")
        )
    assert Counter(Reader(registry).outcome(r.value)[0] for r in games.records(6, records=5)) == {"row": 10}
    assert set(outcomes(clean(manifest, registry, dry_run=False)).values()) == {"delete"}
    assert registry.subjects() == before


def test_registering_again_changes_nothing(registry: Registry) -> None:
    first = Games(PLAN, registry).register(1)
    assert Games(PLAN, registry).register(1) == first


# -- records ---------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(registry: Registry) -> None:
    records = every(Games(PLAN, registry))
    assert records == every(Games(PLAN, registry))
    other = every(Games(Plan(games=4, versions=3, records=20, seed=8, faults=FAULTS), registry))
    assert [r.value for r in records] != [r.value for r in other]


def test_the_same_seed_gives_the_same_bytes_in_another_process(registry: Registry, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from distributary.config import RegistryConfig\n"
        "from distributary.schemas.registry import open_registry\n"
        "from distributary_simulate.games.stream import Games\n"
        "from distributary_simulate.games.records import Plan\n"
        "games = Games(Plan(games=2, records=5, seed=3), open_registry(RegistryConfig(path=sys.argv[1])))\n"
        "print(b''.join(r.value for r in games.records(2)).hex())\n"
    )
    run = [sys.executable, "-c", code, str(tmp_path / "registry")]
    there = subprocess.run(run, check=True, capture_output=True, text=True).stdout.strip()
    here = Games(Plan(games=2, records=5, seed=3), registry).records(2)
    assert b"".join(r.value or b"" for r in here).hex() == there


def test_a_record_does_not_depend_on_which_others_are_asked_for(registry: Registry) -> None:
    games = Games(PLAN, registry)
    whole = [r for r in games.records(2) if r.game == games.names[1]]
    assert list(games.records(2, [games.names[1]])) == whole
    assert list(games.records(2, [games.names[1]], 5, start=10)) == whole[10:15]


def test_the_truth_equals_an_independent_decode(registry: Registry) -> None:
    records = every(Games(PLAN, registry))
    truth = Truth.of(records)
    reader = Reader(registry)
    assert Counter(reader.outcome(record.value) for record in records) == expected(truth)
    assert truth.records_total == PLAN.total == len(records)
    assert {fault: truth.fault_total(fault) for fault, _ in FAULTS.items()} == dict(FAULTS.items())


def test_every_corrupt_payload_is_refused_whatever_it_was_cut_from(registry: Registry) -> None:
    games = Games(Plan(games=2, versions=3, records=100, seed=1, faults=Faults(corrupt=600)), registry)
    reader = Reader(registry)
    assert {reader.outcome(record.value)[0] for record in every(games)} == {"CORRUPT_PAYLOAD"}


def test_the_product_decodes_every_good_payload_and_refuses_every_corrupt_one(registry: Registry) -> None:
    plan = Plan(games=2, versions=4, records=50, seed=1, faults=Faults(corrupt=200))
    by_schema: dict[int, list[Record]] = {}
    for record in every(Games(plan, registry)):
        by_schema.setdefault(record.schema_id, []).append(record)
    for schema_id, records in by_schema.items():
        decoder = decoder_for(compile_schema(registry.get(schema_id), registry))
        split = decoder.decode(pa.array([(r.envelope.payload or b"")[6:] for r in records], pa.binary()))
        bad = [position for position, record in enumerate(records) if record.fault == "corrupt"]
        assert [rejected.position for rejected in split.rejected] == bad
        assert split.rows.num_rows == len(records) - len(bad)


def test_an_event_holds_what_the_plan_says(registry: Registry) -> None:
    games = Games(Plan(games=3, records=200), registry)
    reader = Reader(registry)
    is_set = Counter[tuple[int, bool]]()
    instants = set()
    for record in games.records(3):
        assert record.envelope.payload is not None and record.key is not None
        event = reader.event(record.envelope.payload)
        assert event.game_name == record.game == record.envelope.game_name
        assert event.user_name == record.key.decode()
        assert event.event_timestamp.ToMicroseconds() == record.timestamp_us
        instants.add((record.game, event.event_timestamp.seconds))
        for column in (1, 2, 3):
            is_set[column, event.HasField(f"col_{record.game}_{column}")] += 1
    assert len(instants) == 600
    assert all(is_set[column, either] > 20 for column in (1, 2, 3) for either in (True, False))


def test_the_framed_envelope_names_the_wrapper_schema_and_a_bare_one_has_no_header(registry: Registry) -> None:
    framed = next(Games(Plan(games=1), registry).records(1)).value
    bare = next(Games(Plan(games=1, framed=False), registry).records(1)).value
    wrapper_id = registry.latest("events-value").schema.id
    assert framed is not None and bare is not None
    assert framed == b"\x00" + wrapper_id.to_bytes(4, "big") + b"\x00" + bare


@pytest.mark.parametrize("fault", [fault for fault, _ in FAULTS.items()])
def test_a_fault_is_what_its_name_says(registry: Registry, fault: str) -> None:
    plan = Plan(games=2, records=10, versions=1, faults=Faults(**{fault: 20}))
    wrapper = message_class(WRAPPER_TEXT, "wrapper")
    games = Games(plan, registry)
    for record in games.records(1):
        assert record.fault == fault
        if fault == "tombstones":
            assert record.value is None and record.envelope.payload is None
            continue
        assert record.value is not None
        if fault == "bad_envelope":
            assert record.value[:5] == b"\x00" + registry.latest("events-value").schema.id.to_bytes(4, "big")
            assert record.envelope == (None, None, None)
            continue
        envelope = wrapper.FromString(record.value[6:])
        header = int.from_bytes(envelope.payload[1:5], "big")
        assert header == (UNKNOWN_ID if fault == "unknown_id" else record.schema_id)
        assert (envelope.schema_id != header) == (fault == "id_mismatch")
        assert (not envelope.game_name) == (fault == "empty_name")


def test_empty_names_come_both_empty_and_absent(registry: Registry) -> None:
    games = Games(Plan(games=2, records=20, versions=1, faults=Faults(empty_name=40)), registry)
    assert {record.envelope.game_name for record in games.records(1)} == {"", None}


def test_records_beyond_the_plan_have_no_faults(registry: Registry) -> None:
    games = Games(Plan(games=2, records=10, versions=1, faults=Faults(corrupt=20)), registry)
    assert {record.fault for record in games.records(1, start=10)} == {None}
    assert {record.fault for record in games.records(2)} == {None}


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Plan(games=0), "games"),
        (lambda: Plan(records=-1), "records"),
        (lambda: Faults(corrupt=-1), "faults.corrupt"),
        (lambda: Plan(games=1, versions=1, records=2, faults=Faults(corrupt=3)), "faults"),
    ],
)
def test_an_impossible_plan_is_refused(make: Callable[[], object], what: str) -> None:
    with pytest.raises(SimulationInvalid) as caught:
        make()
    assert caught.value.parameters["what"] == what


def test_an_unknown_game_is_refused_by_name(registry: Registry) -> None:
    with pytest.raises(SimulationInvalid) as caught:
        Games(PLAN, registry).register(1, ["nobody_game"])
    assert "nobody_game" in caught.value.parameters["what"]


# -- many at once ----------------------------------------------------------------------------------------------------


def test_bulk_rows_are_good_records_each_with_its_own_instant(registry: Registry) -> None:
    games = Games(Plan(games=3, records=10, faults=Faults(corrupt=30)), registry)
    rows = {games.names[0]: 700, games.names[1]: 5, games.names[2]: 0}
    table = pa.Table.from_batches(games.envelope_blocks(2, rows, block_rows=300))
    assert table.schema == VALUE_SCHEMA
    reader, wrapper = Reader(registry), message_class(WRAPPER_TEXT, "wrapper")
    seen = set()
    for row in table.to_pylist():
        event = reader.event(wrapper.FromString(row["value"][6:]).payload)
        assert event.user_name == row["key"].decode()
        assert event.event_timestamp.ToDatetime(tzinfo=row["timestamp"].tzinfo) == row["timestamp"]
        seen.add((event.game_name, event.event_timestamp.seconds))
    assert Counter(game for game, _ in seen) == {games.names[0]: 700, games.names[1]: 5}


def test_bulk_rows_as_columns_hold_the_same_payloads(registry: Registry) -> None:
    games = Games(Plan(games=2), registry)
    values, columns = games.envelopes_table(3, 100), games.envelopes_table(3, 100, columns=True)
    wrapper = message_class(WRAPPER_TEXT, "wrapper")
    taken = [wrapper.FromString(value[6:]) for value in values["value"].to_pylist()]
    assert columns.to_pylist() == [
        {"game_name": w.game_name, "schema_id": w.schema_id, "payload": w.payload} for w in taken
    ]


def test_bulk_rows_are_repeatable_and_go_on_at_start(registry: Registry) -> None:
    games = Games(Plan(games=2), registry)
    first = games.envelopes_table(1, 50)
    assert first.equals(Games(Plan(games=2), registry).envelopes_table(1, 50))
    more = games.envelopes_table(1, 50, start=50)
    assert not set(first["value"].to_pylist()) & set(more["value"].to_pylist())


# -- truth -----------------------------------------------------------------------------------------------------------


def test_a_truth_survives_its_json(registry: Registry) -> None:
    truth = Truth.of(every(Games(PLAN, registry)))
    assert Truth.from_json(truth.to_json()) == truth
    assert json.loads(truth.to_json())["totals"] == {"rows": 220, "quarantined": 15, "tombstones": 5}


def test_truths_of_parts_add_up(registry: Registry) -> None:
    records = every(Games(PLAN, registry))
    whole = Truth.of(records[:100])
    whole.merge(Truth.of(records[100:]))
    assert whole == Truth.of(records)


def _count_into(path: str, game: str) -> None:
    for _ in range(50):
        one = Truth()
        one.add_rows(game, 1, 1)
        one.merge_into(path)


def test_concurrent_producers_share_one_truth_file_that_is_whole_at_any_moment(tmp_path: Path) -> None:
    path = tmp_path / "truth.json"
    spawn = multiprocessing.get_context("spawn")
    producers = [
        spawn.Process(target=_count_into, args=(str(path), game)) for game in ("ann_game", "ann_game", "bob_game")
    ]
    for producer in producers:
        producer.start()
    while any(producer.is_alive() for producer in producers):
        if path.exists():
            assert Truth.load(path).rows_total >= 1
    assert [producer.exitcode for producer in producers] == [0, 0, 0]
    assert Truth.load(path).rows == {"ann_game": {1: 100}, "bob_game": {1: 50}}
    assert [file.name for file in tmp_path.iterdir() if not file.name.endswith(".lock")] == ["truth.json"]


# -- Delta -----------------------------------------------------------------------------------------------------------


def test_a_delta_table_holds_every_record_and_the_truth_counts_each_commit(registry: Registry, tmp_path: Path) -> None:
    records = every(Games(PLAN, registry))
    truth, commits = Truth(), []

    def on_written(part: Truth) -> None:
        commits.append(part.records_total)
        truth.merge(part)

    assert write_delta(str(tmp_path / "bronze"), iter(records), rows_per_commit=100, on_written=on_written) == 240
    table = DeltaTable(tmp_path / "bronze")
    assert commits == [100, 100, 40]
    assert table.version() == 2
    rows = table.to_pyarrow_table().select(["value", "key", "timestamp"])
    assert rows.schema.equals(VALUE_SCHEMA)
    assert Counter(rows["value"].to_pylist()) == Counter(record.value for record in records)
    assert rows["value"].null_count == truth.tombstones == FAULTS.tombstones
    reader = Reader(registry)
    assert Counter(map(reader.outcome, rows["value"].to_pylist())) == expected(truth)


def test_a_delta_table_of_plain_columns(registry: Registry, tmp_path: Path) -> None:
    records = every(Games(PLAN, registry))
    write_delta(str(tmp_path / "bronze"), records, columns=True)
    rows = DeltaTable(tmp_path / "bronze").to_pyarrow_table().to_pylist()
    assert Counter((r["game_name"], r["schema_id"], r["payload"]) for r in rows) == Counter(
        tuple(record.envelope) for record in records
    )


def test_a_bulk_table_is_written_in_commits(registry: Registry, tmp_path: Path) -> None:
    table = Games(Plan(games=2), registry).envelopes_table(1, 500)
    assert write_delta(str(tmp_path / "bronze"), table, rows_per_commit=400) == 1000
    assert DeltaTable(tmp_path / "bronze").version() == 2
    assert DeltaTable(tmp_path / "bronze").to_pyarrow_table().num_rows == 1000


def test_a_place_that_cannot_be_written_is_said_so(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreDown) as caught:
        write_delta(str(tmp_path / "file" / "bronze"), Games(Plan(games=1), registry).envelopes_table(1, 5))
    assert caught.value.parameters["path"].endswith("bronze")


# -- cleaning --------------------------------------------------------------------------------------------------------


def outcomes(steps: list[Step]) -> dict[str, str]:
    return {step.name: step.action for step in steps}


def test_cleaning_deletes_only_what_was_made_and_a_dry_run_deletes_nothing(registry: Registry, tmp_path: Path) -> None:
    registry.register("neighbour-value", event_text("neighbour", 1))
    manifest = Manifest.open(tmp_path / "made.json")
    games = Games(Plan(games=2), registry, manifest=manifest)
    games.register(1)
    games.register(2)
    write_delta(str(tmp_path / "bronze"), games.records(1), manifest=manifest)
    write_delta(str(tmp_path / "theirs"), games.records(1))

    manifest = Manifest.open(tmp_path / "made.json")
    dry = clean(manifest, registry)
    assert outcomes(dry) == {
        "amber_anchor_game-value": "delete",
        "brave_badger_game-value": "delete",
        "events-value": "delete",
        "bronze": "delete",
    }
    assert len(registry.subjects()) == 4 and (tmp_path / "bronze").exists()
    assert clean(manifest, registry, dry_run=False) == dry
    assert registry.subjects() == ["neighbour-value"]
    assert not (tmp_path / "bronze").exists() and DeltaTable.is_deltatable(str(tmp_path / "theirs"))
    assert clean(Manifest.open(tmp_path / "made.json"), registry) == []


def test_cleaning_keeps_a_subject_that_was_there_before(registry: Registry) -> None:
    theirs = game_names(1)[0] + "-value"
    registry.register(theirs, event_text(game_names(1)[0], 1))
    manifest = Manifest()
    Games(Plan(games=1), registry, manifest=manifest).register(2)
    assert outcomes(clean(manifest, registry, dry_run=False)) == {"events-value": "delete"}
    assert registry.subjects() == [theirs]


def test_cleaning_keeps_a_subject_to_which_somebody_added_a_version(registry: Registry) -> None:
    manifest = Manifest()
    Games(Plan(games=1), registry, manifest=manifest).register(1)
    subject = game_names(1)[0] + "-value"
    registry.register(subject, event_text(game_names(1)[0], 5))
    steps = clean(manifest, registry, dry_run=False)
    assert outcomes(steps) == {subject: "keep", "events-value": "delete"}
    assert "somebody else" in next(step.why for step in steps if step.action == "keep")
    assert manifest.has_subject(registry.name, subject)


def test_cleaning_keeps_subjects_of_another_registry(registry: Registry, tmp_path: Path) -> None:
    manifest = Manifest()
    Games(Plan(games=1), registry, manifest=manifest).register(1)
    other = open_registry(RegistryConfig(path=str(tmp_path / "other")))
    Games(Plan(games=1), other).register(1)
    assert set(outcomes(clean(manifest, other, dry_run=False)).values()) == {"keep"}
    assert set(outcomes(clean(manifest, None, dry_run=False)).values()) == {"keep"}
    assert len(other.subjects()) == len(registry.subjects()) == 2


def test_cleaning_keeps_a_table_that_was_made_anew_at_our_path(registry: Registry, tmp_path: Path) -> None:
    manifest = Manifest()
    table = Games(Plan(games=1), registry).envelopes_table(1, 5)
    path = str(tmp_path / "bronze")
    write_delta(path, table, manifest=manifest)
    DeltaTable(path)
    for file in (tmp_path / "bronze" / "_delta_log").iterdir():
        file.unlink()
    write_deltalake(path, table)
    assert outcomes(clean(manifest, registry, dry_run=False)) == {"bronze": "keep"}
    assert DeltaTable.is_deltatable(path)


def test_a_second_producer_with_the_same_manifest_goes_on(registry: Registry, tmp_path: Path) -> None:
    Games(Plan(games=1), registry, manifest=Manifest.open(tmp_path / "made.json")).register(1)
    Games(Plan(games=1), registry, manifest=Manifest.open(tmp_path / "made.json")).register(2)
    assert set(outcomes(clean(Manifest.open(tmp_path / "made.json"), registry, dry_run=False)).values()) == {"delete"}
    assert registry.subjects() == []


# -- Kafka -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def topic(kafka: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """A name of this test's own; the topic is deleted at the end."""
    name = f"simulate-{abs(hash(request.node.name)) % 10**8}"
    yield name
    # A client that nobody holds is destroyed, and its answer may never come.
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for future in admin.delete_topics([name]).values():
        future.exception(timeout=60)


def everything_in(servers: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "none", "enable.partition.eof": False})
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=60)[1] for p in partitions}
    consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
    found: list[tuple[bytes | None, bytes | None]] = []
    while len(found) < sum(ends.values()):
        message = consumer.poll(10)
        assert message is not None and message.error() is None
        found.append((message.key(), message.value()))
    consumer.close()
    return found


@pytest.mark.services
def test_a_topic_holds_every_record_and_tombstones_are_nulls(registry: Registry, kafka: Any, topic: str) -> None:
    records = every(Games(PLAN, registry))
    truth = Truth()
    assert write_kafka(kafka.bootstrap_servers, topic, records, partitions=2, on_written=truth.merge) == 240
    found = everything_in(kafka.bootstrap_servers, topic)
    assert Counter(found) == Counter((record.key, record.value) for record in records)
    assert sum(value is None for _, value in found) == truth.tombstones
    assert Counter(Reader(registry).outcome(value) for _, value in found) == expected(truth)


@pytest.mark.services
def test_kafka_from_delta_sends_every_row_in_the_order_of_commits(
    registry: Registry, kafka: Any, topic: str, tmp_path: Path
) -> None:
    records = every(Games(PLAN, registry))
    path = str(tmp_path / "bronze")
    write_delta(path, records, rows_per_commit=50)
    assert kafka_from_delta(path, kafka.bootstrap_servers, topic) == 240
    assert everything_in(kafka.bootstrap_servers, topic) == [(record.key, record.value) for record in records]


@pytest.mark.services
def test_bulk_blocks_go_to_kafka(registry: Registry, kafka: Any, topic: str) -> None:
    blocks = Games(Plan(games=2), registry).envelope_blocks(1, 500, block_rows=300)
    assert write_kafka(kafka.bootstrap_servers, topic, blocks) == 1000
    assert len(set(everything_in(kafka.bootstrap_servers, topic))) == 1000


@pytest.mark.services
def test_cleaning_deletes_our_topic_and_spares_a_neighbours(registry: Registry, kafka: Any, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    neighbour = topic + "-neighbour"
    admin.create_topics([NewTopic(neighbour, 1)])[neighbour].result()
    manifest = Manifest()
    records = list(Games(Plan(games=1, records=3), registry).records(1))
    write_kafka(kafka.bootstrap_servers, topic, records, manifest=manifest)
    write_kafka(kafka.bootstrap_servers, neighbour, records, manifest=manifest)
    assert outcomes(clean(manifest)) == {topic: "delete"}
    assert topic in admin.list_topics(timeout=60).topics
    assert outcomes(clean(manifest, dry_run=False)) == {topic: "delete"}
    # The controller's word is enough for whoever deletes; a broker may name the topic for a moment more.
    wait_until(lambda: topic not in admin.list_topics(timeout=60).topics, 120, "the topic is gone")
    assert neighbour in admin.list_topics(timeout=60).topics
    admin.delete_topics([neighbour])[neighbour].result()


@pytest.mark.services
def test_cleaning_keeps_a_topic_that_somebody_created_anew(registry: Registry, kafka: Any, topic: str) -> None:
    manifest = Manifest()
    write_kafka(kafka.bootstrap_servers, topic, [], manifest=manifest)
    manifest.topics[kafka.bootstrap_servers][topic] = "AAAAAAAAAAEAAAAAAAAAAg"
    assert outcomes(clean(manifest, dry_run=False)) == {topic: "keep"}


@pytest.mark.services
def test_a_live_load_sends_its_rate_and_stamps_the_moment(registry: Registry, kafka: Any, topic: str) -> None:
    before = time.time()
    games = Games(Plan(games=5), registry)
    truth = produce_live(kafka.bootstrap_servers, topic, games, rate=500, seconds=1.5, partitions=2)
    after = time.time()
    assert truth.rows_total == 750
    values = [value for _, value in everything_in(kafka.bootstrap_servers, topic)]
    reader, wrapper = Reader(registry), message_class(WRAPPER_TEXT, "wrapper")
    assert Counter(map(reader.outcome, values)) == expected(truth)
    events = [reader.event(wrapper.FromString((value or b"")[6:]).payload) for value in values]
    assert all(before <= event.event_timestamp.ToMicroseconds() / 1e6 <= after for event in events)
    assert after - before < 6


def test_a_broker_that_is_away_is_said_so(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distributary_simulate.games.kafka.REQUEST_TIMEOUT_SEC", 1.0)
    with pytest.raises(KafkaDown) as caught:
        write_kafka("127.0.0.1:1", "events", [])
    assert caught.value.parameters["servers"] == "127.0.0.1:1"
    assert "refused" in caught.value.parameters["detail"]


def test_kafka_from_delta_without_a_table_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(SourceDown):
        kafka_from_delta(str(tmp_path / "none"), "127.0.0.1:1", "events")
