"""Parses YAML 1.2 into plain data, with the position of every key and value.

Rejects input that would not mean what it looks like: duplicate keys, tags, merge keys, cyclic or explosive
aliases, tabs, and encodings other than UTF-8.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.spec.problems import InvalidFile, Mark, Problem

if TYPE_CHECKING:
    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import Node

MAX_BYTES = 1_000_000
MAX_VALUES = 200_000  # after aliases are expanded
MAX_DEPTH = 40

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class Document:
    """A parsed file.

    Attributes:
        data: dicts, lists and scalars.
        marks: position of each value's key, or of the value itself in a list, by the value's path.
    """

    source: str
    data: Any
    marks: dict[KeyPath, Mark] = field(repr=False)

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
        if not path.is_file() and not path.is_dir() and path.exists():  # reading a pipe may take forever
            raise _invalid(Mark(source), "not a regular file; write it to one, which a retry reads again")
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise _invalid(Mark(source), getattr(error, "strerror", None) or str(error)) from error
    if len(content) > MAX_BYTES:
        raise _invalid(
            Mark(source, 1, 1), f"{len(content):,} bytes; the limit for a study or profile is {MAX_BYTES:,}"
        )
    return parse(_decode(content, source), source)


def parse(text: str, source: str) -> Document:
    """Parse YAML text; `source` names it in errors.

    Raises:
        InvalidFile: as in read_document.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    _refuse_control_characters(text, source)
    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(text)
    except MarkedYAMLError as error:
        at = error.problem_mark or error.context_mark
        mark = Mark(source, at.line + 1, at.column + 1) if at else Mark(source, 1, 1)
        raise _invalid(mark, _explain(error.problem or str(error), text, mark)) from error
    except YAMLError as error:
        raise _invalid(Mark(source, 1, 1), " ".join(str(error).split())) from error
    except RecursionError as error:
        raise _invalid(Mark(source, 1, 1), f"nested more than {MAX_DEPTH} levels deep") from error
    if node is None:
        raise _invalid(Mark(source, 1, 1), "the file is empty; `runner init` writes a starter file")
    builder = _Builder(yaml, source)
    return Document(source, builder.build(node, ()), builder.marks)


class _Builder:
    """Turns composed nodes into plain data and records positions."""

    def __init__(self, yaml: YAML, source: str) -> None:
        self.yaml, self.source = yaml, source
        self.marks: dict[KeyPath, Mark] = {}
        self.values = 0

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
        if isinstance(node, MappingNode):
            return self.mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        return self.scalar(node)

    def mapping(self, node: Node, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.key(key_node)
            if key in result:
                first = self.marks[(*path, key)]
                raise self.invalid(
                    key_node, f"'{key}' is already set on line {first.line}; keep one of the two"
                )
            self.marks[(*path, key)] = self.mark(key_node)
            result[key] = self.build(value_node, (*path, key))
        return result

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
        except ValueError as error:
            raise self.invalid(node, str(error)) from error
        except YAMLError as error:  # a lone `=`, which was special in YAML 1.1
            raise self.invalid(node, f"'{node.value}' is not a valid value; put it in quotes") from error
        if value is None or isinstance(value, str | int | float | bool):
            return value
        return node.value  # a date stays a string, which the schema then checks

    def check_tag(self, node: Node) -> None:
        if not str(node.tag).startswith("tag:yaml.org,2002:") or "python" in str(node.tag):
            raise self.invalid(node, f"the tag {node.tag} is not allowed; write a plain value")

    def mark(self, node: Node) -> Mark:
        return Mark(self.source, node.start_mark.line + 1, node.start_mark.column + 1)

    def invalid(self, node: Node, text: str) -> InvalidFile:
        return _invalid(self.mark(node), text)


def _decode(content: bytes, source: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
        text = f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise _invalid(Mark(source, line, column), text) from error


def _refuse_control_characters(text: str, source: str) -> None:
    for number, line in enumerate(text.split("\n"), start=1):
        for column, character in enumerate(line.removesuffix("\r"), start=1):
            if character != "\t" and unicodedata.category(character) == "Cc":
                problem = f"a control character (U+{ord(character):04X}); remove it"
                raise _invalid(Mark(source, number, column), problem)


def _explain(problem: str, text: str, mark: Mark) -> str:
    lines = text.splitlines()
    line = lines[mark.line - 1] if mark.line and mark.line <= len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or "\\t" in problem:
        return "found a tab; indent YAML with spaces"
    return " ".join(problem.split())


def _invalid(mark: Mark, text: str) -> InvalidFile:
    return InvalidFile([Problem(mark, text)])
