"""Proves the verdict: end state, invariants and limits, how each differs, and that nothing else plays a part."""

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from cli.rehearse.acting import perform
from cli.rehearse.domain import Domain
from cli.rehearse.grading import Failure, grade
from cli.rehearse.world import Call, Record, World
from tests.unit.rehearse.domains import FILES, loaded
from tests.unit.rehearse.test_acting import CALLS

LOOK_AND_TAKE = (("get_locker", {"id": "A"}), ("take_locker", {"id": "A", "holder": "Lou"}))


def _domain(folder: Path, end: str, *, limits: str = "") -> Domain:
    task = f"turns: [Hello.]\nend:\n  - {end}\n{f'limits: {limits}' if limits else ''}\n"
    return loaded(folder, {**FILES, "tasks/take.yaml": task})


def _played(domain: Domain, *calls: tuple[str, dict[str, Any]]) -> tuple[list[Record], World]:
    world, log = domain.tasks["take"].start, []
    for tool, arguments in calls:
        world, record = perform(domain, world, log, Call("c", tool, arguments), 0)
        log.append(record)
    return log, world


def _graded(domain: Domain, *calls: tuple[str, dict[str, Any]], runtime: str | None = None) -> list[Failure]:
    log, world = _played(domain, *calls)
    return grade(domain, domain.tasks["take"], log, world, runtime)


@pytest.mark.parametrize(
    "end",
    [
        "present: {table: lockers, where: {holder: Lou}}",
        "present: {table: lockers, where: {size: small}, count: 2}",
        "present: {table: payments, where: {locker: A, amount: $facts.fee}, count: 1}",
        "absent: {table: lockers, where: {holder: Eva}}",
        "equal: {table: lockers, key: A, columns: {holder: Lou, uses: 4, since: null}}",
        "equal: {table: payments, key: 1, columns: {amount: 2.5}}",
        "unchanged: {table: lockers, but: [A]}",
        "unchanged: {table: payments, but: [1]}",
    ],
)
def test_an_end_that_is_as_wanted_passes(tmp_path: Path, end: str) -> None:
    assert _graded(_domain(tmp_path, end), *LOOK_AND_TAKE) == []


@pytest.mark.parametrize(
    ("end", "told", "details"),
    [
        (
            "present: {table: lockers, where: {holder: Eva, size: small}}",
            'lockers: at least one row wanted where {holder: "Eva", size: "small"}, 0 found',
            ['locker A: holder is "Lou", wanted "Eva"', 'locker C: holder is nothing, wanted "Eva"'],
        ),
        (
            "present: {table: payments, count: 2}",
            "payments: exactly 2 rows wanted, 1 found",
            ['payment 1: {number: 1, locker: "A", amount: 2.5}'],
        ),
        (
            "absent: {table: payments, where: {locker: A}}",
            'payments: no row wanted where {locker: "A"}, 1 found',
            ['payment 1: {number: 1, locker: "A", amount: 2.5}'],
        ),
        (
            "equal: {table: lockers, key: A, columns: {holder: Eva, uses: 4}}",
            "lockers: locker A differs",
            ['holder is "Lou", wanted "Eva"'],
        ),
        ("equal: {table: lockers, key: Q, columns: {uses: 4}}", 'lockers: there is no locker with id "Q"', []),
        (
            "unchanged: {table: lockers}",
            "lockers: no change wanted",
            ['locker A: holder was nothing, is "Lou"', "locker A: uses was 3, is 4"],
        ),
        (
            "unchanged: {table: payments}",
            "payments: no change wanted",
            ['payment 1 is new: {number: 1, locker: "A", amount: 2.5}'],
        ),
    ],
)
def test_an_end_that_differs_says_how(tmp_path: Path, end: str, told: str, details: list[str]) -> None:
    (failure,) = _graded(_domain(tmp_path, end), *LOOK_AND_TAKE)
    assert failure.kind == "end_state" and failure.told == told and list(failure.details) == details


def test_an_empty_table_has_nothing_near(tmp_path: Path) -> None:
    (failure,) = _graded(_domain(tmp_path, "present: {table: payments, where: {locker: A}}"))
    assert list(failure.details) == ["payments has no rows"]


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ("{calls: 1}", "2 calls in all, at most 1 wanted"),
        ("{tools: {get_locker: 0}}", "1 call of get_locker, at most 0 wanted"),
        ("{tools: {pay: {at_least: 1}}}", "0 calls of pay succeeded, at least 1 wanted"),
        ("{tools: {take_locker: {at_least: 2}}}", "1 call of take_locker succeeded, at least 2 wanted"),
    ],
)
def test_limits_are_judged_from_the_log(tmp_path: Path, limits: str, told: str) -> None:
    domain = _domain(tmp_path, "absent: {table: lockers, where: {holder: Eva}}", limits=limits)
    (failure,) = _graded(domain, *LOOK_AND_TAKE)
    assert (failure.kind, failure.told) == ("limit", told)


def test_limits_that_are_kept_say_nothing(tmp_path: Path) -> None:
    limits = "{calls: 2, tools: {take_locker: {at_least: 1, at_most: 1}}}"
    domain = _domain(tmp_path, "absent: {table: lockers, where: {holder: Eva}}", limits=limits)
    assert _graded(domain, *LOOK_AND_TAKE) == []


def test_refused_calls_count_for_the_most_and_not_for_the_least(tmp_path: Path) -> None:
    limits = "{tools: {get_locker: {at_least: 1, at_most: 1}}}"
    domain = _domain(tmp_path, "absent: {table: lockers, where: {holder: Eva}}", limits=limits)
    told = [failure.told for failure in _graded(domain, ("get_locker", {}), ("get_locker", {"id": "Z"}))]
    assert told == [
        "2 calls of get_locker, at most 1 wanted",
        "0 calls of get_locker succeeded, at least 1 wanted",
    ]


def test_a_broken_invariant_fails_the_trial_though_the_end_is_as_wanted(tmp_path: Path) -> None:
    domain = _domain(tmp_path, "present: {table: lockers, where: {holder: Lou}}")
    (failure,) = _graded(domain, ("take_locker", {"id": "A", "holder": "Lou"}))
    assert (failure.kind, failure.name) == ("invariant", "looked-first")
    assert failure.told == ('broken by call 1, take_locker {id: "A", holder: "Lou"}: Locker A was taken unseen.')
    assert list(failure.details) == ['get_locker with {id: "A"} was not called before', "the call was let through"]


def test_what_ended_early_has_no_end_state_to_be_judged(tmp_path: Path) -> None:
    domain = _domain(tmp_path, "present: {table: lockers, where: {holder: Eva}}", limits="{calls: 0}")
    failures = _graded(domain, ("take_locker", {"id": "A", "holder": "Lou"}), runtime="status 500")
    assert [(failure.kind, failure.told[:10]) for failure in failures] == [
        ("runtime", "status 500"),
        ("invariant", "broken by "),
    ]


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> Domain:
    end = "unchanged: {table: lockers}\n  - present: {table: payments, where: {amount: {at_most: 50}}, count: 1}"
    return _domain(tmp_path_factory.mktemp("graded"), end, limits="{calls: 5, tools: {pay: {at_least: 1}}}")


@given(calls=CALLS)
def test_the_verdict_is_a_pure_function_of_log_and_state(
    domain: Domain, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    log, world = _played(domain, *calls)
    kept_log, kept_world = copy.deepcopy(log), copy.deepcopy(world)
    task = domain.tasks["take"]
    first = grade(domain, task, log, world, None)
    assert grade(domain, task, kept_log, kept_world, None) == first
    assert (log, world) == (kept_log, kept_world), "grading changes neither"
    assert (first == []) is _passes_by_hand(task.start, log, world)


def _passes_by_hand(start: World, log: list[Record], world: World) -> bool:
    paid = sum(row["amount"] <= 50 for row in world.rows("payments")) == 1
    kept = world.tables["lockers"] == start.tables["lockers"]
    kept_limits = len(log) <= 5 and any(record.ok and record.call.name == "pay" for record in log)
    return paid and kept and kept_limits and not any(record.breaches for record in log)
