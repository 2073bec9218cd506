"""Commits that many callers share.

Each caller hands in one job: a session and a decision. While one commit is on its way to
the disk the next jobs gather, and then go together; a second commit sets out beside it only
where the disk is slow, since each of them costs as much as several jobs. Where this replica moved a session
last, its state is guessed and one statement writes and commits; the others, and wrong
guesses, go through a lock and a transaction. A job that is refused does not touch its
neighbours, and one that breaks a shared commit, or whose session is locked by someone
else, gets a transaction of its own.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime

import psycopg

from kit.clock import Clock
from kit.errors import DomainError, WriteConflict
from kit.postgres import Database
from services.sessions.domain.move import Moved
from services.sessions.domain.session_state import SessionState
from services.sessions.domain.turn import MayBeRepeat
from services.sessions.operations.writer import Writer, Written, has_news, unchanged
from services.sessions.store.log import EventStored
from services.sessions.store.turns import TurnStore

MAX_JOBS = 64
WORKERS = 2
# A commit that is on its way for longer waits for the disk and leaves the processors idle.
_SLOW_SECONDS = 0.005

# (state, now, ids that are stored already, if they had to be looked up) -> move
Decide = Callable[[SessionState, datetime, frozenset[str] | None], Moved]


@dataclass(eq=False, slots=True)
class Job:
    """One session to be moved, for a caller who waits."""

    workspace_id: str
    session_id: str
    decide: Decide
    event_ids: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    done: "asyncio.Future[Moved]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def succeed(self, moved: Moved) -> None:
        """Answers the caller, who may have gone."""
        if not self.done.done():
            self.done.set_result(moved)

    def fail(self, error: BaseException) -> None:
        """Refuses the caller, who may have gone."""
        if not self.done.done():
            self.done.set_exception(error)


class Committer:
    """Gathers jobs and commits them; `alone` runs one in a transaction of its own."""

    def __init__(
        self, database: Database, writer: Writer, clock: Clock, alone: Callable[[Job], Awaitable[Moved]]
    ) -> None:
        self._database = database
        self._writer = writer
        self._clock = clock
        self._alone = alone
        self._queue: deque[Job] = deque()
        # Sessions in a commit right now; their next jobs wait for it.
        self._busy: set[str] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._helper: asyncio.TimerHandle | None = None

    async def submit(self, job: Job) -> Moved:
        """Waits until the job is committed; a caller who goes away does not take it back."""
        self._queue.append(job)
        if not self._workers:
            self._start_worker()
        elif self._helper is None and len(self._workers) < WORKERS:
            self._helper = asyncio.get_running_loop().call_later(_SLOW_SECONDS, self._help)
        return await job.done

    async def stop(self) -> None:
        """Finishes what was handed in."""
        while self._workers:
            await asyncio.wait(self._workers)
        if self._helper is not None:
            self._helper.cancel()

    def _help(self) -> None:
        self._helper = None
        if self._queue and len(self._workers) < WORKERS:
            self._start_worker()

    def _start_worker(self) -> None:
        worker = asyncio.create_task(self._work(), name="committer")
        self._workers.add(worker)

    async def _work(self) -> None:
        try:
            await self._drain()
        finally:
            # In the very step that found nothing left: a job that comes after it needs another worker.
            self._workers.discard(asyncio.current_task())  # type: ignore[arg-type]

    async def _drain(self) -> None:
        while jobs := self._take():
            sessions = {job.session_id for job in jobs}
            self._busy |= sessions
            try:
                await self._commit(jobs)
            except Exception as error:
                for job in jobs:
                    job.fail(error)
            finally:
                self._busy -= sessions

    def _take(self) -> list[Job]:
        """The oldest jobs whose session is free, each session's in their order."""
        taken: list[Job] = []
        held: list[Job] = []
        while self._queue and len(taken) < MAX_JOBS:
            job = self._queue.popleft()
            (held if job.session_id in self._busy else taken).append(job)
        self._queue.extendleft(reversed(held))
        return taken

    async def _commit(self, jobs: list[Job]) -> None:
        """Guesses first, then under locks what no guess served, then alone what is left."""
        left = await self._step(jobs, self._by_guess)
        if left:
            left = await self._step(left, self._under_lock)
        for job in left:
            await self._commit_alone(job)

    async def _step(
        self, jobs: list[Job], commit: Callable[[list[Job], Written], Awaitable[dict[Job, Moved]]]
    ) -> list[Job]:
        """Commits what it can of the jobs, and answers with the others."""
        written = Written()
        try:
            outcomes = await commit(jobs, written)
        except (EventStored, WriteConflict, psycopg.Error):
            # One job broke the statement for all: each one finds out for itself.
            self._writer.undo(written)
            return jobs
        except BaseException:
            self._writer.undo(written)
            raise
        for job, moved in outcomes.items():
            job.succeed(moved)
        await self._writer.settle(written)
        return [job for job in jobs if job not in outcomes and not job.done.done()]

    async def _by_guess(self, jobs: list[Job], written: Written) -> dict[Job, Moved]:
        """Moves sessions from where they are believed to stand. A refusal needs more than a belief."""
        states: dict[str, SessionState | None] = {}
        now = self._clock.now()
        outcomes: dict[Job, Moved] = {}
        for job in jobs:
            if job.session_id not in states:
                states[job.session_id] = self._writer.states.guess(job.workspace_id, job.session_id)
            state = states[job.session_id]
            if state is None:
                continue
            moved = _decide(job, state, now)
            if moved is None or moved.read or has_news(moved) or unchanged(moved):
                # Also for the jobs of this session that come after it.
                states[job.session_id] = None
                continue
            outcomes[job] = moved
            states[job.session_id] = moved.state
        if not outcomes:
            return outcomes
        moves = [(moved, job.headers) for job, moved in outcomes.items()]
        async with self._database.platform_statements(within={job.workspace_id for job in outcomes}) as tx:
            saved = await self._writer.save_guesses(tx, moves, written)
        for job in outcomes:
            if job.session_id not in saved:
                self._writer.states.drop(job.session_id)
        return {job: moved for job, moved in outcomes.items() if job.session_id in saved}

    async def _under_lock(self, jobs: list[Job], written: Written) -> dict[Job, Moved]:
        """Moves those of the sessions that nobody else holds, in one transaction."""
        outcomes: dict[Job, Moved] = {}
        async with self._database.platform_transaction(within={job.workspace_id for job in jobs}) as tx:
            locked = await TurnStore(tx).lock_free(sorted({job.session_id for job in jobs}))
            states = {state.id: state for state in locked}
            now = self._clock.now()
            for job in jobs:
                state = states.get(job.session_id)
                if state is None or state.workspace_id != job.workspace_id:
                    continue
                try:
                    moved = job.decide(state, now, None)
                except MayBeRepeat:
                    # It has to look into the log first, and what comes after it has to wait for that.
                    del states[job.session_id]
                    continue
                except DomainError as refusal:
                    job.fail(refusal)
                    continue
                outcomes[job] = moved
                states[job.session_id] = moved.state
            moves = [(moved, job.headers) for job, moved in outcomes.items() if not unchanged(moved)]
            if moves:
                await self._writer.write(tx, moves, written)
        return outcomes

    async def _commit_alone(self, job: Job) -> None:
        try:
            job.succeed(await self._alone(job))
        except Exception as error:
            job.fail(error)


def _decide(job: Job, state: SessionState, now: datetime) -> Moved | None:
    """The move, or None where the decision is a refusal or needs the log."""
    try:
        return job.decide(state, now, None)
    except (DomainError, MayBeRepeat):
        return None
