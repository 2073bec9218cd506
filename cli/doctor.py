"""`managed-agents doctor`: what works on this machine, and what to do about what does not."""

import orjson
from rich.console import Console
from rich.text import Text

from cli import checks
from cli.finding import Finding
from cli.supervisor import Options

_MARKS = {"ok": ("ok", "green"), "warning": ("note", "yellow"), "failed": ("FAIL", "bold red")}


async def run(options: Options, *, as_json: bool) -> int:
    """Print every finding; 1 when one of them keeps `up` from working."""
    findings = await checks.examine(options)
    usable = all(finding.status != "failed" for finding in findings)
    if as_json:
        print(orjson.dumps({"usable": usable, "findings": [one.as_dict() for one in findings]}).decode())
        return 0 if usable else 1
    console = Console(highlight=False, soft_wrap=True)
    for finding in findings:
        console.print(_line(finding))
    console.print(
        Text("Everything that `managed-agents up` needs is there." if usable else "`managed-agents up` can't work yet.")
    )
    return 0 if usable else 1


def _line(finding: Finding) -> Text:
    mark, style = _MARKS[finding.status]
    line = Text()
    line.append(f"{mark:<5}", style=style)
    line.append(f"{finding.name:<15}", style="bold")
    line.append(finding.told)
    if finding.advice:
        line.append(f"\n{'':<20}→ {finding.advice}", style="dim")
    return line
