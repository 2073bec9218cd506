"""The table of rules is whole: every rule names tests, every named test exists, every section has rules."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "tests" / "RULES.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", TEXT, re.MULTILINE))
ROWS = [
    (section, *(cell.strip() for cell in line.strip().strip("|").rsplit("|", 1)))
    for section, body in SECTIONS.items()
    for line in body.splitlines()
    if re.match(r"\| (?!rule \|)", line)
]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_has_rules(section: str) -> None:
    assert any(row[0] == section for row in ROWS)


def test_a_rule_stands_once() -> None:
    rules = [rule for _, rule, _ in ROWS]
    assert len(set(rules)) == len(rules)


def test_nothing_but_rows_stands_in_a_section() -> None:
    known = re.compile(r"\| .+ \| `.+` \||\| rule \| tests \||\|---\|---\||")
    stray = [line for body in SECTIONS.values() for line in body.splitlines() if not known.fullmatch(line)]
    assert not stray


@pytest.mark.parametrize(("section", "rule", "answer"), ROWS)
def test_a_rule_names_tests_that_exist(section: str, rule: str, answer: str) -> None:
    named = re.findall(r"`([^`]+)`", answer)
    assert named and not re.sub(r"`[^`]+`", "", answer).strip(), f"{section}: {rule}: {answer}"
    for name in named:
        path, _, test = name.partition("::")
        assert test, f"{rule}: {name} names a file and no test"
        assert (ROOT / path).is_file(), f"{rule}: there is no {path}"
        assert test in _tests_in(ROOT / path), f"{rule}: {path} has no {test}"


@lru_cache
def _tests_in(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    # Stateful machines of hypothesis are run by the class that pytest collects.
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.Assign) and _is_test_case(node))
    return frozenset(
        {node.name for node in functions if node.name.startswith("test_")}
        | {target.id for node in classes for target in node.targets if isinstance(target, ast.Name)}
    )


def _is_test_case(node: ast.Assign) -> bool:
    return isinstance(node.value, ast.Attribute) and node.value.attr == "TestCase"
