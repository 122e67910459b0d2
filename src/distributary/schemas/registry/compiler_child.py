"""The compiler's own process: schema texts in, descriptors out, one schema after the other.

protoc is C++ code that follows whatever a schema's author wrote: some texts overflow its stack, some take minutes or
gigabytes. So it runs here, under limits that the operating system keeps, and a text that ends this process is the only
one to suffer. It runs through the module that `grpc_tools` builds its own import hooks on: 0.1 to 0.2 ms a schema,
errors as values. The command-line entry, which takes 2 ms, is used only where it must be: to read texts beside
descriptors.

Requests on standard input: 4 bytes of length, JSON `{"cpu_sec", "root", "files": {import path: text}, "strict"}`.
Replies on standard output: one byte (`DONE`, `BROKEN` or `TOO_LARGE`), 4 bytes of length, a serialised
`FileDescriptorSet` or words in UTF-8.
"""

from __future__ import annotations

import ast
import base64
import binascii
import errno
import json
import math
import os
import re
import resource
import select
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from grpc_tools import _protoc_compiler as protoc

from distributary.schemas.protobuf.source_comments import keep_comments
from distributary.schemas.registry.built_in import WELL_KNOWN, built_in
from distributary.schemas.registry.compiler import BROKEN, DONE, LENGTH, TOO_LARGE
from distributary.schemas.registry.lenient import own_names, wire_file, wire_text

IDLE_SEC: Final = 60.0
"""After so long without a request the process ends by itself."""

_DESCRIPTOR_CALL: Final = "DESCRIPTOR = _descriptor_pool.Default().AddSerializedFile("
_NAMES: Final = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EINVAL)
"""Faults of a file's name; all others are this machine's."""
_COMMENT: Final = re.compile(rb"//|/\*")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+=*\s*")


class Broken(Exception):
    """A schema that does not compile, and why."""


def main(folder: str, memory: int) -> None:
    """Answer requests until there are none. `folder`: for temporary files; `memory`: bytes of address space."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    tempfile.tempdir = folder
    while select.select([requests], [], [], IDLE_SEC)[0] and (head := requests.read(LENGTH.size)):
        _answer(json.loads(requests.read(LENGTH.unpack(head)[0])), replies)


def _answer(request: Mapping[str, Any], replies: IO[bytes]) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime + request["cpu_sec"])
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    try:
        status, body = DONE, compile_files(request["root"], request["files"], request["strict"])
    except Broken as error:
        status, body = BROKEN, str(error).encode(errors="replace")
    except RecursionError:
        status, body = BROKEN, b"it is nested too deeply"
    except MemoryError:
        status, body = TOO_LARGE, b""
    replies.write(bytes([status]) + LENGTH.pack(len(body)) + body)
    replies.flush()


def compile_files(root: str, texts: Mapping[str, str], strict: bool = False) -> bytes:
    """A serialised `FileDescriptorSet`: dependencies first, `root` last. Raises Broken.

    `strict`: as the texts stand, like a registry that is asked to take them.
    """
    ready = {name: file for name, text in texts.items() if (file := _descriptor(name, text)) is not None}
    written = {name: text for name, text in texts.items() if name not in ready}
    files = _with_descriptors(root, written, ready) if ready else _from_texts(root, written, strict)
    descriptors = FileDescriptorSet(file=files)
    try:
        _link(descriptors)
    except Broken:
        if strict:
            raise
        # protoc takes names that clash in JSON only from proto2 files, and this library does not.
        descriptors = FileDescriptorSet(file=[wire_file(file) for file in files])
        _link(descriptors)
    return descriptors.SerializeToString(deterministic=True)


def _from_texts(root: str, texts: dict[str, str], strict: bool) -> list[FileDescriptorProto]:
    """As the text stands; failing that, only what the wire needs of it."""
    texts = dict(texts)
    with tempfile.TemporaryDirectory(prefix="texts-") as folder:
        for name, text in texts.items():
            _write(Path(folder), name, text)
        while True:
            try:
                return _compiled(root, folder)
            except protoc.ProtocErrors as error:
                missing = [name for name in _missing(error) if name not in texts]
                built_ins = {name: source for name in missing if (source := built_in(name)) is not None}
                if not built_ins and strict:
                    raise Broken(_detail(error)) from None
                if not built_ins:
                    return _leniently(root, texts, missing, folder, _detail(error))
                for name, text in built_ins.items():
                    _write(Path(folder), name, text)
                texts |= built_ins


def _leniently(
    root: str, texts: Mapping[str, str], missing: list[str], folder: str, detail: str
) -> list[FileDescriptorProto]:
    """What the wire needs of the texts. Raises Broken with `detail`, the words of the first attempt."""
    absent, rename = set(missing), False
    while True:
        for name, text in texts.items():
            _write(Path(folder), name, wire_text(text, absent, rename=rename))
        try:
            files = _compiled(root, folder)
        except protoc.ProtocErrors as error:
            # Another file's imports may only be looked at now.
            newly_missing = set(_missing(error)) - absent
            if not newly_missing and rename:
                raise Broken(detail) from None
            absent, rename = absent | newly_missing, not newly_missing
        else:
            for file in files:
                if rename and file.name in texts:
                    own_names(file)
            return files


def _compiled(root: str, folder: str) -> list[FileDescriptorProto]:
    generated = protoc.get_protos(os.fsencode(root), [os.fsencode(WELL_KNOWN), os.fsencode(folder)])
    files = [FileDescriptorProto.FromString(_serialised(code.decode())) for _, code in generated]
    own = {file.name: file for file in files if (Path(folder) / file.name).is_file()}
    if any(_COMMENT.search((Path(folder) / name).read_bytes()) for name in own):
        for source in _with_source(root, folder):
            if source.name in own:
                keep_comments(own[source.name], source)
    return files


def _with_source(root: str, folder: str) -> list[FileDescriptorProto]:
    """The same files with what protoc says of their texts, which its Python output leaves out."""
    with tempfile.TemporaryDirectory(prefix="source-") as place:
        out = Path(place) / "out"
        arguments = ["protoc", f"-I{WELL_KNOWN}", f"-I{folder}", f"--descriptor_set_out={out}"]
        arguments += ["--include_imports", "--include_source_info", root]
        failed = _run(arguments, Path(place) / "said")
        return [] if failed else list(FileDescriptorSet.FromString(out.read_bytes()).file)


def _serialised(code: str) -> bytes:
    """The descriptor inside protoc's Python output: one line, one bytes literal."""
    calls = (line.strip() for line in code.split("\n"))
    call = next(line for line in calls if line.startswith(_DESCRIPTOR_CALL))
    literal: bytes = ast.literal_eval(call[len(_DESCRIPTOR_CALL) : -1])
    return literal


def _link(files: FileDescriptorSet) -> None:
    """Raises Broken where the library that decodes payloads would refuse the descriptors."""
    pool = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(files.SerializeToString()).file:
            pool.Add(file)
    except (TypeError, DecodeError, KeyError) as error:
        raise Broken(str(error)) from None


# -- descriptors in place of texts -------------------------------------------------------------------------


def _descriptor(name: str, text: str) -> FileDescriptorProto | None:
    """The file that a base64 text holds: what Confluent's Python and .NET clients register; None for .proto texts."""
    if not text.strip() or not _BASE64.fullmatch(text):
        return None
    try:
        file = FileDescriptorProto.FromString(base64.b64decode("".join(text.split()), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    if not (file.name or file.message_type or file.enum_type):
        return None
    file.name = name
    return file


def _with_descriptors(
    root: str, texts: dict[str, str], ready: dict[str, FileDescriptorProto]
) -> list[FileDescriptorProto]:
    """Texts and descriptors that import each other, in the order of their imports."""
    texts = dict(texts)
    names = {root, *(name for file in ready.values() for name in file.dependency)}
    texts |= {name: text for name in names if name not in texts and (text := built_in(name)) is not None}
    well_known = {name for name in names if (Path(WELL_KNOWN) / name).is_file() and name not in ready}
    absent = names - ready.keys() - texts.keys() - well_known
    files = {name: wire_file(file, absent) for name, file in ready.items()}
    roots = sorted((names & texts.keys()) | well_known)
    if roots:
        compiled = _by_command_line(roots, texts, files)
        files = {file.name: file for file in compiled} | files
    return _ordered(root, files)


def _by_command_line(
    roots: list[str], texts: Mapping[str, str], ready: Mapping[str, FileDescriptorProto]
) -> list[FileDescriptorProto]:
    with tempfile.TemporaryDirectory(prefix="mixed-") as folder:
        descriptors_file, out, messages_file = (Path(folder) / name for name in ("given", "out", "said"))
        descriptors_file.write_bytes(FileDescriptorSet(file=ready.values()).SerializeToString())
        tree = Path(folder) / "texts"
        tree.mkdir()
        arguments = ["protoc", f"-I{WELL_KNOWN}", f"-I{tree}", f"--descriptor_set_in={descriptors_file}"]
        arguments += [f"--descriptor_set_out={out}", "--include_imports", *roots]
        texts, absent, detail = dict(texts), set[str](), ""
        while True:
            for name, text in texts.items():
                _write(tree, name, wire_text(text, absent) if detail else text)
            if _run(arguments, messages_file) == 0:
                return list(FileDescriptorSet.FromString(out.read_bytes()).file)
            words = messages_file.read_text(errors="replace").replace(f"{tree}/", "")
            missing = set(re.findall(r"^(.+?): File not found\.$", words, re.MULTILINE)) - texts.keys() - absent
            built_ins = {name: source for name in missing if (source := built_in(name)) is not None}
            if not built_ins and detail and not missing:
                raise Broken(detail)
            if not built_ins:
                detail = detail or "; ".join(words.split("\n")).strip("; ")
                absent |= missing
            texts |= built_ins


def _run(arguments: list[str], messages_file: Path) -> int:
    """protoc's command line writes to file descriptor 2, which in this process is free."""
    written = os.open(messages_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    before = os.dup(2)
    try:
        os.dup2(written, 2)
        return int(protoc.run_main([os.fsencode(argument) for argument in arguments]))
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(written)


def _ordered(root: str, files: Mapping[str, FileDescriptorProto]) -> list[FileDescriptorProto]:
    """Each file after those that it imports. Raises Broken where a file imports itself, or one that is not there."""
    ordered: dict[str, FileDescriptorProto] = {}
    way: list[str] = [root]
    while way:
        name = way[-1]
        if name not in files:
            raise Broken(f"{name}: File not found.")
        todo = [other for other in files[name].dependency if other not in ordered]
        if not todo:
            ordered[way.pop()] = files[name]
        elif todo[0] in way:
            raise Broken(f"{name}: File recursively imports itself: {' -> '.join([*way, todo[0]])}")
        else:
            way.append(todo[0])
    return list(ordered.values())


# -- files and words ---------------------------------------------------------------------------------------


def _write(folder: Path, name: str, text: str) -> None:
    """Write one file of the set; a name comes from a registry and must stay inside the folder."""
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or {"..", "."} & set(name.split("/")) or {"\\", "\0"} & set(name):
        raise Broken(f"{name!r} is not a usable import path")
    target = folder / path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(text.encode())
    except UnicodeEncodeError as error:
        raise Broken(f"{name!r}: {error.reason}") from error
    except OSError as error:
        if error.errno not in _NAMES:
            raise
        raise Broken(f"{name!r}: {error.strerror}") from error


def _missing(error: protoc.ProtocErrors) -> list[str]:
    return [_text(e.filename) for e in error.errors() if _text(e.message) == "File not found."]


def _detail(error: protoc.ProtocErrors) -> str:
    """All messages; lines are counted from 0 by protoc, and -1 means the file as a whole."""
    return "; ".join(
        f"{_text(e.filename)}{f':{e.line + 1}' if e.line >= 0 else ''}: {_text(e.message)}" for e in error.errors()
    )


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
