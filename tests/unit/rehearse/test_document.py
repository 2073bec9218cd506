"""Proves that the document of rehearsals names every word of the format and every option; its YAML is sound."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from cli.commands import app
from cli.rehearse.conditions import OPERATORS
from cli.rehearse.expressions import FUNCTIONS
from cli.rehearse.fields import TYPES
from cli.rehearse.playing import CLOSING_REPLY
from cli.rehearse.shape import schema
from cli.rehearse.yaml_files import parse_yaml

TEXT = (Path(__file__).parents[3] / "docs" / "rehearsals.md").read_text()


def _words(told: object) -> set[str]:
    """The names of all fields that a schema knows."""
    if isinstance(told, list):
        return set().union(*map(_words, told)) if told else set()
    if not isinstance(told, dict):
        return set()
    properties = told.get("properties", {})
    return set(properties).union(*(_words(each) for each in told.values()))


@pytest.mark.parametrize(
    "word", sorted({*_words(schema("domain")), *_words(schema("task")), *OPERATORS, *FUNCTIONS, *TYPES})
)
def test_every_word_of_the_format_is_told(word: str) -> None:
    assert re.search(rf"`[^`\n]*\b{word}\b[^`\n]*`|^ *-? *{word}:|[{{,] *{word}:", TEXT, re.MULTILINE), word


def test_every_option_is_told() -> None:
    command = get_command(app).commands["rehearse"]
    options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
    assert len(options) > 12 and not [option for option in options if f"`{option}" not in TEXT]


def test_four_trials_run_at_once_where_nobody_says_otherwise() -> None:
    command = get_command(app).commands["rehearse"]
    assert [parameter.default for parameter in command.params if parameter.name == "concurrency"] == [4]


def test_the_closing_reply_is_told() -> None:
    assert CLOSING_REPLY in TEXT


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
def test_its_examples_are_yaml_as_it_is_read(block: str) -> None:
    assert parse_yaml("docs.yaml", block.encode()).data
