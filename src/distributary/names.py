"""Names of things: those of tables, made of routes; names in SQL; and names as a person sees them (`shown`).

Route -> table name is injective and reversible, safe on every store and catalog.

A name has only `a-z`, `0-9` and `_`, so no two names differ by case alone (file systems and metastores that fold case
cannot mix two tables up), and it never begins with `_` (Hadoop and Spark treat such folders as hidden; no table can be
`_delta_log` or `_distributary`). A simple route keeps its spelling: `ann_game` is `ann_game`.

- Every other character is written `_x<hex>_`, its code point in lower-case hex: `a-b` is `a_x2d_b`.
- A `_` of the route that is first, or stands before an `x`, is written `_x5f_`: an `_x` always begins an escape.
- Where the first character is escaped, an `x` goes in front: `Ann` is `x_x41_nn`. An `x` of the route that is first and
  stands before an escape is escaped itself, so `xAnn` is `x_x78__x41_nn`.
- A name over 200 characters is cut to a readable prefix + `_xh` + 32 hex digits of the route's SHA-256. `h` is no hex
  digit, so it meets no escaped name; two such routes meet only if 128 bits of SHA-256 do. It cannot be reversed.

That is the name of a route's own. Tables of one route are called more readably where nothing is in the way
(`readable_name`): by the rules of their template, as `{route|last|snake}`, or without any as words. Such a name is not
reversible, and two routes can meet in one; `engine.messages.table_names` gives the second the name of its own then.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Collection, Sequence
from functools import lru_cache

from distributary.redaction import redacted

MAX_NAME_CHARS = 200
"""Under the limits of Unity Catalog (255), the Hive metastore (256) and file names (255 bytes)."""

PLACEHOLDER = "{route}"
OF_FIELD = "__field"
"""Ends the column of a field that is called as a column of ours."""
_HASH_MARK = "_xh"
_HASH_HEX_CHARS = 32
_SIMPLE = re.compile(r"[a-z0-9][a-z0-9_]*")
RULES = ("lower", "snake", "last", "exact")
"""`lower`: small letters. `snake`: `OrderPlaced` as `order_placed`. `last`: what follows the last dot. `exact`: the
name of the route's own, which no other can have."""
_TEMPLATE = re.compile(rf"([a-z0-9][a-z0-9_]*)?\{{route((?:\|(?:{'|'.join(RULES)}))*)\}}([a-z0-9_]*)")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_TOKEN = re.compile(r"_x(?P<code>[0-9a-f]{1,6})_|_xh(?P<hash>[0-9a-f]{32})$|(?P<plain>[a-z0-9]|_(?!x))")
_MAX_CODE_POINT = 0x10FFFF
_MAX_TEMPLATE_CHARS = 100


def check_template(template: str) -> tuple[str, str]:
    """The parts of `template` before and after `{route}`, which may have rules.

    Raises:
        ValueError: `{route}` is not there exactly once, or the rest is not a-z, 0-9, _ (and does not begin with _).
    """
    match = _TEMPLATE.fullmatch(template)
    if match is None or len(template) > _MAX_TEMPLATE_CHARS:
        raise ValueError(
            f"allowed: {PLACEHOLDER} exactly once, around it only a-z, 0-9 and _ (not _ first), "
            f"at most {_MAX_TEMPLATE_CHARS} characters, as in 'silver_{PLACEHOLDER}' or '{{route|snake}}' (rules: "
            f"{', '.join(RULES)})"
        )
    return match[1] or "", match[3]


def rules_of(template: str) -> tuple[str, ...]:
    """The rules of a template, in order; those of one that is not allowed are none."""
    match = _TEMPLATE.fullmatch(template)
    return tuple(match[2].split("|")[1:]) if match is not None else ()


def without_rules(template: str) -> str:
    """The template whose names no two routes share. Raises ValueError."""
    before, after = check_template(template)
    return f"{before}{PLACEHOLDER}{after}"


@lru_cache(maxsize=16_384)
def table_name(route: str, template: str = PLACEHOLDER) -> str:
    """The table of `route`: `[a-z0-9_]`, at most `MAX_NAME_CHARS` long; see the module for the rules.

    Raises:
        ValueError: `route` is empty (such rows have no table), or `template` is not allowed.
    """
    if not route:
        raise ValueError("an empty route has no table")
    readable = _readable(route, rules_of(template))
    return _placed(route, list(readable) if readable is not None else _escape(route), template)


def _placed(route: str, tokens: list[str], template: str) -> str:
    """The tokens of a route's name in their template, cut where they are too many."""
    before, after = check_template(template)
    body = "".join(tokens)
    room = MAX_NAME_CHARS - len(before) - len(after)
    return before + (body if len(body) <= room else _hashed(route, tokens, room)) + after


def readable_name(route: str, template: str) -> str:
    """As `table_name`; where the template has no rules, in words: `Order-Placed` as `order_placed`, `Über` as `uber`.
    Of what is letter or digit nothing is dropped; a route that is a name already stays as it is. Raises ValueError."""
    if rules_of(template) or not route:
        return table_name(route, template)
    text = route if _SIMPLE.fullmatch(route) else _in_words(route)
    return _placed(route, list(text) if _SIMPLE.fullmatch(text) else _escape(text or route), template)


def digest_name(route: str, template: str) -> str:
    """A name of the route's own under `template`, whatever names other routes have: with a digest of it."""
    before, after = check_template(template)
    body = table_name(route, template)[len(before) :].removesuffix(after)
    return before + _hashed(route, list(body), MAX_NAME_CHARS - len(before) - len(after)) + after


def names_of(route: str, template: str) -> list[str]:
    """The names that a table of the route can have by a template, the best first: the readable one, the name of the
    route's own, the one in words, and one with a digest of the route."""
    return list(dict.fromkeys(_ways(route, template)))


def name_beside(route: str, template: str, name: str, of: str) -> str:
    """The name under `template` of a table of the route that is called as another one of its tables is: that one has
    `name` under the template `of`. Where the two have other rules, the name that `template` alone says."""
    if rules_of(template) == rules_of(of) != ("exact",):
        for own_name, other in zip(_ways(route, template), _ways(route, of), strict=True):
            if other == name:
                return own_name
    return table_name(route, template)


def _ways(route: str, template: str) -> list[str]:
    """As `names_of`, one for each way to name it."""
    own = without_rules(template)
    names = [readable_name(route, template), table_name(route, own), readable_name(route, own)]
    return [*names, digest_name(route, template)]


def route_of(name: str, template: str = PLACEHOLDER) -> str | None:
    """The route whose table is `name`; None where the name does not say it: it was too long, or made by rules.

    Raises:
        ValueError: no route has this name under `template`.
    """
    before, after = check_template(template)
    if rules_of(template) not in ((), ("exact",)):
        return None
    body = name[len(before) : len(name) - len(after)]
    if name != before + body + after:
        raise ValueError(f"{name!r} does not have the form {template!r}")
    tokens = _tokens(body)
    if tokens and tokens[-1]["hash"] is not None:
        return None
    route = "".join(token["plain"] or chr(int(token["code"], 16)) for token in tokens)
    if not route or table_name(route, template) != name:
        raise ValueError(f"{name!r} is not the name of any route")
    return route


MAX_SHOWN_CHARS = 200
"""Characters of a name that a person is shown; of a longer one, its beginning and its length."""


def counted(number: int, singular: str, plural: str | None = None) -> str:
    """`1 table`, `1,200 tables`; `plural` where an s does not make it."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def shown(name: object, limit: int = MAX_SHOWN_CHARS) -> str:
    """A name or an error from outside (route, column, key, file) as part of one line on a terminal or in a log.

    Whoever writes a record chooses its route: what does not print, moves the cursor or begins another line is spelled
    out, as `\\x1b`, `\\n` or `\\u202e`.
    """
    text = str(name)
    if len(text) > limit:
        return f"{printable(text[:limit])}... ({len(text):,} characters)"
    return printable(text)


def printable(text: str, keep: str = "") -> str:
    """`text` with all that does not print spelled out, but for the characters of `keep`, and without secrets."""
    text = redacted(text)
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def quoted(identifier: str) -> str:
    """`identifier` (one part of a name) in backticks for Spark SQL; a backtick inside is doubled.

    A column's name may be empty.
    """
    return "`" + identifier.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text for Spark SQL, in quotes."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quoted_parts(dotted: str) -> str:
    """A name of several parts for Spark SQL, each part `quoted`: `catalog.schema`. Raises ValueError: an empty part."""
    parts = dotted.split(".")
    if not all(parts):
        raise ValueError(f"{dotted!r} has an empty part")
    return ".".join(map(quoted, parts))


_PART = re.compile(r"\{(\w+)\}")
_PARTS = ("database", "schema", "table")
_PLAIN_PART = re.compile(r"[a-z0-9_]+")


def check_pattern(pattern: str) -> None:
    """A pattern for the tables of a database's table, as `{database}_{schema}_{table}_log`.

    Raises:
        ValueError: `{table}` is not there exactly once, another part is there twice, or the rest is not a-z, 0-9, _.
    """
    names = _PART.findall(pattern)
    rest = _PART.sub("", pattern)
    bad = names.count("table") != 1 or any(names.count(n) > 1 or n not in _PARTS for n in names)
    if bad or len(pattern) > _MAX_TEMPLATE_CHARS or pattern.startswith("_") or not set(rest) <= {*_PLAIN, "_"}:
        raise ValueError(
            "allowed: {table} exactly once, {database} and {schema} at most once, around them only a-z, 0-9 and _ "
            f"(not _ first), at most {_MAX_TEMPLATE_CHARS} characters, as in '{{database}}_{{table}}_log'"
        )


def pattern_name(pattern: str, database: str, schema: str, table: str) -> str:
    """The name of a source table's table under `pattern`. A part that is empty goes, and one underscore beside it.

    Parts are written in lower case, odd characters as in `table_name`. Unlike there, two source tables can meet in one
    name (`a`.`b_c` and `a_b`.`c`, or names that differ by case): whoever opens the table checks whose it is, and the
    settings of a route can give it names of its own.

    Raises:
        ValueError: `table` is empty, or the pattern is not allowed.
    """
    check_pattern(pattern)
    if not table:
        raise ValueError("a source table without a name has no table")
    values = {"database": database, "schema": schema, "table": table}
    name = pattern
    for key, value in values.items():
        placeholder = "{" + key + "}"
        if value:
            plain = value.lower()
            name = name.replace(placeholder, plain if _PLAIN_PART.fullmatch(plain) else table_name(plain))
        else:
            name = name.replace(f"{placeholder}_", "").replace(f"_{placeholder}", "").replace(placeholder, "")
    name = f"x{name}" if name.startswith("_") else name
    if len(name) <= MAX_NAME_CHARS:
        return name
    digest = hashlib.sha256(f"{pattern}\0{database}\0{schema}\0{table}".encode("utf-8", "surrogatepass")).hexdigest()
    room = MAX_NAME_CHARS - len(_HASH_MARK) - _HASH_HEX_CHARS
    return name[:room] + _HASH_MARK + digest[:_HASH_HEX_CHARS]


def _readable(route: str, rules: Sequence[str]) -> str | None:
    """The route by rules; None where that says nothing else, or nothing at all."""
    if not rules:
        return None
    text = route
    for rule in rules:
        if rule == "last":
            text = text.rpartition(".")[2]
        elif rule == "lower":
            text = text.lower()
        elif rule == "snake":
            text = _snake(text)
    if _SIMPLE.fullmatch(text):
        return text
    return "".join(_escape(text)) if text and text != route else None


def _snake(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", _apart(text).lower()).strip("_")


def _apart(text: str) -> str:
    """Words that only a capital letter parts, with `_` between them."""
    return re.sub(r"([a-z0-9])([A-Z])|([A-Z])([A-Z][a-z])", r"\1\3_\2\4", text)


def _in_words(text: str) -> str:
    """As `_snake`, without accents; letters that are none of a to z stay."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    words = _apart(unicodedata.normalize("NFKC", plain)).lower()
    return re.sub(r"[\W_]+", "_", words).strip("_")


def _escape(route: str) -> list[str]:
    """Tokens of the name in order, each to be kept whole."""
    if _SIMPLE.fullmatch(route) and "_x" not in route:
        return list(route)
    following = route[1:] + " "
    tokens = [c if _is_plain(c, following[i]) else _escaped(c) for i, c in enumerate(route)]
    if route[0] == "_" or (route[0] == "x" and tokens[1:] and tokens[1].startswith("_x")):
        tokens[0] = _escaped(route[0])
    return ["x", *tokens] if tokens[0].startswith("_") else tokens


def _is_plain(character: str, following: str) -> bool:
    return character in _PLAIN or (character == "_" and following != "x")


def _escaped(character: str) -> str:
    return f"_x{ord(character):x}_"


def _hashed(route: str, tokens: list[str], room: int) -> str:
    # Cut between tokens: half an escape in front of the mark could read as another route's escape.
    prefix = ""
    for token in tokens:
        if len(prefix) + len(token) > room - len(_HASH_MARK) - _HASH_HEX_CHARS:
            break
        prefix += token
    digest = hashlib.sha256(route.encode("utf-8", "surrogatepass")).hexdigest()
    return prefix + _HASH_MARK + digest[:_HASH_HEX_CHARS]


def _tokens(body: str) -> list[re.Match[str]]:
    """The tokens of an escaped name from left to right; empty where it is not one."""
    tokens: list[re.Match[str]] = []
    position = 1 if body.startswith("x_x") else 0
    while position < len(body):
        token = _TOKEN.match(body, position)
        if token is None or (token["code"] and int(token["code"], 16) > _MAX_CODE_POINT):
            return []
        tokens.append(token)
        position = token.end()
    return tokens


def beside_ours(names: Sequence[str], ours: Collection[str]) -> list[str]:
    """The columns of fields with these names, where columns of our own have `ours` (small letters): such a field's name
    gets `__field` behind it, until it is no other field's."""
    others = {name.lower() for name in names if name.lower() not in ours}
    columns = []
    for name in names:
        if name.lower() in ours:
            name += OF_FIELD
            while name.lower() in others:
                name += OF_FIELD
            others.add(name.lower())
        columns.append(name)
    return columns
