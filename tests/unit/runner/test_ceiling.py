"""What a runner knows of its session's budget, and that asking costs nothing where there is none."""

from typing import Any

import pytest

from managed_agents.sessions.v1.turns_pb2 import TurnGrant
from services.worker.runner.loop.ceiling import Ceiling


class PlayedJournal:
    """Stands in for the journal: a flush brings the service's word."""

    def __init__(self, told: bool | None = None, *, uncharged: bool = False, then: bool = False) -> None:
        self.budget_reached = told
        self.has_uncharged_usage = uncharged
        self._then = then
        self.flushes = 0

    async def flush(self) -> None:
        self.flushes += 1
        self.budget_reached = self._then
        self.has_uncharged_usage = False


def ceiling(budget: bytes = b'{"type":"limit"}', *, reached: bool = False) -> Ceiling:
    grant = TurnGrant(budget_reached=reached)
    grant.session.budget_json = budget
    return Ceiling(grant)


async def ask(asked: Ceiling, journal: Any) -> bool:
    return await asked.is_reached(journal)


@pytest.mark.parametrize("budget", [b"", b"null"])
async def test_a_session_without_a_budget_appends_nothing_to_know_it(budget: bytes) -> None:
    journal = PlayedJournal(uncharged=True, then=True)
    assert not await ask(ceiling(budget), journal)
    assert journal.flushes == 0


async def test_what_was_spent_is_charged_before_the_question_is_answered() -> None:
    journal = PlayedJournal(False, uncharged=True, then=True)
    assert await ask(ceiling(), journal)
    assert journal.flushes == 1


@pytest.mark.parametrize("told", [True, False])
async def test_with_everything_charged_the_last_word_of_the_service_holds(told: bool) -> None:
    journal = PlayedJournal(told)
    # A raise came after the grant, or the ceiling was reached since.
    assert await ask(ceiling(reached=not told), journal) is told
    assert journal.flushes == 0


@pytest.mark.parametrize("reached", [True, False])
async def test_before_any_answer_the_grant_tells(reached: bool) -> None:
    assert await ask(ceiling(reached=reached), PlayedJournal()) is reached
