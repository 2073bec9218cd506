"""Proves that whatever is wrong with a domain is told with file, line and what is accepted; and all of it at once."""

import os
from pathlib import Path

import pytest

from cli.rehearse.faults import Unusable, UnusableDomain
from cli.rehearse.loading import load
from cli.rehearse.running import make_domain
from tests.unit.rehearse.domains import FILES, LOCKERS, TASK, changed, faults, loaded, write

# (what is replaced, by what, what is told); the line is that of the replacement.
_DOMAIN = [
    ("description: You keep the lockers.\n", "", '"description" is missing: what the agent is'),
    ("policy:", "polices:", 'unknown field "polices", did you mean "policy"?'),
    ("policy: One locker each.", "policy: ''", '"policy" must be a text that is not empty, not ""'),
    ("  fee: 2.5", "  fee: {a: 1}", '"fee" must be a text, a number, true, false, or a list of those, not a mapping'),
    ("  fee: 2.5", "  a fee: 2.5", '"a fee" must be a name of letters, digits and _'),
    ("    key: id\n", "    key: nr\n", 'unknown column "nr". Accepted: id, size'),
    ("      size: {type: string,", "      size: {type: text,", '"type" must be a type (string, integer'),
    ("      id: string", "      id: text", '"id" must be a type (string, integer'),
    ("      id: string", "      id: boolean", "a key is a string, integer, date; id is a boolean"),
    ("      id: string", "      id: {type: string, optional: true}", "a key is never left out"),
    ("      id: string", "      id: {type: string, minimum: 1}", '"minimum" is for integer and number, not for string'),
    ("      id: string", "      id: {type: string, pattern: '('}", "is no pattern"),
    ("      id: string", "      id: {type: string, one_of: [1]}", "a value must be a text, not 1"),
    ("      tags: {type: list, items: string,", "      tags: {type: list,", 'a list needs "items"'),
    ('    new_key: "{n}"', "    new_key: P{n}", 'must be "{n}", since the key is an integer'),
    ("      locker: string", "      args: string", '"args" is a word of the language'),
    (
        "amount: {type: number, maximum: 100}",
        "amount: {type: number, minimum: 9, maximum: 1}",
        "is less than the minimum",
    ),
    ("  find_lockers:", "  find lockers:", '"find lockers" must be a name of letters, digits, _ and -'),
    ("      read: {table: lockers", "      reed: {table: lockers", 'unknown field "reed", did you mean "read"?'),
    ("does:\n      read: {table: lockers, key: $args.id}", "does: []", '"does" must be an action'),
    ("      read: {table: lockers,", "      read: {table: locker,", 'unknown table "locker", did you mean "lockers"?'),
    ("key: $args.id}\n  take", "key: $args.ident}\n  take", 'unknown name "args.ident", did you mean "args.id"?'),
    ("key: $args.id}\n  take", "key: 5}\n  take", "id is a text; 5 can't be one"),
    ("columns: [id, size]", "columns: [id, sizes]", 'unknown column of lockers "sizes", did you mean "size"?'),
    (
        "where: {size: $args.size,",
        "where: {sise: $args.size,",
        'unknown column of lockers "sise", did you mean "size"?',
    ),
    ("where: {size: $args.size,", "where: {size: $args.uses,", "size is a text and can't be compared with an integer"),
    ("where: {size: $args.size,", "where: {size: huge,", 'size must be one of "small", "large", not "huge"'),
    ("where: {size: $args.size,", "where: {size: [small],", "write {one_of: […]} or {is: […]}"),
    ("where: {size: $args.size,", "where: {size: {one_of: [huge]},", 'size must be one of "small", "large"'),
    ("where: {size: $args.size,", "where: {size: {one_of: small},", "one_of needs a list"),
    ("where: {size: $args.size,", "where: {size: {matches: '('},", "is no pattern"),
    ("where: {size: $args.size,", "where: {size: {like: x},", 'unknown operator "like". Accepted: is, is_not'),
    ("uses: {at_most: $args.uses}", "uses: {starts_with: $args.uses}", "starts_with is for texts; uses is an integer"),
    ("uses: {at_most: $args.uses}", "uses: {exists: 1}", "must be true or false"),
    (
        "uses: {at_most: $args.uses}",
        "uses: {at_most: {mod: [1, 2]}}",
        "a value is plain, a reference such as $args.room",
    ),
    ("{locker.holder: {exists: false}}", "{locker.owner: {exists: false}}", 'unknown name "locker.owner"'),
    ("{locker.holder: {exists: false}}", "holder", "a condition: a mapping such as"),
    ("{locker.holder: {exists: false}}", "{}", "a condition is a mapping such as"),
    ("error: Locker {args.id} is taken.", "error: Locker {args.nr} is taken.", 'unknown name "args.nr"'),
    (
        "{holder: $args.holder, uses: {plus: [$row.uses, 1]}}",
        "{id: $args.id}",
        "the key of a row (id) can't be changed",
    ),
    (
        "uses: {plus: [$row.uses, 1]}}}\n      - create: {table: payments, set: {locker: $args.id,",
        "uses: many}}\n      - create: {table: payments, set: {locker: $args.id,",
        'uses must be an integer of at least 0, not "many"',
    ),
    ("{plus: [$row.uses, 1]}", "{plus: [$row.uses, one]}", "must be a number"),
    ("{plus: [$row.uses, 1]}", "{plus: 1}", "must be a list of at least two values"),
    (
        "set: {locker: $args.id, amount: $facts.fee}",
        "set: {locker: $args.id}",
        '"amount" is missing: a number of at most 100',
    ),
    ("amount: $facts.fee", "amount: $facts.fees", 'unknown name "facts.fees", did you mean "facts.fee"?'),
    ("amount: $facts.fee", "amount: $args.holder", "amount must be a number of at most 100"),
    ("    on: [take_locker]", "    on: [take_lockers]", 'unknown tool "take_lockers", did you mean "take_locker"?'),
    ("  one-each:", "  One Each:", '"One Each" must be a name of small letters, digits and -'),
    ("    must: {held: 0}\n", "", '"must" is missing'),
    ("{count: {table: lockers,", "{count: {tables: lockers,", 'unknown field "tables", did you mean "table"?'),
    ("{count: {table: lockers,", "{sum: {table: lockers, column: holder,", 'unknown column "holder". Accepted: uses'),
    ("{count: {table: lockers,", "{row: {table: lockers, key: 1,", "needs either key or where"),
    ("{tool: get_locker, with: {id:", "{tool: get_locker, with: {nr:", 'unknown argument of get_locker "nr"'),
    ("{tool: get_locker, with:", "{tool: getlocker, with:", 'unknown tool "getlocker", did you mean "get_locker"?'),
    (
        'message: "{args.holder} has {held} already."',
        'message: "{args.holder} has {hold} already."',
        'unknown name "hold"',
    ),
    ("    blocks: false", "    blocks: maybe", '"blocks" must be true (the call is refused) or false'),
]
_TASKS = [
    ("turns:\n  - A small locker please, I am Lou.\n", "turns: []\n", '"turns" must be a list of what the user says'),
    ("  - A small locker please, I am Lou.", "  - 5", "must be a text that is not empty, not 5"),
    ("end:", "ends:", 'unknown field "ends", did you mean "end"?'),
    ("  - present:", "  - presents:", 'unknown field "presents", did you mean "present"?'),
    ("table: lockers", "table: locker", 'unknown table "locker"'),
    ("where: {holder: Lou}", "where: {holders: Lou}", 'unknown column of lockers "holders"'),
    ("count: 1", "count: 0", '"count" must be exactly how many rows'),
    (
        "  - present: {table: lockers, where: {holder: Lou}, count: 1}",
        "  - equal: {table: lockers, key: A, columns: {uses: -1}}",
        "uses must be an integer of at least 0, not -1",
    ),
    (
        "  - present: {table: lockers, where: {holder: Lou}, count: 1}",
        "  - equal: {table: lockers, key: 7, columns: {uses: 1}}",
        "id must be a text, not 7",
    ),
    (
        "  - present: {table: lockers, where: {holder: Lou}, count: 1}",
        "  - unchanged: {table: lockers, but: [7]}",
        "id must be a text, not 7",
    ),
    ("title: Lou gets a locker", "rows: {locker: []}", 'unknown table "locker"'),
    (
        "title: Lou gets a locker",
        "rows: {lockers: [{id: A, uses: -1}]}",
        "uses must be an integer of at least 0, not -1",
    ),
    (
        "title: Lou gets a locker",
        "rows: {lockers: [{id: Z, size: small}]}",
        '"uses" is missing: an integer of at least 0',
    ),
    ("title: Lou gets a locker", "limits: {tools: {take: 1}}", 'unknown tool "take"'),
    (
        "title: Lou gets a locker",
        "limits: {tools: {pay: {at_least: 2, at_most: 1}}}",
        "at_most (1) is less than at_least (2)",
    ),
    ("title: Lou gets a locker", "limits: {}", '"limits" must be a mapping with calls and tools, and has none'),
]
_ROWS = [
    ("- {id: A, size: small, uses: 3}", "- {id: A, size: small}", '"uses" is missing: an integer of at least 0'),
    (
        "- {id: A, size: small, uses: 3}",
        "- {id: A, size: huge, uses: 3}",
        'size must be one of "small", "large", not "huge"',
    ),
    ("- {id: A, size: small, uses: 3}", "- {id: 1, size: small, uses: 3}", "id must be a text, not 1"),
    ("- {id: A, size: small, uses: 3}", "- {size: small, uses: 3}", "id must be a text, not nothing"),
    (
        "- {id: A, size: small, uses: 3}",
        "- {id: A, size: small, uses: 3, color: red}",
        'unknown column of lockers "color"',
    ),
    ("- {id: A, size: small, uses: 3}", "- five", "must be a row (values by column)"),
    ("- {id: C, size: small, uses: 0}", "- {id: B, size: small, uses: 0}", 'there are two rows with id "B"'),
    ("since: 2026-11-01", "since: 2026-11-31", "since must be a date such as 2026-12-01"),
    ("tags: [corner, new]", "tags: [corner, 1]", "tags must be a list of texts"),
]
_CASES = [
    *(("domain.yaml", *case) for case in _DOMAIN),
    *(("tasks/take.yaml", *case) for case in _TASKS),
    *(("rows/lockers.yaml", *case) for case in _ROWS),
]


def test_the_domain_that_they_all_start_from_is_sound(tmp_path: Path) -> None:
    assert faults(tmp_path, dict(FILES)) == []


@pytest.mark.parametrize(("file", "old", "new", "told"), _CASES)
def test_a_fault_is_told_with_file_line_and_what_is_accepted(
    tmp_path: Path, file: str, old: str, new: str, told: str
) -> None:
    before = FILES[file].split(old)[0].count("\n") + 1
    found = [fault for fault in faults(tmp_path, changed(old, new, file=file)) if told in fault.told]
    assert found, faults(tmp_path, changed(old, new, file=file))
    assert found[0].file == file
    # What is missing is told at the mapping that lacks it; everything else on the spot.
    first = 1 if "is missing" in told else before
    assert first <= found[0].line <= before + new.count("\n")


def test_an_invariant_sees_only_arguments_that_all_its_tools_have(tmp_path: Path) -> None:
    found = faults(tmp_path, changed("    on: [take_locker]", "    on: [take_locker, hours]"))
    assert found and all(fault.told.startswith('unknown name "args.holder"') for fault in found)


def test_everything_is_told_at_once(tmp_path: Path) -> None:
    files = changed("key: $args.id}\n  take", "key: $args.nr}\n  take")
    files["tasks/take.yaml"] = TASK.replace("table: lockers", "table: locker")
    files["rows/lockers.yaml"] = LOCKERS.replace("small", "tiny")
    assert {fault.file for fault in faults(tmp_path, files)} == {"domain.yaml", "tasks/take.yaml", "rows/lockers.yaml"}


def test_many_faults_are_cut(tmp_path: Path) -> None:
    rows = "".join(f"- {{id: L{number}, size: huge, uses: 0}}\n" for number in range(80))
    with pytest.raises(UnusableDomain, match=r"and 30 more$"):
        load(write(tmp_path, {**FILES, "rows/lockers.yaml": rows}))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("rows/things.yaml", 'unknown table "things"'),
        ("rows/lockers.csv", "is no file NAME.yaml"),
        ("tasks/second.yml", "is no file NAME.yaml"),
        ("tasks/Second Task.yaml", "the name of a task has small letters"),
    ],
)
def test_files_that_mean_nothing_are_told(tmp_path: Path, name: str, told: str) -> None:
    assert any(fault.file == name and told in fault.told for fault in faults(tmp_path, {**FILES, name: "[]"}))


def test_hidden_files_and_files_beside_are_left_alone(tmp_path: Path) -> None:
    files = {**FILES, "rows/.lockers.yaml.swp": "x", "agent.py": "x", "README.md": "x"}
    assert faults(tmp_path, files) == []


def test_a_domain_without_tasks_is_told(tmp_path: Path) -> None:
    files = {name: text for name, text in FILES.items() if not name.startswith("tasks")}
    assert "at least one task" in faults(tmp_path, files)[0].told


def test_a_folder_that_is_no_domain_is_told(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match=r"has no domain\.yaml"):
        load(tmp_path)
    with pytest.raises(Unusable, match="There is no folder"):
        load(tmp_path / "gone")
    os.mkfifo(tmp_path / "domain.yaml")
    with pytest.raises(Unusable, match=r"has no domain\.yaml"):
        load(tmp_path)


def test_a_new_domain_is_sound_and_never_overwrites(tmp_path: Path) -> None:
    make_domain(tmp_path / "new")
    domain = load(tmp_path / "new")
    assert domain.tasks and domain.invariants and domain.name == "new"
    with pytest.raises(Unusable, match="is not empty"):
        make_domain(tmp_path / "new")


def test_the_rows_of_a_task_change_those_of_the_domain(tmp_path: Path) -> None:
    rows = "rows: {lockers: [{id: A, holder: Eva}, {id: D, size: large, uses: 1}]}"
    domain = loaded(tmp_path, changed("title: Lou gets a locker", rows, file="tasks/take.yaml"))
    start = domain.tasks["take"].start.tables["lockers"]
    assert start["A"]["holder"] == "Eva" and start["A"]["uses"] == 3
    assert list(start) == ["A", "B", "C", "D"]


def test_description_and_policy_are_the_system_prompt(tmp_path: Path) -> None:
    assert loaded(tmp_path).system == "You keep the lockers.\n\nOne locker each."
