"""The table of failures names tests that exist, or the issue that a kind's feature comes with."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "tests" / "FAILURES.md").read_text().splitlines()
ROWS = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in LINES if re.match(r"\| (?!kind)", line)]
COMES_LATER = re.compile(r"comes with (issue \d+|the issue on \w+)")


def test_every_kind_is_there_once() -> None:
    kinds = [kind for kind, _ in ROWS]
    assert len(kinds) >= 40 and len(set(kinds)) == len(kinds)


@pytest.mark.parametrize(("kind", "answer"), ROWS)
def test_a_kind_has_a_test_or_the_issue_that_it_comes_with(kind: str, answer: str) -> None:
    named = re.findall(r"`([^`]+)`", answer)
    assert named or COMES_LATER.fullmatch(answer), f"{kind}: {answer}"
    for name in named:
        path, _, test = name.partition("::")
        assert (ROOT / path).is_file(), f"{kind}: there is no {path}"
        assert not test or test in _tests_in(ROOT / path), f"{kind}: {path} has no {test}"


def _tests_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
