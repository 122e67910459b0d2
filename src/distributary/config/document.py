"""A YAML text to plain data, with the line of every key. Stricter than YAML 1.1 where that has traps, and bounded: a
few lines of it can stand for more values than fit into memory, and deep ones for more calls than Python has.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import yaml

from distributary.config.secrets import KeyPath, dotted
from distributary.config.text_files import FileTooLarge, read_text
from distributary.errors import ConfigError, ConfigFileMissing

MAX_DEPTH = 50
"""Keys below keys; no pipeline file needs more than ten."""
MAX_VALUES = 200_000
"""Keys and values, those of an alias counted at each place where it stands."""


_QUOTED = re.compile(r"'([^']*)'")
"""What PyYAML's messages quote of the file (`password: *word` is an alias), and signs and words of their own: `','`,
`'<scalar>'`."""


_INDENT = "this line begins in another column than its neighbours; keys of one mapping stand below each other"
_COLON = (
    "a second colon in this line, no space after the colon of the line before, or a line that is indented too far; a "
    "text with `: ` in it needs quotes"
)
_BACKSLASH = "a backslash in double quotes; write each backslash twice, or put the text in single quotes"
_COMMON = (
    ("", "'\\t'", "a tab; YAML takes spaces only"),
    ("quoted scalar", "unexpected end of stream", "the text that begins here has no quote at its end"),
    ("simple key", "expected ':'", "a key needs a colon and a space after it, as in `topic: events`"),
    ("", "unknown escape character", _BACKSLASH),
    ("", "escape sequence of", _BACKSLASH),
    ("", "expected <block end>", _INDENT),
    ("flow mapping", "expected ',' or '}'", "the `{` here has no `}`, or there is no comma before one of its keys"),
    ("flow sequence", "expected ',' or ']'", "the `[` here has no `]`, or there is no comma before one of its values"),
    (
        "",
        "mapping values are not allowed here",
        _COLON,
    ),
)
"""Of PyYAML's errors: a word of the context ("" for any), a word of the problem, what a person should read."""


class _Loader(yaml.SafeLoader):
    """Scalars of YAML 1.2: `no` and `on` are text, `010` is text, dates are text, `12:30` is text (not base 60)."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own form)
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """As PyYAML's own, which calls itself for each level, but with a limit to them."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_DEPTH} levels, one in another", problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?(0|[1-9][0-9]*)", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"(?:{_pattern})$"), list(_first))


def read_document(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The mapping in the YAML file at `path`, and the line (from 1) of each key path.

    Raises:
        ConfigFileMissing: there is no such file.
        ConfigError: it cannot be read, is not YAML, repeats a key, is too large or too deep, or is not a mapping of
            text keys.
    """
    file = str(path)
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise ConfigFileMissing(file=file) from None
    except OSError as error:
        raise ConfigError(file=file, key="file", detail=f"cannot be read: {error.strerror}") from error
    except FileTooLarge as error:
        raise ConfigError(file=file, key="file", detail=f"{error}: no pipeline file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(file=file, key="file", detail=f"is not UTF-8 text (byte {error.start})") from error
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(file=file, key="file", detail="must be a mapping: lines like `pipeline: games`")
        lines = _key_lines(node, file)
        return loader.construct_document(node), lines
    except yaml.MarkedYAMLError as error:
        mark, why = _where_and_why(error)
        # Nobody's cause: PyYAML's own text quotes the line, and there may be a password in it.
        raise ConfigError(file=file, key=_place(mark), detail=f"not YAML: {why}") from None
    except yaml.YAMLError as error:
        detail = f"not YAML: {str(error).splitlines()[0]}"
        raise ConfigError(file=file, key="file", detail=detail) from None
    except (ArithmeticError, LookupError, AttributeError, TypeError, ValueError):
        # PyYAML's constructors of `!!int`, `!!timestamp` and the like take for granted what they are given.
        detail = "a value is not what its tag says (`!!int` and the like), or is a number of thousands of digits"
        raise ConfigError(file=file, key="file", detail=detail) from None


def _where_and_why(error: yaml.MarkedYAMLError) -> tuple[yaml.Mark | None, str]:
    """The mistake's place and what it is, in words for the ones that people make."""
    problem, context = str(error.problem), str(error.context)
    for about, text, why in _COMMON:
        if about in context and text in problem:
            # What has no end is noticed at the end of the file, and a key without a colon in the next line.
            return (error.context_mark if about else error.problem_mark) or error.problem_mark, why
    return error.problem_mark or error.context_mark, _QUOTED.sub(_hidden, problem)


def _hidden(quoted: re.Match[str]) -> str:
    return quoted[0] if len(quoted[1]) < 2 or quoted[1].startswith("<") else "(...)"


def _place(mark: yaml.Mark | None) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else "file"


def _key_lines(root: yaml.Node, file: str) -> dict[KeyPath, int]:
    """The line of every key below `root`, whose keys become text; refuses what construction would pass over."""
    lines: dict[KeyPath, int] = {}
    visited = itertools.count(1)

    def walk(node: yaml.Node, path: KeyPath, above: tuple[yaml.Node, ...]) -> None:
        if next(visited) > MAX_VALUES:
            detail = f"more than {MAX_VALUES:,} values, those of aliases counted wherever they stand"
            raise ConfigError(file=file, key="file", detail=detail)
        if len(path) > MAX_DEPTH:
            raise ConfigError(file=file, key="file", detail=f"more than {MAX_DEPTH} levels, by its aliases")
        if any(node is ancestor for ancestor in above):
            raise ConfigError(file=file, key=dotted(path), detail="the alias contains itself")
        above = (*above, node)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                lines[(*path, index)] = item.start_mark.line + 1
                walk(item, (*path, index), above)
        if not isinstance(node, yaml.MappingNode):
            return
        line_of: dict[str, int] = {}
        for key, item in node.value:
            place = (*path, _key(key, path, file))
            line = key.start_mark.line + 1
            if key.value in line_of:
                detail = f"the key is given twice (line {line_of[key.value]} and line {line}); keep one"
                raise ConfigError(file=file, key=dotted(place), detail=detail)
            line_of[key.value] = lines[place] = line
            walk(item, place, above)

    walk(root, (), ())
    return lines


def _key(node: yaml.Node, path: KeyPath, file: str) -> str:
    # Every key is text as written: a route or a topic may look like a number, and `0` and `"0"` are one partition.
    if isinstance(node, yaml.ScalarNode):
        node.tag = "tag:yaml.org,2002:str"
        return str(node.value)
    raise ConfigError(
        file=file, key=_place(node.start_mark), detail=f"a key of {dotted(path) or 'the file'} is not text"
    )
