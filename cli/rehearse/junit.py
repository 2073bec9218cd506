"""The report as JUnit XML, as CI systems read it: a suite per task, a case per trial."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from typing import Any

from cli.rehearse.report_text import failed_trial

# What XML 1.0 can't hold, in whatever an agent may say.
_UNSPEAKABLE = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(report: Mapping[str, Any]) -> bytes:
    root = ET.Element("testsuites", _sums(report["tasks"]) | {"name": report["domain"], "time": str(report["seconds"])})
    for task in report["tasks"]:
        seconds = round(sum(trial["seconds"] for trial in task["trials"]), 3)
        named = {"name": f"{report['domain']}.{task['id']}", "timestamp": report["started_at"], "time": str(seconds)}
        suite = ET.SubElement(root, "testsuite", _sums([task]) | named)
        for trial in task["trials"]:
            _case(suite, report, task, trial)
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _case(suite: ET.Element, report: Mapping[str, Any], task: Mapping[str, Any], trial: Mapping[str, Any]) -> None:
    named = {"classname": f"{report['domain']}.{task['id']}", "name": f"trial {trial['trial']}"}
    case = ET.SubElement(suite, "testcase", named | {"time": str(trial["seconds"])})
    if trial["passed"]:
        return
    first = trial["failures"][0]
    told = {"type": first["kind"], "message": _speakable(first["told"])}
    failure = ET.SubElement(case, "error" if _is_error(trial) else "failure", told)
    failure.text = _speakable("\n".join(line.plain for line in failed_trial(task, trial)).strip())


def _sums(tasks: list[Mapping[str, Any]]) -> dict[str, str]:
    trials = [trial for task in tasks for trial in task["trials"]]
    failed = [trial for trial in trials if not trial["passed"]]
    errors = sum(_is_error(trial) for trial in failed)
    return {"tests": str(len(trials)), "failures": str(len(failed) - errors), "errors": str(errors)}


def _is_error(trial: Mapping[str, Any]) -> bool:
    return trial["failures"][0]["kind"] == "runtime"


def _speakable(text: str) -> str:
    return _UNSPEAKABLE.sub("\ufffd", text)
