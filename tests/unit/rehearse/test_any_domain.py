"""Proves that a domain with anything anywhere is either told with its faults or can be played; it never breaks us."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cli.rehearse.acting import perform
from cli.rehearse.faults import UnusableDomain
from cli.rehearse.grading import grade
from cli.rehearse.loading import load
from cli.rehearse.world import Call, Record
from cli.rehearse.yaml_files import parse_yaml
from tests.unit.rehearse.domains import DOMAIN, LOCKERS, TASK, write

WHOLE_TASK = f"""\
{TASK}  - absent: {{table: payments, where: {{amount: {{more_than: $facts.fee}}}}}}
  - equal: {{table: lockers, key: A, columns: {{uses: 4}}}}
  - unchanged: {{table: payments, but: [1]}}
rows:
  lockers: [{{id: D, size: large, uses: 1}}]
limits: {{calls: 5, tools: {{pay: 1, take_locker: {{at_least: 1}}}}}}
"""
SOUND = {
    "domain.yaml": parse_yaml("", DOMAIN.encode()).data,
    "rows/lockers.yaml": parse_yaml("", LOCKERS.encode()).data,
    "tasks/take.yaml": parse_yaml("", WHOLE_TASK.encode()).data,
}
# Words that mean something somewhere, put where they mean something else.
_WORDS = """
$args.id $row.uses $facts.fee $facts.sizes $locker $locker.uses $$ $ {n} {args.id} lockers payments id uses tags
string integer list date find_lockers take_locker is one_of matches exists any all not called count sum ( ^a
"""
_KEYS = """
table key where column tool with result plus minus times text row count sum calls is one_of at_least matches exists
any all not called uses size holder type items optional minimum pattern set columns limit
"""
_PLAIN = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.sampled_from(_WORDS.split())
_ANYTHING = st.recursive(
    _PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS.split()), inner, max_size=3),
    max_leaves=6,
)
_CALLS = [
    ("get_locker", {"id": "A"}),
    ("find_lockers", {}),
    ("find_lockers", {"size": "small", "uses": 2}),
    ("take_locker", {"id": "A", "holder": "Lou"}),
    ("take_locker", {"id": "A", "holder": "Lou"}),
    ("pay", {"locker": "B", "amount": 3}),
    ("hours", {}),
]


def _places(told: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for key, inner in told.items() if isinstance(told, dict) else enumerate(told) if isinstance(told, list) else ():
        yield from _places(inner, (*path, key))


PLACES = [(name, place) for name, told in SOUND.items() for place in _places(told) if place]


def _with(name: str, place: tuple[Any, ...], value: Any) -> dict[str, str]:
    files = copy.deepcopy(SOUND)
    parent = files[name]
    for step in place[:-1]:
        parent = parent[step]
    parent[place[-1]] = value
    return {file: orjson.dumps(told).decode() for file, told in files.items()}


def _play(folder: Path, files: dict[str, str]) -> None:
    try:
        domain = load(write(folder, files))
    except UnusableDomain as unusable:
        assert unusable.faults and all(fault.line or fault.told for fault in unusable.faults)
        return
    for task in domain.tasks.values():
        world, log = task.start, list[Record]()
        for tool, arguments in _CALLS:
            world, record = perform(domain, world, log, Call("c", tool, arguments), 0)
            log.append(record)
        grade(domain, task, log, world, None)
    orjson.dumps(domain.offered)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any")


def test_the_sound_one_is_played(folder: Path) -> None:
    _play(folder, {file: orjson.dumps(told).decode() for file, told in SOUND.items()})
    assert load(folder).tasks


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.sampled_from(PLACES), value=_ANYTHING)
def test_anything_anywhere_is_told_or_played(folder: Path, where: tuple[str, tuple[Any, ...]], value: Any) -> None:
    _play(folder, _with(*where, value))
