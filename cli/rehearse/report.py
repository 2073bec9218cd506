"""What came of a run, as data. The same answers of the agent give the same report but for ids and times.

Ids and times are `run_id`, `started_at`, `session_id` and `seconds`, and nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cli.rehearse.playing import Said, Trial
from cli.rehearse.world import Record


@dataclass(frozen=True)
class Run:
    """What was asked for."""

    run_id: str
    started_at: str
    domain: str
    agent: str
    trials: int
    seed: int | None
    fail_under: float


def report(run: Run, trials: Sequence[Trial], seconds: float) -> dict[str, Any]:
    passed = sum(trial.passed for trial in trials)
    return {
        "run_id": run.run_id,
        "started_at": run.started_at,
        "seconds": round(seconds, 3),
        "domain": run.domain,
        "agent": run.agent,
        "trials_per_task": run.trials,
        "seed": run.seed,
        "fail_under": run.fail_under,
        "trials": len(trials),
        "passed": passed,
        "failed": len(trials) - passed,
        "sufficient": is_sufficient(passed, len(trials), run.fail_under),
        "tasks": _tasks(trials),
    }


def is_sufficient(passed: int, trials: int, fail_under: float) -> bool:
    """Whether at least `fail_under` percent passed."""
    return passed * 100 >= fail_under * trials


def _tasks(trials: Sequence[Trial]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for trial in trials:
        task = found.setdefault(
            trial.task.id, {"id": trial.task.id, "title": trial.task.title, "passed": 0, "trials": []}
        )
        task["passed"] += trial.passed
        task["trials"].append(_trial(trial))
    return list(found.values())


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "session_id": trial.session_id,
        "passed": trial.passed,
        "seconds": round(trial.seconds, 3),
        "failures": [
            {"kind": each.kind, "name": each.name, "told": each.told, "details": list(each.details)}
            for each in trial.failures
        ],
        "transcript": [_line(each) for each in trial.transcript],
    }


def _line(told: Said | Record) -> dict[str, Any]:
    if isinstance(told, Said):
        return {"from": told.who, "text": told.text}
    came = {"result": told.result} if told.ok else {"error": told.error}
    return {
        "call": told.number,
        "id": told.call.id,
        "tool": told.call.name,
        "arguments": dict(told.call.arguments),
        "ok": told.ok,
        **came,
        "broken_invariants": [breach.invariant for breach in told.breaches],
    }
