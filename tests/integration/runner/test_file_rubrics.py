"""Rubrics in files: graders read them when they are needed, and the log tells why one can't be read."""

from __future__ import annotations

from functools import partial

import pytest

from services.worker.runner.loop.rubrics import MAX_BYTES
from tests.integration.runner.harness import World, of
from tests.integration.runner.mounting import Mounting
from tests.integration.runner.outcomes import END, is_grading, outcome, results, verdict
from tests.integration.runner.played import ScriptedModel, say


def in_file(file_id: str) -> dict[str, object]:
    return outcome({"type": "file", "file_id": file_id})


async def test_a_grader_is_given_what_the_file_holds(platform: World) -> None:
    model = ScriptedModel([say("first"), verdict("needs_revision", "more"), say("second"), verdict("satisfied")])
    async with platform.runner(model):
        mounting = Mounting(platform)
        file_id = await mounting.upload("\ufeffIt returns 200, and says «done»".encode(), "rubric.md")
        session_id = await platform.session()
        await platform.clients.send(session_id, in_file(file_id))
        log = await platform.until(session_id)
        await mounting.close()
    assert results(log) == [(0, "needs_revision"), (1, "satisfied")]
    asked = [request.messages[0].content[1]["text"] for request in model.requests if is_grading(request)]
    assert asked == ["The rubric:\n\nIt returns 200, and says «done»"] * 2
    assert not of(log, "session.error")


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"\xff\xfe\x00", "is no UTF-8 text"), (b" \n", "holds no text"), (b"x" * (MAX_BYTES + 1), "is larger than")],
)
async def test_a_file_that_is_no_rubric_is_told(platform: World, content: bytes, told: str) -> None:
    model = ScriptedModel([say("first")])
    async with platform.runner(model):
        mounting = Mounting(platform)
        file_id = await mounting.upload(content)
        session_id = await platform.session()
        await platform.clients.send(session_id, in_file(file_id))
        log = await platform.until(session_id)
        await mounting.close()
    assert results(log) == [(0, "failed")]
    (error,) = of(log, "session.error")
    assert error["error"]["type"] == "outcome_rubric_file_unreadable"
    assert told in error["error"]["message"] and file_id in of(log, END)[0]["explanation"]


async def test_a_file_that_was_archived_meanwhile_is_told(platform: World) -> None:
    mounting = Mounting(platform)
    file_id = await mounting.upload(b"It returns 200")
    second = [partial(mounting.archive, file_id), *say("second")]
    model = ScriptedModel([say("first"), verdict("needs_revision", "more"), second])
    async with platform.runner(model):
        session_id = await platform.session()
        await platform.clients.send(session_id, in_file(file_id))
        log = await platform.until(session_id)
        await mounting.close()
    assert results(log) == [(0, "needs_revision"), (1, "failed")]
    assert of(log, "session.error")[0]["error"]["type"] == "outcome_rubric_file_not_found"
