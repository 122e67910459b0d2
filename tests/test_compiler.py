"""The compiler's process: what a hostile schema may cost, and that it costs nobody else anything."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from distributary.errors import CompilerDown, SchemaBroken
from distributary.schemas.registry import compiler
from distributary.schemas.registry.compile import compile_text
from distributary.schemas.registry.compiler import Compiler, Limits
from distributary.scratch import sweep

P3 = 'syntax = "proto3";\n'
GOOD = P3 + "message A { int32 x = 1; }"
CRASH = (
    'syntax = "proto2"; import "google/protobuf/descriptor.proto"; message O { optional O a = 1; }'
    "extend google.protobuf.FileOptions { optional O o = 5000; }"
    f"option (o) = {'{a:' * 10_000}{{}}{'}' * 10_000};"
)
MANY = P3 + "".join(f"message M{n} {{}}\n" for n in range(300_000))
GROUPS = (
    'syntax = "proto2"; message A {'
    + "".join(f"optional group G{n} = 1 {{" for n in range(20_000))
    + "}" * 20_000
    + "}"
)


def refused(one: Compiler, text: str) -> str:
    with pytest.raises(SchemaBroken) as error:
        compile_text(text, id=7, compiler=one)
    assert error.value.parameters["what"] == "id 7"
    detail: str = error.value.parameters["detail"]
    return detail


def test_a_schema_that_crashes_protoc_is_broken_and_the_next_one_compiles() -> None:
    one = Compiler()
    assert "SIGSEGV" in refused(one, CRASH)
    assert compile_text(GOOD, compiler=one).descriptor_set


def test_a_schema_that_takes_too_long_is_broken() -> None:
    one = Compiler(Limits(cpu_sec=1))
    began = time.monotonic()
    assert "registry.compile_sec" in refused(one, MANY)
    assert time.monotonic() - began < 60
    assert compile_text(GOOD, compiler=one).descriptor_set


def test_a_schema_that_takes_too_much_memory_is_broken() -> None:
    one = Compiler(Limits(memory=300 * 2**20))
    assert "registry.compile_memory" in refused(one, GROUPS)
    assert compile_text(GOOD, compiler=one).descriptor_set


def test_a_schema_that_is_too_long_is_not_given_to_the_compiler() -> None:
    assert "registry.max_schema_size" in refused(Compiler(Limits(size=100)), GOOD + " " * 100)


def test_what_crashed_is_remembered_across_restarts_and_under_these_limits_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = refused(Compiler(cache=tmp_path), CRASH)
    good = compile_text(GOOD, compiler=Compiler(cache=tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(compiler._Process, "ask", lambda *_: pytest.fail("the compiler was asked again"))
        assert refused(Compiler(cache=tmp_path), CRASH) == why
        assert compile_text(GOOD, compiler=Compiler(cache=tmp_path)) == good
    asked = Compiler(Limits(cpu_sec=9), cache=tmp_path)
    assert "SIGSEGV" in refused(asked, CRASH)


def test_a_damaged_cache_is_compiled_again(tmp_path: Path) -> None:
    good = compile_text(GOOD, compiler=Compiler(cache=tmp_path))
    for file in tmp_path.iterdir():
        file.write_text(file.read_text()[:-40] + '"}')
    assert compile_text(GOOD, compiler=Compiler(cache=tmp_path)) == good


def test_whoever_ends_the_process_is_not_held_against_the_schema() -> None:
    one = Compiler(Limits(cpu_sec=7))
    compile_text(GOOD, compiler=one)
    child = compiler._process(one.limits)._child
    assert child is not None
    os.kill(child.pid, signal.SIGKILL)
    assert compile_text(GOOD, compiler=one).descriptor_set


def test_a_compiler_that_cannot_be_started_is_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(CompilerDown):
        compile_text(GOOD, compiler=Compiler(Limits(cpu_sec=6)))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(CompilerDown):
        compile_text(GOOD, compiler=Compiler(Limits(cpu_sec=5)))


def test_a_compiler_whose_folder_was_tidied_away_compiles_what_comes() -> None:
    one = Compiler()
    compile_text(GOOD, compiler=one)
    scratch = compiler._process(one.limits)._scratch
    assert scratch is not None
    shutil.rmtree(scratch.folder)
    assert compile_text(GOOD + "message TidiedAway {}", compiler=one).descriptor_set


def test_threads_share_one_process() -> None:
    one, found = Compiler(Limits(cpu_sec=8)), []

    def work(number: int) -> None:
        found.append(compile_text(f"{P3} message M{number} {{}}", compiler=one))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({schema.descriptor_set for schema in found}) == 16


def test_a_killed_driver_leaves_no_process_and_the_next_one_removes_its_folder(tmp_path: Path) -> None:
    program = (
        "import os, signal, sys, tempfile; tempfile.tempdir = sys.argv[1];"
        "from distributary.schemas.registry import compiler;"
        "from distributary.schemas.registry.compile import compile_text;"
        "compile_text('message A {}'); print(next(iter(compiler._processes.values()))._child.pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    child = int(done.stdout)
    until = time.monotonic() + 60
    while _state(child) != "Z" and time.monotonic() < until:
        time.sleep(0.05)
    assert _state(child) == "Z"
    assert list(tmp_path.iterdir())
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
