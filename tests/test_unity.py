"""Credentials that Unity Catalog vends: asked by the driver, handed to tasks, renewed, and shown nowhere."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

import pyarrow as pa
import pytest

from distributary import redaction
from distributary.config import HopFolder, Pipeline
from distributary.config.environment import environment
from distributary.errors import BadInput
from distributary.redaction import MASK, redacted
from distributary.repair.clean import apply, clean, forget_names
from distributary.running.bronze.bronze_table import hop_1_state, make_bronze
from distributary.running.catalog import enter, register_tables
from distributary.running.state_names import StateNames, state_tables
from distributary.shares import Cluster, Division
from distributary.sink.by_routes import RouteRows
from distributary.sink.committing import BatchEnding
from distributary.sink.sink_options import SinkOptions
from distributary.state.ledger import Entry, Ledger
from distributary.tables.evolve import Policy
from distributary.tables.outage import is_store_fault
from distributary.tables.put_once import exists, put_once, read
from distributary.tables.quarantine import REJECTED_SCHEMA, commit_quarantine, quarantine_uri, write_rejected
from distributary.tables.snapshot import Txn
from distributary.tables.store import Store
from distributary.tables.table import Table
from distributary.tables.unity import CatalogDown, UnityCatalog, Vended
from distributary.tables.unity_names import UnitySchema
from distributary.tables.vault import REST_SEC, Vault, vault_of
from tests.services.stores import S3
from tests.services.vending import TOKEN, Vending
from tests.unity_contract import Stage, check_all

ROOT = "s3://lake/silver"
HOUR = 3600.0


@dataclass
class FakeCatalog:
    """Gives numbered credentials for an hour. `down`: it does not answer."""

    clock: list[float]
    asked: list[tuple[str, str]] = field(default_factory=list)
    down: bool = False

    def path_credentials(self, place: str, operation: str) -> Vended:
        if self.down:
            raise CatalogDown("it is away")
        self.asked.append((place, operation))
        number = len(self.asked)
        return Vended({"aws_session_token": f"session-{number}-of-the-vault"}, self.clock[0], self.clock[0] + HOUR)


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def catalog(clock: list[float]) -> FakeCatalog:
    return FakeCatalog(clock)


@pytest.fixture
def vault(catalog: FakeCatalog, clock: list[float]) -> Vault:
    places: Any = {ROOT: "PATH_READ_WRITE", "s3://landing/events": "PATH_READ"}
    return Vault(cast(UnityCatalog, catalog), places, now=lambda: clock[0])


def token(vault: Vault, uri: str = f"{ROOT}/chess") -> str:
    return vault.options(uri)["aws_session_token"]


# -- what is kept, and for how long ------------------------------------------------------------------------


def test_a_folder_is_asked_for_once_and_all_below_it_has_its_credentials(vault: Vault, catalog: FakeCatalog) -> None:
    assert token(vault) == token(vault, f"{ROOT}/_distributary/games/ledger") == token(vault, ROOT)
    assert token(vault, "s3://landing/events") != token(vault)
    assert catalog.asked == [(ROOT, "PATH_READ_WRITE"), ("s3://landing/events", "PATH_READ")]
    assert token(vault, "s3://lake/silver-2/x") != token(vault)  # not below it, though it begins alike
    assert catalog.asked[2] == ("s3://lake/silver-2/x", "PATH_READ_WRITE")


def test_a_checkpoint_elsewhere_is_reached_by_the_options_that_are_given(catalog: FakeCatalog) -> None:
    places: Any = {ROOT: "PATH_READ_WRITE", "s3://checkpoints/games": None}
    store = Store({"aws_access_key_id": "ours"}, Vault(cast(UnityCatalog, catalog), places, now=lambda: 1000.0))
    for by in (store, pickle.loads(pickle.dumps(store))):
        assert by.at("s3://checkpoints/games/commits") == {"aws_access_key_id": "ours"}
        assert "aws_session_token" in by.at(f"{ROOT}/chess")
    assert [place for place, _ in catalog.asked] == [ROOT]


def test_they_are_renewed_when_half_of_their_time_is_over(
    vault: Vault, catalog: FakeCatalog, clock: list[float]
) -> None:
    first = token(vault)
    clock[0] += HOUR / 2 - 1
    assert token(vault) == first
    clock[0] += 1
    assert token(vault) != first


def test_while_the_catalog_is_away_those_that_last_are_used_and_it_is_asked_again_later(
    vault: Vault, catalog: FakeCatalog, clock: list[float]
) -> None:
    first = token(vault)
    clock[0] += HOUR / 2
    catalog.down = True
    assert token(vault) == first
    catalog.down = False
    assert token(vault) == first  # it rests
    clock[0] += REST_SEC
    second = token(vault)
    assert second != first
    catalog.down = True
    clock[0] += HOUR
    with pytest.raises(CatalogDown, match="it is away"):
        token(vault)


def test_after_an_outage_they_are_asked_anew(vault: Vault) -> None:
    first = token(vault)
    vault.doubt()
    second = token(vault)
    assert second != first
    assert token(vault) == second


def test_tasks_get_fresh_ones_and_not_what_asks_for_them(
    vault: Vault, catalog: FakeCatalog, clock: list[float]
) -> None:
    first = token(vault)
    clock[0] += HOUR / 2
    shipped = pickle.loads(pickle.dumps(vault))
    assert token(shipped) == token(vault) != first
    assert b"Catalog" not in pickle.dumps(vault)
    clock[0] += 10 * HOUR
    shipped.doubt()
    assert token(shipped) != first  # what it has; the store says whether that is still good
    with pytest.raises(CatalogDown, match="handed to this task"):
        shipped.options("s3://elsewhere/x")
    catalog.down = True
    assert token(pickle.loads(pickle.dumps(vault))) == token(shipped)


def test_no_text_shows_them_and_those_that_have_ended_are_not_looked_for(
    vault: Vault, catalog: FakeCatalog, clock: list[float]
) -> None:
    first = token(vault)
    assert first not in redacted(f"<Token-0>{first}</Token-0>") and first not in repr(vault.options)
    clock[0] += HOUR / 2
    second = token(vault)
    assert first not in redacted(first)
    clock[0] += HOUR / 2
    third = token(vault)
    assert redacted(first) == first
    assert redacted(second) == redacted(third) == MASK
    assert "session-" not in repr(Store({}, vault)) + repr(catalog.path_credentials(ROOT, "PATH_READ"))


def test_keys_that_a_server_gives_again_stay_hidden_when_their_first_time_is_over(clock: list[float]) -> None:
    class Same(FakeCatalog):
        def path_credentials(self, place: str, operation: str) -> Vended:
            return Vended({"aws_session_token": "the-same-session-again"}, clock[0], clock[0] + HOUR)

    vault = Vault(cast(UnityCatalog, Same(clock)), {ROOT: "PATH_READ_WRITE"}, now=lambda: clock[0])
    for _ in range(4):
        assert redacted(token(vault)) == MASK
        clock[0] += HOUR / 2


def test_a_worker_that_lives_for_long_looks_only_for_those_that_last(clock: list[float]) -> None:
    before = len(redaction._known)
    handed = [f"the-{number}th-session-of-a-worker" for number in range(50)]
    for secret in handed:
        kept = {ROOT: Vended({"aws_session_token": secret}, clock[0], clock[0] + HOUR)}
        Vault(None, {ROOT: "PATH_READ"}, kept, now=lambda: clock[0])
        assert redacted(secret) == MASK
        clock[0] += HOUR / 2
    assert redacted(handed[0]) == handed[0]
    assert len(redaction._known) <= before + 3


def send(request: BaseHTTPRequestHandler, text: bytes) -> None:
    request.wfile.write(text)


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_token_goes_nowhere_else_when_a_server_sends_us_on() -> None:
    heard: list[str | None] = []

    def elsewhere(request: BaseHTTPRequestHandler) -> None:
        heard.append(request.headers["Authorization"])
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b"{}")

    with answering(elsewhere) as other:

        def sends_on(request: BaseHTTPRequestHandler) -> None:
            request.send_response(302)
            request.send_header("Location", f"{other}/login")
            request.end_headers()

        with answering(sends_on) as url:
            for method in ("GET", "POST"):
                with pytest.raises(CatalogDown, match="answers 302"):
                    UnityCatalog(url, TOKEN).call(method, "/tables/x", "x", {})
    assert heard == []


@pytest.mark.parametrize(
    "text", [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n[]"]
)
def test_an_answer_that_breaks_off_or_is_none_counts_as_a_catalog_that_is_down(
    monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    monkeypatch.setattr("distributary.tables.unity.PAUSE_SEC", 0.001)
    with answering(lambda request: send(request, text)) as url, pytest.raises(CatalogDown, match="does not answer"):
        UnityCatalog(url).path_credentials(ROOT, "PATH_READ")


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        (
            {"aws_temp_credentials": {"access_key_id": "a", "secret_access_key": "b", "session_token": "c"}},
            {"aws_access_key_id": "a", "aws_secret_access_key": "b", "aws_session_token": "c"},
        ),
        (
            {"r2_temp_credentials": {"access_key_id": "a", "secret_access_key": "b", "session_token": ""}},
            {"aws_access_key_id": "a", "aws_secret_access_key": "b"},
        ),
        ({"azure_user_delegation_sas": {"sas_token": "sv=1&sig=x"}}, {"azure_storage_sas_key": "sv=1&sig=x"}),
        ({"azure_aad": {"aad_token": "t"}}, {"azure_storage_token": "t"}),
    ],
)
def test_each_clouds_credentials_have_the_names_that_the_clients_know(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], options: dict[str, str]
) -> None:
    monkeypatch.setattr(UnityCatalog, "call", lambda *_: {**answer, "expiration_time": 2_000})
    vended = UnityCatalog("http://catalog").path_credentials(ROOT, "PATH_READ")
    assert (dict(vended.options), vended.ends) == (options, 2.0)


def test_a_token_of_googles_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnityCatalog, "call", lambda *_: {"gcp_oauth_token": {"oauth_token": "ya29"}})
    with pytest.raises(CatalogDown, match="google_service_account_key"):
        UnityCatalog("http://catalog").path_credentials("gs://lake", "PATH_READ")


# -- the pipeline file -------------------------------------------------------------------------------------


def pipeline(root: str, url: str, **keys: Any) -> Pipeline:
    return Pipeline.model_validate(
        {
            "pipeline": "games",
            "source": {"type": "delta", "path": "s3a://landing/events"},
            "registry": {"path": "/registry"},
            "tables": {"root": root, "unity": {"url": url, "token": TOKEN}},
            **keys,
        }
    )


def test_credentials_are_asked_for_the_folders_of_the_pipeline_and_for_nothing_else() -> None:
    config = pipeline("s3a://lake/silver", "http://catalog")
    assert config.tables.places == (("s3a://lake/silver", "PATH_READ_WRITE"), ("s3a://landing/events", "PATH_READ"))
    apart = pipeline("s3a://lake/silver", "http://catalog", state="s3a://state/games", layout="two_hop")
    assert apart.tables.places == (
        ("s3a://lake/silver", "PATH_READ_WRITE"),
        ("s3a://state/games", "PATH_READ_WRITE"),
        ("s3a://landing/events", "PATH_READ"),
    )
    elsewhere = pipeline("s3a://lake/silver", "http://catalog", checkpoint="s3a://checkpoints/games")
    assert elsewhere.tables.places[-1] == ("s3a://checkpoints/games", None)
    beside = pipeline("s3a://lake/silver", "http://catalog", checkpoint="s3a://lake/silver/checkpoint")
    assert beside.tables.places == config.tables.places


def test_the_catalogs_token_is_masked_and_goes_to_no_task() -> None:
    config = pipeline("s3a://lake/silver", "http://catalog")
    assert TOKEN not in str(config.as_dict_masked()) + repr(config) + repr(UnityCatalog("http://catalog", TOKEN))
    assert TOKEN.encode() in pickle.dumps(config.tables)
    assert TOKEN.encode() not in pickle.dumps(config.tables.for_tasks)
    assert TOKEN.encode() not in pickle.dumps(Store({}, vault_of(UnityCatalog("http://127.0.0.1:9", TOKEN), ())))


def test_sparks_sink_takes_the_catalog_by_its_options() -> None:
    given = {"path": "s3://lake/silver", "route": "game", "unity.url": "http://catalog", "unity.token": TOKEN}
    options = SinkOptions.read(given)
    assert options.store.vault is not None and options.tables.places == (("s3://lake/silver", "PATH_READ_WRITE"),)
    with pytest.raises(BadInput, match="url"):
        SinkOptions.read({"path": "s3://lake/silver", "route": "game", "unity.token": TOKEN})


# -- the stand-in and the server itself --------------------------------------------------------------------


@pytest.fixture(scope="module")
def vending(tmp_path_factory: pytest.TempPathFactory, s3: S3) -> Iterator[Vending]:
    with Vending(tmp_path_factory.mktemp("vending"), s3) as server:
        yield server


@pytest.mark.services
def test_the_stand_in_keeps_the_contract(vending: Vending) -> None:
    check_all(Stage(vending.url, TOKEN, vending.root))
    with pytest.raises(CatalogDown, match="answers 401: UNAUTHENTICATED there is no such token"):
        UnityCatalog(vending.url, "another").path_credentials(vending.root, "PATH_READ")


def test_the_open_source_server_keeps_the_contract() -> None:
    """DISTRIBUTARY_UNITY: its address, DISTRIBUTARY_UNITY_PLACE: a folder that it knows (docs/unity.md)."""
    url, place = (environment().get(name) for name in ("DISTRIBUTARY_UNITY", "DISTRIBUTARY_UNITY_PLACE"))
    if not url or not place:
        pytest.skip("no server of Unity Catalog is named (DISTRIBUTARY_UNITY, DISTRIBUTARY_UNITY_PLACE)")
    check_all(Stage(url, None, place))


# -- the store behind it -----------------------------------------------------------------------------------


def store_of(vending: Vending, root: str) -> Store:
    tables = {"root": root, "unity": {"url": vending.url, "token": TOKEN}, "storage_options": dict(vending.options)}
    return Store.of(pipeline(root, vending.url, tables=tables).tables)


def append(table: Table, number: int) -> int:
    """One row; how many the table has then."""
    rows = pa.table({"n": [number]})
    table.append(rows.schema, [table.write(rows)], Txn("stream", number), Policy())
    opened = table.open()
    assert opened is not None
    return int(opened.dataset().to_table().num_rows)


@pytest.mark.services
def test_tables_are_written_by_vended_credentials_and_nothing_beside_their_folder_is(vending: Vending) -> None:
    root = f"{vending.root}/a".replace("s3:", "s3a:")
    store = store_of(vending, root)
    assert append(Table(f"{root}/chess", store), 0) == 1
    assert put_once(root, store, "plans", "0.json", b"{}") and not put_once(root, store, "plans", "0.json", b"{}")
    assert exists(root, store, "plans", "0.json") and read(root, store, "plans", "0.json") == b"{}"
    shipped: Store = pickle.loads(pickle.dumps(store))
    assert append(Table(f"{root}/chess", shipped), 1) == 2
    assert {given["place"] for given in vending.given() if given["place"].endswith("/a")} == {f"{vending.root}/a"}
    with pytest.raises(OSError, match="handed to this task"):
        Table(f"{vending.root}/b/chess", shipped).open()
    # The credentials themselves are good for their folder only.
    stolen = Store({**store.options, **store.at(root)})
    with pytest.raises(OSError, match="AccessDenied"):
        stolen.put(f"{vending.root}/b", "x", b"x")


@pytest.mark.services
def test_credentials_that_have_ended_are_the_stores_fault_and_new_ones_are_asked_for(vending: Vending) -> None:
    root = f"{vending.root}/c".replace("s3:", "s3a:")
    store = store_of(vending, root)
    table = Table(f"{root}/chess", store)
    append(table, 0)
    vending.tell("expire")
    attempts = (
        partial(append, table, 1),
        partial(put_once, root, store, "plans", "1.json", b"{}"),
        partial(store.get, root, "x"),  # a HEAD, whose answer has no body
        partial(store.delete, root, "x"),
    )
    for attempt in attempts:
        with pytest.raises(OSError, match="400 Bad Request") as caught:
            attempt()
        assert is_store_fault(caught.value)
        said = [given["token"] for given in vending.given() if given["token"] in str(caught.value)]
        assert not [secret for secret in said if secret in redacted(str(caught.value))]
    store.ask_anew()
    assert append(table, 1) == 2


# -- names -------------------------------------------------------------------------------------------------


@pytest.mark.services
def test_tables_get_their_names_as_they_are_made_and_clean_takes_both(vending: Vending) -> None:
    root = f"{vending.root}/named".replace("s3:", "s3a:")
    unity = {"url": vending.url, "token": TOKEN, "names": True}
    config = Pipeline.model_validate(
        {
            "pipeline": "games",
            "source": {"type": "dataframe"},
            "tables": {
                "root": root,
                "database": "named.silver",
                "unity": unity,
                "storage_options": dict(vending.options),
            },
        }
    )
    options = SinkOptions("game", config.pipeline, config.tables, config.state_root)
    rows = pa.table({"game": ["chess", "go"], "n": [1, 2]})
    BatchEnding(options, Txn("query", 0)).commit([RouteRows(options).take(rows.to_batches(), "query", 0, "0")])
    ledger = Ledger(config.state_root, config.pipeline, Store.of(config.tables))
    register_tables(cast(Any, None), config, ledger, ["chess", "go"])
    names = UnitySchema(UnityCatalog(vending.url, TOKEN), "named.silver")
    about = names.catalog.call("GET", "/tables/named.silver.go", "go")
    assert about is not None and about["storage_location"] == f"{vending.root}/named/go"
    assert [column["name"] for column in about["columns"]] == ["game", "n"]

    names.leave("chess", f"{root}/chess")
    names.enter("chess", f"{vending.root}/another", rows.schema)
    plan = forget_names(clean(config))
    assert [entry.path for entry in plan.catalog] == [f"{root}/go"] and not names.has("go")
    assert [path.reason for path in plan.kept] == [f"it is the table at {vending.root}/another"]
    apply(plan)
    assert Table(f"{root}/go", Store.of(config.tables)).open() is None


@pytest.mark.services
def test_ledger_quarantine_and_bronze_get_names_once_they_are_there_and_clean_takes_them(vending: Vending) -> None:
    root = f"{vending.root}/state".replace("s3:", "s3a:")
    unity = {"url": vending.url, "token": TOKEN, "names": True}
    tables = {"root": root, "database": "state.silver", "unity": unity, "storage_options": dict(vending.options)}
    config = pipeline(root, vending.url, tables=tables, layout="two_hop", state_database="state.operations")
    store = Store.of(config.tables)
    ledger = Ledger(config.state_root, config.pipeline, store)
    ledger.record("stream", 0, [Entry("stream", 0, None)], {})
    names = StateNames(cast(Any, None), config, store)
    schema = UnitySchema(UnityCatalog(vending.url, TOKEN), "state.operations")
    parts = ("ledger", "quarantine", "bronze")

    def known() -> list[str]:
        names.give()
        return [part for part in parts if schema.has(f"games_{part}")]

    assert known() == ["ledger"]
    rejected = pa.Table.from_pylist([{"route": "ann", "reason": "CORRUPT_PAYLOAD"}], REJECTED_SCHEMA)
    uri = quarantine_uri(config.state_root)
    commit_quarantine(uri, "games", [write_rejected(uri, [rejected], "stream", 0, "0", store)], "stream", 0, store)
    assert known() == ["ledger", "quarantine"]
    make_bronze(config, store)
    store.put_whole(hop_1_state(config), HopFolder.envelopes.name, b"[]")
    assert known() == list(parts)
    assert known() == list(parts)
    about = schema.catalog.call("GET", "/tables/state.operations.games_ledger", "ledger") or {}
    assert about["storage_location"] == f"{vending.root}/state/_distributary/games/ledger"

    hop_2 = {entry.parts for entry in clean(config, hop_2=True).catalog}
    assert hop_2 == {("state.operations", "games_ledger"), ("state.operations", "games_quarantine")}
    plan = clean(config)
    assert plan.kept == ()
    dropped = forget_names(plan).catalog
    assert {entry.parts[1] for entry in dropped} == {f"games_{part}" for part in parts}
    assert not any(schema.has(f"games_{part}") for part in parts)


def test_each_share_has_names_of_its_own_and_they_need_no_quotes() -> None:
    config = pipeline(
        "s3a://lake", "http://catalog", pipeline="my-games", layout="two_hop", state_database="operations"
    )
    share = config.for_share(Division.even(2).share("1-of-2", 3))
    own = "my_x2d_games"
    assert [*state_tables(config)] == [f"{own}_ledger", f"{own}_quarantine", f"{own}_bronze"]
    stem = f"{own}_x2f_3_x2f_1_x2d_of_x2d_2"
    assert [*state_tables(share)] == [f"{stem}_ledger", f"{stem}_quarantine", f"{own}_bronze"]
    assert state_tables(share)[f"{own}_bronze"] == config.bronze_path


def test_no_two_pipelines_give_their_ledgers_one_name() -> None:
    names = ("my-games", "my_games", "my_x2d_games", "my--games", "my_-games", "games")
    configs = [pipeline("s3a://lake", "http://catalog", pipeline=name, state_database="operations") for name in names]
    ledgers = {next(iter(state_tables(config))) for config in configs}
    assert len(ledgers) == len(names) and {"my_games_ledger", "games_ledger"} <= ledgers


def test_no_share_gives_its_ledger_the_name_of_another_or_of_a_pipeline() -> None:
    names = ("games", "games_1", "games_1_2_x", "games_1_2-x")
    configs = {name: pipeline("s3a://lake", "http://catalog", pipeline=name, state_database="o") for name in names}
    clusters = ("2_x", "2-x", "x")
    division = Division(tuple(Cluster(name) for name in clusters), clusters)
    shares = [configs[name].for_share(share) for name in ("games", "games_1") for share in division.shares(2)]
    shares += [configs["games"].for_share(share) for share in division.shares(1)]
    ledgers = {next(iter(state_tables(config))) for config in (*configs.values(), *shares)}
    assert len(ledgers) == len(names) + len(shares)


def test_what_the_catalog_refuses_is_said_and_one_that_is_down_is_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    status: list[int | None] = [403]

    def refuses(*_: Any, **__: Any) -> None:
        raise CatalogDown("no", status[0])

    monkeypatch.setattr(UnityCatalog, "call", refuses)
    names = UnitySchema(UnityCatalog("http://catalog"), "main.silver")
    enter(names, {"chess": "s3://lake/chess"}, Store())
    assert "main.silver cannot be made in the catalog" in caplog.text
    for status[0] in (None, 503, 429):
        with pytest.raises(CatalogDown):
            enter(names, {"chess": "s3://lake/chess"}, Store())


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"tables": {"database": "silver"}}, "the catalog and the schema"),
        ({"tables": {"database": "main.silver"}, "layout": "declarative"}, "which Spark makes"),
        ({"tables": {"database": "main.silver"}, "state_database": "operations"}, "as in main.operations"),
    ],
)
def test_names_need_a_catalog_and_no_views_of_sparks(keys: dict[str, Any], why: str) -> None:
    tables = {"root": "s3a://lake", "unity": {"url": "http://catalog", "names": True}, **keys["tables"]}
    with pytest.raises(ValueError, match=why):
        pipeline("s3a://lake", "http://catalog", **{**keys, "tables": tables})
