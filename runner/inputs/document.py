"""YAML documents: parsed into plain data with the position of every key and value, and errors that name one.

Rejects input that would not mean what it looks like: duplicate keys, tags, merge keys, cyclic or explosive
aliases, tabs, hidden characters, and encodings other than UTF-8.
"""

from __future__ import annotations

import errno
import re
import stat
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model.record.errors import UserError, did_you_mean
from model.record.units import visible

if TYPE_CHECKING:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.nodes import MappingNode, Node

MAX_BYTES = 1_000_000
MAX_VALUES = 200_000  # after aliases are expanded
MAX_DEPTH = 40
MOST_SHOWN = 20  # errors of one file
_REACH = 60  # characters shown on each side of an error in a long line

TAGS = ("str", "int", "float", "bool", "null", "timestamp", "value", "merge", "map", "seq")
SECOND_COLON = "a second ':' in one line; put text with ': ' in quotes, and a space after each key's ':'"
NO_KEY = "no key can be here; does the line above lack a ':'?"
# ruamel.yaml's names for what it found, such as '<scalar>' or ('<anchor>',).
_TOKEN = re.compile(r"\(?'<([a-z ]+)>'(?:,\))?|the node content")
_NUMBER_OF_1_1 = re.compile(r"_|^[-+]?0b")  # 1_000 and 0b11 are text in YAML 1.2
_DECIMAL = re.compile(r"-?[0-9]+,[0-9]+")
_TOKENS = {"stream end": "the end of the file", "scalar": "a value", None: "a value"}

# Control characters, line breaks that only some programs honor, characters that make a terminal show a text
# in another order than it is read (Boucher & Anderson 2021, arXiv:2111.00169), halves of surrogate pairs.
_HIDDEN = r"\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
HIDDEN = re.compile(f"[{_HIDDEN}]")
HIDDEN_IN_TEXT = re.compile(f"(?![\t\n])[{_HIDDEN}]")  # a text may have several lines

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, order=True)
class Mark:
    """A position: `FILE:LINE:COL`, counted from 1, or a command-line option.

    Attributes:
        text: the whole line.
    """

    source: str
    line: int | None = None
    column: int | None = None
    text: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        """`FILE:LINE:COL`, the form that editors and terminals turn into a link."""
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source

    @property
    def excerpt(self) -> str:
        """The line with a caret under the position; empty if there is nothing to show."""
        if not self.text.strip() or not self.line or not self.column:
            return ""
        from rich.cells import cell_len  # the columns that a terminal needs

        first = max(0, self.column - 1 - _REACH)
        before = visible(self.text[first : self.column - 1])
        after = visible(self.text[self.column - 1 : self.column - 1 + _REACH])
        gutter = " " * len(str(self.line))
        return f"  {self.line} | {before}{after}\n  {gutter} | {' ' * cell_len(before)}^"


@dataclass(frozen=True, order=True)
class Problem:
    """One error and its fix."""

    mark: Mark
    text: str

    def __str__(self) -> str:
        return f"{self.mark}: {self.text}"

    def shown(self) -> str:
        """The error, and below it the line that it is about."""
        return "\n".join(filter(None, (str(self), self.mark.excerpt)))


class InvalidFile(UserError):
    """A study or profile has errors; the message shows each with its line."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = sorted(set(problems))
        shown = [problem.shown() for problem in self.problems[:MOST_SHOWN]]
        if more := len(self.problems) - len(shown):
            shown.append(f"and {more:,} more")
        super().__init__("\n".join(shown))

    @classmethod
    def at(cls, mark: Mark, text: str) -> InvalidFile:
        """The error with one problem, at this position."""
        return cls([Problem(mark, text)])


def code_point(character: str) -> str:
    """A character's code point, such as U+0007."""
    return f"U+{ord(character):04X}"


def look_alike(word: str) -> str:
    """Name the first letter that is not ASCII, which may look like another; empty if there is none."""
    foreign = next((letter for letter in word if not letter.isascii()), None)
    if foreign is None:
        return ""
    return f"; its letter '{foreign}' is {code_point(foreign)}, {unicodedata.name(foreign, 'without a name')}"


@dataclass(frozen=True)
class Document:
    """A parsed file.

    Attributes:
        data: dicts, lists and scalars.
        marks: position of each value's key, or of the value itself in a list, by the value's path.
        digits: each number as it is written, by its path.
    """

    source: str
    data: Any
    marks: dict[KeyPath, Mark] = field(repr=False)
    digits: dict[KeyPath, str] = field(default_factory=dict, repr=False)

    def mark(self, path: KeyPath) -> Mark:
        """Position of a value, or of its nearest parent if the value is absent."""
        while path not in self.marks and path:
            path = path[:-1]
        return self.marks.get(path, Mark(self.source, 1, 1))


def read_document(path: Path) -> Document:
    """Read one YAML file.

    Raises:
        InvalidFile: with the file, line and column of the error.
    """
    source = str(path)
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "a folder; give the path of a YAML file")
        if not stat.S_ISREG(status.st_mode):  # a pipe could be read only once, and make us wait without end
            raise OSError(errno.EINVAL, "not a regular file; save the text in one and give its path")
        if status.st_size > MAX_BYTES:
            text = f"{status.st_size:,} bytes; the limit for a study or profile is {MAX_BYTES:,}"
            raise OSError(errno.EFBIG, text)
        content = path.read_bytes()
    except FileNotFoundError as error:
        neighbours = sorted(map(str, path.parent.glob("*.yaml")))
        raise InvalidFile.at(Mark(source), f"{error.strerror} {did_you_mean(source, neighbours)}") from error
    except OSError as error:
        raise InvalidFile.at(Mark(source), f"{error.strerror}") from error
    except ValueError as error:  # a NUL in the path
        raise InvalidFile.at(Mark(source), str(error)) from error
    try:
        return parse(content.decode("utf-8-sig"), source)
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
        text = f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise InvalidFile.at(Mark(source, line, column), text) from error


def parse(text: str, source: str) -> Document:
    """Parse YAML text; `source` names it in errors.

    Raises:
        InvalidFile: with the line and column of the error.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    lines = [line.removesuffix("\r") for line in text.split("\n")]
    for number, line in enumerate(lines, start=1):
        if hidden := HIDDEN_IN_TEXT.search(line):
            mark = Mark(source, number, hidden.start() + 1, line)
            raise InvalidFile.at(mark, f"a hidden character ({code_point(hidden[0])}); remove it")
    for number, line in enumerate(lines, start=1):
        if line.startswith("%"):  # `%YAML 1.1` would turn yes, 010 and 30:00 into other values
            mark = Mark(source, number, 1, line)
            raise InvalidFile.at(mark, "remove the directive; the file is read as YAML 1.2")
        if line.strip() and not line.startswith("#"):
            break
    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False  # the builder refuses them
    try:
        node = yaml.compose(text)
    except MarkedYAMLError as error:
        raise InvalidFile.at(*_explain(error, lines, source)) from error
    except YAMLError as error:
        raise InvalidFile.at(Mark(source, 1, 1), " ".join(str(error).split())) from error
    except RecursionError as error:
        raise InvalidFile.at(Mark(source, 1, 1), f"nested more than {MAX_DEPTH} levels deep") from error
    if node is None:
        raise InvalidFile.at(Mark(source, 1, 1), "the file is empty; `runner init` writes a starter file")
    builder = _Builder(yaml, source, lines)
    return Document(source, builder.build(node, ()), builder.marks, builder.digits)


class _Builder:
    """Turns composed nodes into plain data and records positions."""

    def __init__(self, yaml: YAML, source: str, lines: list[str]) -> None:
        self.yaml, self.source, self.lines = yaml, source, lines
        self.marks: dict[KeyPath, Mark] = {}
        self.digits: dict[KeyPath, str] = {}
        self.values = 0
        self.anchors: dict[str, Node] = {}

    def build(self, node: Node, path: KeyPath) -> Any:
        """The node as plain data. Aliases are expanded, so each use counts toward the limit."""
        from ruamel.yaml.nodes import MappingNode, SequenceNode

        self.values += 1
        if len(path) > MAX_DEPTH:
            raise self.invalid(
                node, f"nested more than {MAX_DEPTH} levels deep, or an alias inside its own anchor"
            )
        if self.values > MAX_VALUES:
            raise self.invalid(node, f"aliases expand to more than {MAX_VALUES:,} values")
        self.marks.setdefault(path, self.mark(node))
        self.check_tag(node)
        if node.anchor and self.anchors.setdefault(node.anchor, node) is not node:
            raise self.invalid(node, f"the anchor '{node.anchor}' is already used above; rename one")
        if isinstance(node, MappingNode):
            return self.mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        value = self.scalar(node)
        if isinstance(value, int | float) and not isinstance(value, bool):
            self.digits[path] = node.value
        return value

    def mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for number, (key_node, value_node) in enumerate(node.value):
            if number and node.flow_style and self.lacks_colon(key_node):
                raise self.invalid(key_node, _split_by_comma(node.value[number - 1][1], key_node))
            key = self.key(key_node)
            if key in result:
                first = self.marks[(*path, key)]
                raise self.invalid(
                    key_node, f"'{key}' is already set on line {first.line}; keep one of the two"
                )
            self.marks[(*path, key)] = self.mark(key_node)
            result[key] = self.build(value_node, (*path, key))
        return result

    def lacks_colon(self, key: Node) -> bool:
        """Whether a key is alone, as what follows a comma in `{a: 0,1}`."""
        end = key.end_mark
        after = self.lines[end.line][end.column :].lstrip()
        return isinstance(key.value, str) and after.startswith((",", "}"))

    def key(self, node: Node) -> str:
        from ruamel.yaml.nodes import ScalarNode

        self.check_tag(node)
        if isinstance(node, ScalarNode) and str(node.tag).endswith(":merge"):
            raise self.invalid(
                node, "merge keys (<<) are not part of YAML 1.2; repeat the keys, or use a rule"
            )
        if not isinstance(node, ScalarNode) or not isinstance(value := self.scalar(node), str):
            raise self.invalid(node, "a key must be a string; put it in quotes")
        return value

    def scalar(self, node: Node) -> Any:
        from ruamel.yaml.error import YAMLError

        try:
            value = self.yaml.constructor.construct_object(node)
        except (ValueError, KeyError) as error:
            text = f"'{node.value[:40]}' is not a valid number, date or boolean; put text in quotes"
            raise self.invalid(node, text) from error
        except YAMLError as error:  # a lone `=`, which was special in YAML 1.1
            raise self.invalid(node, f"'{node.value}' is not a valid value; put it in quotes") from error
        if isinstance(value, str) and (hidden := HIDDEN_IN_TEXT.search(value)):  # written as "\e" or alike
            raise self.invalid(node, f"the text has a hidden character ({code_point(hidden[0])}); remove it")
        if isinstance(value, int | float) and _NUMBER_OF_1_1.search(node.value):
            return node.value
        if value is None or isinstance(value, str | int | float | bool):
            return value
        return node.value  # a date stays a string, which the schema then checks

    def check_tag(self, node: Node) -> None:
        if str(node.tag).removeprefix("tag:yaml.org,2002:") not in TAGS:
            raise self.invalid(node, f"the tag {node.tag} is not allowed; write a plain value")

    def mark(self, node: Node) -> Mark:
        return _mark(self.source, self.lines, node.start_mark)

    def invalid(self, node: Node, text: str) -> InvalidFile:
        return InvalidFile.at(self.mark(node), text)


def _split_by_comma(before: Node, key: Node) -> str:
    """Advice for a key without a value: the comma before it was most often meant as text."""
    text = f"'{key.value}' has no value, since a comma ends the one before it"
    if not isinstance(before.value, str) or not before.value:
        return f"{text}: write '{key.value}: VALUE'"
    joined = f"{before.value},{key.value}"
    point = ", or write a decimal number with a point" if _DECIMAL.fullmatch(joined) else ""
    return f"{text}: put text with commas in quotes, '{joined}'{point}"


def _mark(source: str, lines: list[str], at: Any) -> Mark:
    """A position that ruamel.yaml gives, which counts from 0."""
    return Mark(source, at.line + 1, at.column + 1, lines[at.line] if at.line < len(lines) else "")


def _explain(error: MarkedYAMLError, lines: list[str], source: str) -> tuple[Mark, str]:
    """Where a syntax error is, and what to do about it, if ruamel.yaml does not say that itself."""
    at = error.problem_mark or error.context_mark
    mark = _mark(source, lines, at) if at else Mark(source, 1, 1)
    problem, context = " ".join(str(error.problem or error).split()), str(error.context or "")
    line = mark.text
    if "\t" in line[: len(line) - len(line.lstrip())] or "\\t" in problem:
        return mark, "found a tab; indent YAML with spaces"
    if "found another document" in problem:
        return mark, "a second YAML document starts here; a file holds one: remove the line `---`"
    if "mapping values are not allowed" in problem:
        second = ": " in line[: (mark.column or 1) - 1]
        return mark, SECOND_COLON if second else NO_KEY
    if "<document start>" in problem:
        return mark, NO_KEY
    if "cannot start any token" in problem:
        return mark, f"{problem}; put the text in quotes"
    if "<block end>" in problem:
        return mark, "the indentation does not match the lines above"
    began = error.context_mark
    if began and "quoted scalar" in context and "unexpected" in problem:
        return _mark(source, lines, began), "this quotation mark is never closed"
    if "escape" in problem:
        return mark, f"{problem}; in single quotes, a backslash stands for itself"
    if began and at and began.line != at.line:
        problem = f"{problem}, in the value that begins on line {began.line + 1}"
    return mark, _TOKEN.sub(lambda token: _TOKENS.get(token[1], f"a {token[1]}"), problem)
