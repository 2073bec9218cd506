"""Proves that reports show what happened, hold no secret, obey no control character, and are sound for programs."""

import base64
import io
import xml.etree.ElementTree as ET
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from cli.rehearse.faults import Unusable
from cli.rehearse.junit import junit
from cli.rehearse.report import is_sufficient
from cli.rehearse.report_text import print_report
from cli.rehearse.secrets_of_run import Secrets, read_headers

SECRET = "s3cr3t/of the agent"
ENVIRONMENT = {"AGENT_TOKEN": SECRET, "EMPTY": "", "BAD": "a\nb"}


def _report(**changes: Any) -> dict[str, Any]:
    call = {"call": 1, "id": "c1", "tool": "look", "arguments": {"n": 1}, "ok": False, "error": "there is none"}
    trial = {
        "trial": 0,
        "session_id": "run-1/first#0",
        "passed": False,
        "seconds": 0.5,
        "failures": [
            {"kind": "invariant", "name": "looked", "told": "broken by call 1", "details": ["n is 1, wanted 2"]},
            {"kind": "end_state", "name": "rows", "told": "rows: no row wanted, 1 found", "details": []},
        ],
        "transcript": [
            {"from": "user", "text": "Hello"},
            {**call, "broken_invariants": ["looked"]},
            {"from": "agent", "text": "Bye"},
        ],
    } | changes
    passed = {**trial, "trial": 1, "passed": True, "failures": []}
    return {
        "run_id": "run-1",
        "started_at": "2026-12-01T00:00:00Z",
        "seconds": 1.0,
        "domain": "lockers",
        "agent": "http://a/step",
        "trials_per_task": 2,
        "seed": None,
        "fail_under": 100.0,
        "trials": 2,
        "passed": 1,
        "failed": 1,
        "sufficient": False,
        "tasks": [{"id": "first", "title": "The first", "passed": 1, "trials": [trial, passed]}],
    }


def _printed(report: dict[str, Any], *, quiet: bool = False) -> str:
    output = io.StringIO()
    print_report(Console(file=output, highlight=False, soft_wrap=True), report, quiet=quiet)
    return output.getvalue()


def test_a_failed_trial_shows_why_and_the_conversation() -> None:
    assert _printed(_report()).splitlines() == [
        "lockers · http://a/step · run run-1",
        "  ✗ first  1/2 passed  The first",
        "",
        "FAILED first #0  session run-1/first#0",
        "  invariant looked: broken by call 1",
        "    n is 1, wanted 2",
        "  end state: rows: no row wanted, 1 found",
        "  transcript:",
        "    user      Hello",
        '    call 1    look {"n":1}',
        "              ✗ there is none",
        "              ! breaks looked",
        "    agent     Bye",
        "",
        "1 of 2 trials passed.",
    ]


def test_quiet_is_the_last_line() -> None:
    assert _printed(_report(), quiet=True) == "1 of 2 trials passed.\n"
    enough = _report() | {"fail_under": 50.0, "sufficient": True}
    assert _printed(enough, quiet=True) == "1 of 2 trials passed, enough for --fail-under 50.\n"


@given(st.text())
def test_what_an_agent_says_can_neither_steer_a_terminal_nor_break_xml(text: str) -> None:
    transcript = [{"from": "agent", "text": text}]
    failures = [{"kind": "runtime", "name": "runtime", "told": text, "details": [text]}]
    told = _report(transcript=transcript, failures=failures)
    assert not {char for char in _printed(told) if ord(char) < 32 or 127 <= ord(char) < 160} - {"\n"}
    ET.fromstring(junit(told))


def test_junit_has_a_suite_for_each_task_and_a_case_for_each_trial() -> None:
    root = ET.fromstring(junit(_report()))
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("2", "1", "0")
    (suite,) = root
    assert suite.get("name") == "lockers.first"
    failed, passed = suite
    assert (failed.get("classname"), failed.get("name")) == ("lockers.first", "trial 0")
    (failure,) = failed
    assert failure.tag == "failure" and failure.get("type") == "invariant"
    assert failure.get("message") == "broken by call 1" and "n is 1, wanted 2" in (failure.text or "")
    assert len(passed) == 0


def test_junit_tells_an_agent_that_did_not_answer_from_one_that_did_wrong() -> None:
    failures = [{"kind": "runtime", "name": "runtime", "told": "status 500", "details": []}]
    root = ET.fromstring(junit(_report(failures=failures)))
    assert (root.get("failures"), root.get("errors")) == ("0", "1")
    assert root.find(".//error[@type='runtime']") is not None


@pytest.mark.parametrize(
    ("passed", "trials", "fail_under", "enough"),
    [(3, 3, 100, True), (2, 3, 100, False), (9, 10, 90, True), (2, 3, 66.7, False), (0, 3, 0, True)],
)
def test_how_many_are_enough(passed: int, trials: int, fail_under: float, enough: bool) -> None:
    assert is_sufficient(passed, trials, fail_under) is enough


# Headers


def test_a_header_takes_its_secret_from_the_environment() -> None:
    headers = read_headers(["Authorization=Bearer ${AGENT_TOKEN}", "x-team=blue"], ENVIRONMENT, Secrets())
    assert headers == {"authorization": f"Bearer {SECRET}", "x-team": "blue"}


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        (["authorization"], "A --header is NAME=VALUE"),
        (["a b=c"], "A --header is NAME=VALUE"),
        (["=c"], "A --header is NAME=VALUE"),
        (["Authorization=Bearer abc"], "looks like a secret"),
        (["x-api-key=abc"], "looks like a secret"),
        (["cookie=abc"], "looks like a secret"),
        (["authorization=${GONE}"], "the environment has no GONE"),
        (["authorization=${EMPTY}"], "the environment has no EMPTY"),
        (["x-a=${BAD}"], "printable ASCII"),
        (["x-a=ü"], "printable ASCII"),
        (["Host=a"], "the request's own"),
        (["content-length=5"], "the request's own"),
        (["x-a=1", "X-A=2"], "is given twice"),
    ],
)
def test_headers_that_can_not_be_sent_are_told(given_: list[str], told: str) -> None:
    with pytest.raises(Unusable) as raised:
        read_headers(given_, ENVIRONMENT, Secrets())
    assert told in str(raised.value) and SECRET not in str(raised.value)


def test_a_secret_that_is_echoed_is_in_no_report() -> None:
    secrets = Secrets()
    read_headers(["authorization=Bearer ${AGENT_TOKEN}"], ENVIRONMENT, secrets)
    spellings = [SECRET, "s3cr3t%2Fof%20the%20agent", base64.b64encode(SECRET.encode()).decode()]
    for spelling in spellings:
        told = secrets.scrubbed(
            _report(
                transcript=[{"from": "agent", "text": f"You sent {spelling}"}],
                failures=[{"kind": "runtime", "name": "runtime", "told": f"status 401: {spelling}", "details": []}],
            )
        )
        for shown in (orjson.dumps(told).decode(), junit(told).decode(), _printed(told)):
            assert spelling not in shown and "${AGENT_TOKEN}" in shown


def test_a_value_of_a_few_letters_is_no_secret() -> None:
    secrets = Secrets()
    secrets.add("SHORT", "ab")
    assert secrets.scrubbed({"a": ["about"]}) == {"a": ["about"]}
