"""The command line as a user meets it: exit codes, one line per error, JSON on stdout, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from typer.main import get_command

from distributary.cli import app
from distributary.cli.entry import _unexpected, execute
from distributary.cli.signals import Stopper
from distributary.config import RegistryConfig
from distributary.errors import Exit
from distributary.schemas.registry import open_registry
from distributary_simulate.games.records import Faults, Plan
from distributary_simulate.games.sinks import write_delta
from distributary_simulate.games.stream import Games
from distributary_simulate.games.truth import Truth
from tests.processes import command
from tests.services import free_ports

pytestmark = pytest.mark.usefixtures("old_signals")

DOCS = Path(__file__).parent.parent / "docs" / "cli.md"
HEAVY = ("pyspark", "py4j", "pyarrow", "deltalake", "confluent_kafka")

PIPELINE = """\
pipeline: games
source: {{type: delta, path: {root}/source, max_files_per_batch: 1}}
registry: {{path: {root}/registry}}
tables: {{root: {root}/lake}}
trigger: continuous
spark: {{master: "local[2]"}}
"""


def distributary(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=400, check=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE.format(root=tmp_path))
    return path


def verbs(found: Any = None, path: str = "distributary") -> Iterator[tuple[str, Any]]:
    found = found or get_command(app)
    for name, below in getattr(found, "commands", {}).items():
        yield f"{path} {name}", below
        yield from verbs(below, f"{path} {name}")


# -- help and docs -----------------------------------------------------------------------------------------


def test_every_command_and_option_has_help_and_every_command_is_in_the_docs() -> None:
    page = DOCS.read_text(encoding="utf-8")
    for path, found in verbs():
        assert found.help, path
        assert f"`{path}`" in page, f"{path} is not in docs/cli.md; run: python docs/generate.py"
        for parameter in found.params:
            assert getattr(parameter, "help", None), f"{path} {parameter.name}"


def test_no_line_of_a_list_of_commands_is_cut_on_80_columns() -> None:
    for path, group in verbs():
        for name, below in getattr(group, "commands", {}).items():
            room = 80 - len("  ") - max(len(one) for one in group.commands) - len("  ")
            assert not below.get_short_help_str(room).endswith("..."), f"{path} {name}"
    root: Any = get_command(app)
    room = 80 - len("  ") - max(len(one) for one in root.commands) - len("  ")
    assert not [name for name, below in root.commands.items() if below.get_short_help_str(room).endswith("...")]


def test_all_verbs_of_the_product_are_there() -> None:
    names = {path.removeprefix("distributary ") for path, _ in verbs()}
    wanted = "check plan run status verify replay resync maintain demo simulate workflow pipeline grants views clean"
    below = (
        "quarantine",
        "schema",
        "inspect",
        "simulate games",
        "simulate database",
        "simulate datastream",
        "simulate debezium",
        "workflow plan",
        "workflow databricks",
    )
    assert names >= {*wanted.split(), *below, "workflow local", "pipeline init", "pipeline run"}


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--version"]) == Exit.OK
    assert re.fullmatch(r"distributary \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_no_arguments_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([]) == Exit.OK
    assert "verify" in capsys.readouterr().out


# -- check, and what needs no Spark ------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["check"], ["--help"], ["run", "--help"]])
def test_check_and_help_load_no_heavy_library_and_few_modules(arguments: list[str], file: Path) -> None:
    """Their time is that of their imports, and modules are the same number on every machine."""
    given = [*arguments, str(file)] if arguments == ["check"] else arguments
    code = f"""
import sys
from distributary.cli.entry import execute
assert execute({given!r}) == 0
loaded = [name for name in {HEAVY!r} if name in sys.modules]
print(loaded, len(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    loaded, modules = done.stderr.strip().rsplit(" ", 1)
    assert loaded == "[]"
    assert int(modules) < 450


def test_a_command_ends_with_its_code_and_its_words_before_the_interpreter_takes_itself_apart(file: Path) -> None:
    """Threads of native libraries end it with code 134 while it does."""
    code = (
        "import atexit, os\natexit.register(os.abort)\n"
        f"from distributary.cli.entry import main\nmain(['check', {str(file)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == Exit.OK
    assert "valid: pipeline games" in done.stdout


def test_a_good_file_is_called_valid(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["check", str(file)]) == Exit.OK
    assert "valid: pipeline games" in capsys.readouterr().out


def test_a_file_can_be_checked_where_nobody_has_its_secrets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOBODY_HAS_THIS", raising=False)
    file = tmp_path / "games.yaml"
    security = '{protocol: SASL_SSL, mechanism: PLAIN, username: games, password: "${env:NOBODY_HAS_THIS}"}'
    text = (
        f'pipeline: games\nsource: {{type: kafka, bootstrap_servers: "b:9092", topic: e, security: {security}}}\n'
        'registry: {url: "${env:NOBODY_HAS_THIS}"}\ntables: {root: s3a://lake/silver}\n'
    )
    file.write_text(text)
    assert execute(["check", str(file)]) == Exit.BAD_INPUT
    assert execute(["check", str(file), "--without-secrets"]) == Exit.OK
    file.write_text(text.replace("PLAIN", "PLANE"))
    capsys.readouterr()
    assert execute(["check", str(file), "--without-secrets"]) == Exit.BAD_INPUT
    assert "source.security.mechanism" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["check", "plan", "run", "status", "verify", "replay", "clean"])
def test_an_unknown_key_is_one_line_with_exit_2_before_anything_starts(verb: str, file: Path) -> None:
    file.write_text(file.read_text().replace("tables:", "tabels:"))
    code = (
        f"import sys\nfrom distributary.cli.entry import execute\ncode = execute([{verb!r}, {str(file)!r}])\n"
        f"assert not [n for n in {HEAVY!r} if n in sys.modules]\nsys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == Exit.BAD_INPUT
    assert done.stdout == ""
    assert all(line.startswith("error: ") for line in done.stderr.splitlines())
    assert "tabels" in done.stderr
    assert "tables" in done.stderr


def test_a_missing_file_is_bad_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["check", "no-such.yaml"]) == Exit.BAD_INPUT
    assert capsys.readouterr().err.startswith("error: no-such.yaml: there is no such file")


@pytest.mark.parametrize(
    "arguments",
    [["rum"], ["run"], ["run", "--onse", "x"], ["demo", "gamez"], ["simulate", "games", "--records", "0"]],
)
def test_wrong_arguments_are_one_line_that_says_where_help_is(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(arguments) == Exit.BAD_INPUT
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert "Try: distributary" in said.err


@pytest.mark.parametrize(
    "arguments", [["demo", "cdc", "--layout", "wide"], ["views", "{file}"], ["resync", "{file}", "--route", "a"]]
)
def test_what_a_layout_does_not_have_is_bad_input(
    arguments: list[str], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute([a.format(file=file) for a in arguments]) == Exit.BAD_INPUT
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_status_takes_one_form_at_a_time(file: Path) -> None:
    assert execute(["status", str(file), "--json", "--watch"]) == Exit.BAD_INPUT


# -- errors ------------------------------------------------------------------------------------------------


def test_a_path_that_cannot_be_written_is_a_fault_of_the_environment(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(file.parent / "no" / "such" / "page.html")
    assert execute(["status", str(file), "--html", out]) == Exit.ENVIRONMENT
    said = capsys.readouterr().err
    assert said == f"error: {out}: No such file or directory\n"


def test_an_unforeseen_error_is_called_a_bug_and_shows_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert _unexpected(TypeError("no such thing")) == Exit.ATTENTION
    said = capsys.readouterr().err
    assert said.startswith("error: TypeError: no such thing. This is a bug in distributary")
    assert len(said.splitlines()) == 1


def test_a_missing_spark_is_said_with_what_adds_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert _unexpected(ModuleNotFoundError("No module named 'pyspark.sql'", name="pyspark.sql")) == Exit.ENVIRONMENT
    assert "pip install 'distributary[spark]'" in capsys.readouterr().err
    assert _unexpected(ModuleNotFoundError("No module named 'rich'", name="rich")) == Exit.ATTENTION


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = distributary("--debug", "check", tmp_path / "none.yaml")
    assert done.returncode == Exit.BAD_INPUT
    assert "Traceback" in done.stderr


# -- commands without Spark --------------------------------------------------------------------------------


def test_verify_of_a_pipeline_that_never_ran_is_fine_and_has_the_fixed_keys(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["verify", str(file), "--json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    keys = {"pipeline", "ok", "rows_in", "rows_written", "rows_quarantined", "rows_lost", "rows_duplicated", "tables"}
    assert keys <= found.keys()
    assert found["ok"] is True


def test_clean_of_a_pipeline_that_never_ran_removes_nothing(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(file.parent.rglob("*"))
    assert execute(["clean", str(file)]) == Exit.OK
    assert "nothing of pipeline games is there" in capsys.readouterr().out
    assert sorted(file.parent.rglob("*")) == before


# -- simulate games ----------------------------------------------------------------------------------------


def simulate(root: Path, *more: str) -> list[str]:
    files = ["--truth", str(root / "truth.json"), "--made", str(root / "made.json")]
    size = ["--games", "3", "--versions", "2", "--records", "20", "--corrupt", "2", "--tombstones", "1"]
    return ["simulate", "games", "--registry-path", str(root / "registry"), *files, *size, *more]


def test_simulate_writes_the_table_the_truth_and_what_was_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(simulate(tmp_path, "--delta", str(tmp_path / "source"))) == Exit.OK
    truth = Truth.load(tmp_path / "truth.json")
    assert (truth.rows_total, truth.quarantined, truth.tombstones) == (117, 2, 1)
    assert DeltaTable(str(tmp_path / "source")).to_pyarrow_table().num_rows == 120
    assert "sent 117 good rows, 2 bad records, 1 tombstones" in capsys.readouterr().out


def test_simulate_clean_says_first_and_removes_with_yes_only_what_was_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    registry = open_registry(RegistryConfig(path=str(tmp_path / "registry")))
    registry.register("mine-value", 'syntax = "proto3"; message m { int32 a = 1; }')
    execute(simulate(tmp_path, "--delta", str(tmp_path / "source")))
    assert execute(simulate(tmp_path, "--clean")) == Exit.OK
    assert "would delete: table source" in capsys.readouterr().out
    assert (tmp_path / "source").exists()
    assert execute(simulate(tmp_path, "--clean", "--yes")) == Exit.OK
    assert not (tmp_path / "source").exists()
    assert registry.subjects() == ["mine-value"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([], "--delta PATH"),
        (["--kafka", "localhost:1", "--columns"], "--columns"),
        (["--delta", "x", "--kafka-config", "sasl.mechanism"], "KEY=VALUE"),
        (["--delta", "x", "--registry-password", "${env:DISTRIBUTARY_NO_SUCH_VALUE}"], "DISTRIBUTARY_NO_SUCH_VALUE"),
        (["--delta", "x", "--registry", "http://localhost:1"], "exactly one of url"),
        (["--clean"], "--made FILE"),
    ],
)
def test_simulate_refuses_options_that_do_not_go_together(
    more: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(simulate(tmp_path, *more)) == Exit.BAD_INPUT
    said = capsys.readouterr().err
    assert says in said
    assert len(said.splitlines()) == 1


def test_simulate_without_a_registry_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["simulate", "games", "--delta", "x"]) == Exit.BAD_INPUT
    assert "--registry-path DIR" in capsys.readouterr().err


# -- signals -----------------------------------------------------------------------------------------------


class RecordingRun:
    """Stands in for a Run: notes from which thread it was asked to stop."""

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self.thread = ""

    def stop(self) -> None:
        self.thread = threading.current_thread().name
        self.stopped.set()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, Exit.INTERRUPTED), (signal.SIGTERM, Exit.OK)])
def test_a_signal_stops_the_run_from_another_thread(number: int, code: Exit) -> None:
    stopper, run = Stopper(), RecordingRun()
    stopper.attach(run)
    os.kill(os.getpid(), number)
    assert run.stopped.wait(60)
    assert run.thread != threading.current_thread().name
    assert stopper.exit_code(Exit.OK) == code


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT, None])
@pytest.mark.usefixtures("old_signals")
def test_a_second_signal_or_the_time_that_was_given_ends_the_process(
    second: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(os, "_exit", end)
    stopper, run = Stopper(0.05 if second is None else None), RecordingRun()
    stopper.attach(run)
    os.kill(os.getpid(), signal.SIGTERM)
    assert run.stopped.wait(60)
    if second is not None:
        assert not ended.is_set()
        os.kill(os.getpid(), second)
    assert ended.wait(60) and codes == [Exit.INTERRUPTED]


def test_ctrl_c_before_there_is_a_run_ends_the_process() -> None:
    Stopper()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


# -- the real run ------------------------------------------------------------------------------------------

GAMES = Plan(games=3, versions=2, records=60, seed=3, faults=Faults(corrupt=4, unknown_id=2, tombstones=2))


def fill(root: Path, commits: int = 6) -> Truth:
    """A source with `commits` files a version, so as many batches."""
    games = Games(GAMES, open_registry(RegistryConfig(path=str(root / "registry"))))
    truth = Truth()
    for version in (1, 2):
        rows = GAMES.records * GAMES.games // commits
        write_delta(str(root / "source"), games.records(version), rows_per_commit=rows, on_written=truth.merge)
    return truth


def _check_served(port: int) -> None:
    """A run that goes on says of itself that it decides its batches, and how many tables it has."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    assert re.search(r'^distributary_up\{pipeline="games",stream="whole"\} 1.0$', text, re.MULTILINE), text
    assert re.search(r'^distributary_tables\{pipeline="games",state="ok",stream="whole"\} [123].0$', text, re.MULTILINE)


def interrupted(file: Path) -> tuple[int, list[str], str]:
    """Start `run`, send Ctrl-C after its first batch; exit code, stdout, stderr."""
    (port,) = free_ports(1)
    file.write_text(f"{file.read_text()}metrics: {{port: {port}}}\n")
    with subprocess.Popen(command("run", file), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("batch "):
                break
        _check_served(port)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    return process.returncode, [*lines, *out.splitlines()], err


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_run_that_was_interrupted_in_the_middle_is_completed_exactly_once_by_the_next(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    truth = fill(file.parent)
    code, lines, err = interrupted(file)
    assert code == Exit.INTERRUPTED, err
    assert "stopping once this batch is written" in err
    assert "Traceback" not in err
    assert any("batches:" in line or "batch:" in line for line in lines)
    assert execute(["run", str(file), "--once", "--json"]) == Exit.OK
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["kind"] for one in said] == ["batch"] * (len(said) - 1) + ["run"]
    assert execute(["verify", str(file), "--json"]) == Exit.OK
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True, found
    assert (found["rows_written"], found["rows_quarantined"]) == (truth.rows_total, truth.quarantined)
    for game in truth.rows:
        assert DeltaTable(str(file.parent / "lake" / game)).to_pyarrow_table().num_rows == truth.rows_of(game)


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_source_that_is_not_there_is_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", str(file), "--once"]) == Exit.BAD_INPUT
    assert capsys.readouterr().err == (
        f"error: {file.parent}/source has no Delta table. Check source.path, or write to it first. [SOURCE_MISSING]\n"
    )


def test_the_schema_of_pipeline_files_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["schema"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["properties"]["pipeline"]


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "distributary", "--version"], capture_output=True, check=False)
    assert (done.returncode, done.stdout.startswith(b"distributary ")) == (0, True)


def test_a_shell_completes_the_commands_also_of_the_module() -> None:
    words = {"_DISTRIBUTARY_COMPLETE": "complete_bash", "COMP_WORDS": "distributary qu", "COMP_CWORD": "1"}
    for program in (command(), [sys.executable, "-m", "distributary"]):
        done = subprocess.run(program, env=os.environ | words, capture_output=True, text=True, timeout=300, check=False)
        assert done.stdout.split() == ["quarantine"]
