"""A domain's folder: `domain.yaml`, `rows/TABLE.yaml`, `tasks/TASK.yaml`. Sound, or every fault with file and line."""

import re
from collections.abc import Sequence
from pathlib import Path

from cli.rehearse.domain import Domain, Table, Task
from cli.rehearse.expressions import Expressions
from cli.rehearse.faults import Fault, Unusable, UnusableDomain, unknown
from cli.rehearse.kinds import Names
from cli.rehearse.shape import shape_faults
from cli.rehearse.tables import read_rows, read_tables
from cli.rehearse.tasks import read_task
from cli.rehearse.tools import read_arguments, read_invariants, read_tools
from cli.rehearse.world import Rows, World
from cli.rehearse.yaml_files import YamlFile, read_yaml

MAX_TASKS = 1_000
DOMAIN_FILE = "domain.yaml"

_TASK_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


def load(folder: Path) -> Domain:
    """The domain in a folder. UnusableDomain tells everything that is wrong with it."""
    if not folder.is_dir():
        raise Unusable(f"There is no folder {folder}. A domain is a folder with a {DOMAIN_FILE}.")
    # A pipe would be waited for, for ever.
    if not (folder / DOMAIN_FILE).is_file():
        raise Unusable(
            f"{folder} has no {DOMAIN_FILE}, so it is no domain. `managed-agents rehearse --new {folder}` makes one."
        )
    faults: list[Fault] = []
    main = _read(folder, DOMAIN_FILE, "domain", faults)
    tasks = [_read(folder, name, "task", faults) for name in _names(folder, "tasks", faults)]
    rows = [_read(folder, name, "", faults) for name in _names(folder, "rows", faults)]
    if faults or main is None:
        raise UnusableDomain(faults)
    if not tasks:
        raise UnusableDomain([Fault("tasks", 0, "a domain needs at least one task: a file such as tasks/first.yaml")])
    domain = _domain(folder, main, rows, tasks, faults)
    if faults:
        raise UnusableDomain(faults)
    return domain


def _names(folder: Path, part: str, faults: list[Fault]) -> list[str]:
    """The files of one part of a domain, in the order of their names."""
    if not (folder / part).is_dir():
        return []
    found = []
    for path in sorted((folder / part).iterdir()):
        if path.name.startswith("."):
            continue
        if path.suffix != ".yaml" or not path.is_file():
            faults.append(Fault(f"{part}/{path.name}", 0, f"is no file NAME.yaml; {part} has only such files"))
        elif part == "tasks" and not _TASK_ID.fullmatch(path.stem):
            told = "the name of a task has small letters, digits and -, at most 64 of them"
            faults.append(Fault(f"{part}/{path.name}", 0, told))
        else:
            found.append(f"{part}/{path.name}")
    if len(found) > MAX_TASKS:
        faults.append(Fault(part, 0, f"has {len(found)} files; {MAX_TASKS} are accepted"))
    return found


def _read(folder: Path, name: str, shape: str, faults: list[Fault]) -> YamlFile | None:
    """None when the file is unsound; that is noted."""
    try:
        file = read_yaml(folder, name)
    except UnusableDomain as unusable:
        faults += unusable.faults
        return None
    found = shape_faults(file, shape) if shape else []
    faults += found
    return None if found else file


def _domain(
    folder: Path, main: YamlFile, rows: Sequence[YamlFile | None], tasks: Sequence[YamlFile | None], faults: list[Fault]
) -> Domain:
    reader, data = Expressions(main, faults), main.data
    facts = data.get("facts", {})
    tables = read_tables(data["tables"], reader)
    arguments = read_arguments(data["tools"], reader)
    if faults:
        # Names and types that aren't known would be told again wherever they are used.
        raise UnusableDomain(faults)
    names = Names({name: table.columns for name, table in tables.items()}, arguments, facts)
    tools = read_tools(data["tools"], tables, names, reader)
    invariants = read_invariants(data.get("invariants", {}), names, reader)
    start = World(_rows(tables, rows, faults))
    found = {task.id: task for file in tasks if file for task in [_task(file, tables, start, names, faults)]}
    return Domain(
        folder.resolve().name, data["description"], data.get("policy", ""), facts, tables, tools, invariants, found
    )


def _rows(tables: dict[str, Table], files: Sequence[YamlFile | None], faults: list[Fault]) -> dict[str, Rows]:
    found: dict[str, Rows] = {name: {} for name in tables}
    for file in filter(None, files):
        name = Path(file.name).stem
        if name not in tables:
            faults.append(Fault(file.name, 0, unknown("table", name, tables)))
            continue
        found[name] = read_rows(file.data, tables[name], (), Expressions(file, faults))
    return found


def _task(file: YamlFile, tables: dict[str, Table], start: World, names: Names, faults: list[Fault]) -> Task:
    return read_task(Path(file.name).stem, file.data, tables, start, names, Expressions(file, faults))
