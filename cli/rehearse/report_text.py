"""The report for a person at a terminal, or in the log of a CI job."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from rich.console import Console
from rich.text import Text

from cli.event_lines import plain

_LONG = 2_000
_KINDS = {"runtime": "runtime", "invariant": "invariant", "end_state": "end state", "limit": "limit"}
_SPEAKERS = {"user": "cyan", "agent": "green", "rehearsal": "yellow"}


def print_report(console: Console, report: Mapping[str, Any], *, quiet: bool) -> None:
    """Quiet is the last line only."""
    if not quiet:
        width = max(len(task["id"]) for task in report["tasks"])
        console.print(Text(f"{report['domain']} · {plain(report['agent'])} · run {report['run_id']}", style="bold"))
        for task in report["tasks"]:
            console.print(_task_line(task, width))
        for task in report["tasks"]:
            for trial in task["trials"]:
                for line in [] if trial["passed"] else failed_trial(task, trial):
                    console.print(line)
        console.print()
    console.print(_summary(report))


def _task_line(task: Mapping[str, Any], width: int) -> Text:
    count = len(task["trials"])
    passed = task["passed"] == count
    line = Text("  ")
    line.append("✓ " if passed else "✗ ", style="green" if passed else "red")
    line.append(f"{task['id']:<{width}}  {task['passed']}/{count} passed")
    if task["title"]:
        line.append(f"  {plain(task['title'])}", style="dim")
    return line


def _summary(report: Mapping[str, Any]) -> Text:
    passed, trials = report["passed"], report["trials"]
    told = f"{passed} of {trials} {'trial' if trials == 1 else 'trials'} passed"
    if report["fail_under"] < 100:
        enough = "enough" if report["sufficient"] else "not enough"
        told += f", {enough} for --fail-under {report['fail_under']:g}"
    return Text(f"{told}.", style="bold green" if report["sufficient"] else "bold red")


def failed_trial(task: Mapping[str, Any], trial: Mapping[str, Any]) -> Iterator[Text]:
    """Why it failed, and the conversation with every call."""
    yield Text()
    yield Text(f"FAILED {task['id']} #{trial['trial']}", style="bold red").append(
        f"  session {trial['session_id']}", style="dim not bold"
    )
    for failure in trial["failures"]:
        head = Text("  ").append(f"{_KINDS[failure['kind']]}", style="red")
        if failure["kind"] == "invariant":
            head.append(f" {failure['name']}")
        yield head.append(f": {plain(failure['told'], _LONG)}")
        for detail in failure["details"]:
            yield Text(f"    {plain(detail, _LONG)}")
    yield Text("  transcript:", style="dim")
    for line in trial["transcript"]:
        yield from _said(line) if "from" in line else _called(line)


def _said(line: Mapping[str, Any]) -> Iterator[Text]:
    yield _row(line["from"], plain(line["text"], _LONG), _SPEAKERS[line["from"]])


def _called(line: Mapping[str, Any]) -> Iterator[Text]:
    yield _row(f"call {line['call']}", plain(f"{line['tool']} {_json(line['arguments'])}", _LONG), "yellow")
    came = f"→ {_json(line['result'])}" if line["ok"] else f"✗ {line['error']}"
    yield _row("", plain(came, _LONG), "dim" if line["ok"] else "red")
    for invariant in line["broken_invariants"]:
        yield _row("", f"! breaks {invariant}", "bold red")


def _row(who: str, told: str, style: str) -> Text:
    return Text("    ").append(f"{who:<10}", style=style).append(told, style=style if not who else "")


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()
