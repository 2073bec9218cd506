"""Reads YAML for people: every value has its line, and nothing means something else than it looks like.

YAML 1.2's plain values only, so `no`, `on`, `2026-12-01` and `007` are texts. No anchors, aliases or tags, no field
twice in one mapping. Fields are texts always. Sizes and depth are bounded.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cli.rehearse.faults import Fault, UnusableDomain

Path_ = tuple[str | int, ...]

MAX_BYTES = 2 * 1024 * 1024
MAX_DEPTH = 32

_TAG = "tag:yaml.org,2002:"
_TEXT, _MAP, _SEQ = f"{_TAG}str", f"{_TAG}map", f"{_TAG}seq"


class _Loader(yaml.SafeLoader):
    """Composes nodes; what a plain value is follows the rules above."""


_Loader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", ["t", "f"]),
    # What begins with a nought or is longer than numbers of people is a code, not a number.
    ("int", r"-?(?:0|[1-9][0-9]{0,14})", list("-0123456789")),
    ("float", r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)", list("-0123456789")),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), _first)


@dataclass(frozen=True)
class YamlFile:
    """A file's data, and where each value of it stands. `name` is relative to the domain's folder."""

    name: str
    data: Any
    lines: dict[Path_, int]

    def fault(self, path: Path_, told: str) -> Fault:
        """Something is wrong with the value at `path`; the nearest one that stands somewhere gives the line."""
        while path and path not in self.lines:
            path = path[:-1]
        return Fault(self.name, self.lines.get(path, 1), told)


def read_yaml(folder: Path, name: str) -> YamlFile:
    """UnusableDomain when the file can't be read or is no sound YAML."""
    try:
        with (folder / name).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise UnusableDomain([Fault(name, 0, f"there is no such file in {folder}")]) from None
    except OSError as error:
        raise UnusableDomain([Fault(name, 0, f"can't be read: {error.strerror}")]) from None
    if len(content) > MAX_BYTES:
        raise UnusableDomain([Fault(name, 0, f"is larger than {MAX_BYTES:,} bytes")])
    return parse_yaml(name, content)


def parse_yaml(name: str, content: bytes) -> YamlFile:
    try:
        node = yaml.compose(content.decode("utf-8-sig"), Loader=_Loader)
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UnusableDomain([Fault(name, line, "is no UTF-8")]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        told = " ".join(filter(None, (error.context, error.problem)))
        raise UnusableDomain([Fault(name, mark.line + 1 if mark else 1, f"is no YAML: {told}")]) from None
    except yaml.YAMLError as error:
        raise UnusableDomain([Fault(name, 1, f"is no YAML: {str(error).splitlines()[0]}")]) from None
    except RecursionError:
        raise UnusableDomain([Fault(name, 1, f"is nested deeper than {MAX_DEPTH} levels")]) from None
    if node is None:
        raise UnusableDomain([Fault(name, 1, "is empty")])
    reader = _Reader(name)
    data = reader.value(node, ())
    if reader.faults:
        raise UnusableDomain(reader.faults)
    return YamlFile(name, data, reader.lines)


class _Reader:
    def __init__(self, name: str) -> None:
        self._name = name
        self._seen: set[int] = set()
        self.lines: dict[Path_, int] = {}
        self.faults: list[Fault] = []

    def value(self, node: yaml.Node, path: Path_) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        if id(node) in self._seen:
            return self._fault(line, "anchors and aliases (&name, *name) are not taken; write the value out")
        self._seen.add(id(node))
        if len(path) > MAX_DEPTH:
            return self._fault(line, f"is nested deeper than {MAX_DEPTH} levels")
        if isinstance(node, yaml.MappingNode) and node.tag == _MAP:
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _SEQ:
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, line)

    def _mapping(self, node: yaml.MappingNode, path: Path_) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                self._fault(line, "the name of a field must be a text")
            elif key.value in found:
                self._fault(line, f'"{key.value}" stands twice; it stood in line {self.lines[(*path, key.value)]}')
            else:
                self.lines[(*path, key.value)] = line
                found[key.value] = self.value(value, (*path, key.value))
        return found

    def _scalar(self, node: yaml.Node, line: int) -> Any:
        kind = node.tag.removeprefix(_TAG)
        match kind if isinstance(node, yaml.ScalarNode) else "":
            case "str":
                return node.value
            case "null":
                return None
            case "bool":
                return node.value == "true"
            case "int":
                return int(node.value)
            case "float" if math.isfinite(number := float(node.value)):
                return number
            case "float":
                return self._fault(line, f"{node.value} is too large")
        return self._fault(line, f"tags ({node.tag}) are not taken; write a plain value, or a text in quotes")

    def _fault(self, line: int, told: str) -> None:
        self.faults.append(Fault(self._name, line, told))
