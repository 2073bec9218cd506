"""The built-in evaluator: the words of a criterion, whatever their endings, decide; the same log, the same score."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.sessions.domain.outcome_evaluator import Transcript


def said(*texts: str, kind: str = "agent.message") -> list[dict[str, Any]]:
    """Events that say something."""
    return [{"type": kind, "content": [{"type": "text", "text": text}]} for text in texts]


def matched(criterion: str, *events: dict[str, Any]) -> bool:
    """Whether a log meets one criterion."""
    transcript = Transcript([criterion])
    for event in events:
        transcript.read(orjson.dumps(event))
    ((_, is_met),) = transcript.evaluate(1).criteria
    assert transcript.is_complete == is_met
    return is_met


@pytest.mark.parametrize(
    ("criterion", "text", "is_met"),
    [
        ("Mentions tests", "The TEST suite is green.", True),
        ("Mentions tests", "We tested it.", True),
        ("Mentions tests", "The contest is over.", False),
        ("Names each release", "Three releases.", False),
        ("The name of each release", "The names: three releases.", True),
        ("Should include the risks", "One risk.", True),
        ("passes", "It will pass.", True),
        ("pass", "It passes.", True),
        ("The endpoint returns 200", "The endpoint returned 200.", True),
        ("The endpoint returns 200", "The endpoint returned 500.", False),
        ("Includes it", "Nothing.", False),
        ("Includes it", "It is included, it includes it.", True),
        ("提到测试", "报告提到测试和风险", True),
        ("提到测试", "报告", False),
        ("Überprüfung", "Die ÜBERPRÜFUNG lief.", True),
        ("!!!", "anything", True),
    ],
)
def test_a_criterion_is_met_where_its_words_stand(criterion: str, text: str, is_met: bool) -> None:
    assert matched(criterion, *said(text)) == is_met


def test_words_may_stand_apart() -> None:
    assert matched("tests and risks", *said("tests"), *said("risks"))
    assert not matched("tests and risks", *said("tests"))


def test_what_was_done_counts_as_what_was_said() -> None:
    call = {"type": "agent.tool_use", "name": "bash", "input": {"command": "pytest --tests"}}
    assert matched("Runs pytest", call, *said("run"))
    assert matched("42", {"type": "agent.tool_result", "content": [{"type": "text", "text": "42"}]})
    assert not matched("image", {"type": "user.message", "content": [{"type": "image", "source": {"data": "image"}}]})


@pytest.mark.parametrize(
    ("met", "threshold", "status"),
    [
        (0, 0.5, "failed"),
        (1, 0.5, "inconclusive"),
        (2, 0.5, "passed"),
        (4, 1.0, "passed"),
        (3, 1.0, "inconclusive"),
        (0, 0.0, "passed"),
    ],
)
def test_the_threshold_decides(met: int, threshold: float, status: str) -> None:
    transcript = Transcript(["alpha", "beta", "gamma", "delta"])
    transcript.read(orjson.dumps(said(" ".join(["alpha", "beta", "gamma", "delta"][:met]))[0]))
    found = transcript.evaluate(threshold)
    assert (found.status, found.score) == (status, met / 4)
    assert f"{met} of 4" in found.summary


@given(st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=5), st.lists(st.text(max_size=60), max_size=5))
def test_any_criteria_and_any_log_give_one_score(criteria: list[str], texts: list[str]) -> None:
    scores = set()
    for order in (texts, texts[::-1]):
        transcript = Transcript(criteria)
        for event in said(*order):
            transcript.read(orjson.dumps(event))
        scores.add(transcript.evaluate(0.5).score)
    assert len(scores) == 1
    assert 0 <= scores.pop() <= 1
