"""A turn can be told to stop at any moment, and only what may be cut off is cut off."""

import asyncio
import contextlib

import pytest

from services.worker.runner.loop.stopping import StopKind, Stopped, StopSignal


def bound(signal: StopSignal) -> StopSignal:
    task = asyncio.current_task()
    assert task is not None
    signal.bind(task)
    return signal


async def test_a_stop_cuts_off_what_a_scope_awaits() -> None:
    signal = bound(StopSignal())
    asyncio.get_running_loop().call_soon(signal.stop, StopKind.INTERRUPT)
    with pytest.raises(Stopped) as stopped, signal.scope():
        await asyncio.Event().wait()
    assert stopped.value.by_user
    signal.clear_interrupt()
    with signal.scope():
        await asyncio.sleep(0)


async def test_a_stop_between_scopes_waits_for_the_next_one() -> None:
    signal = bound(StopSignal())
    signal.stop(StopKind.INTERRUPT)
    await asyncio.sleep(0)
    with pytest.raises(Stopped), signal.scope():
        raise AssertionError("the scope was entered")


async def test_a_stop_in_the_last_moment_of_a_scope_still_counts_and_leaves_no_cancellation_behind() -> None:
    signal = bound(StopSignal())
    with pytest.raises(Stopped), signal.scope():
        await asyncio.sleep(0)
        signal.stop(StopKind.INTERRUPT)
        # The scope ends without another await, or what it awaited swallowed the cancellation.
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
    signal.clear_interrupt()
    await asyncio.sleep(0)


async def test_an_interrupt_inside_a_time_limit_is_told_from_the_limit() -> None:
    signal = bound(StopSignal())
    asyncio.get_running_loop().call_soon(signal.stop, StopKind.HAND_OVER)
    with pytest.raises(Stopped) as stopped, signal.scope():
        async with asyncio.timeout(60):
            await asyncio.Event().wait()
    assert stopped.value.kind is StopKind.HAND_OVER


async def test_a_higher_stop_outweighs_a_lower_one() -> None:
    signal = bound(StopSignal())
    signal.stop(StopKind.HAND_OVER)
    signal.stop(StopKind.INTERRUPT)
    signal.clear_interrupt()
    with pytest.raises(Stopped) as stopped:
        signal.check()
    assert stopped.value.kind is StopKind.HAND_OVER


@pytest.mark.parametrize("inside", [True, False])
async def test_a_lost_lease_ends_the_task_wherever_it_is(inside: bool) -> None:
    signal, passed = StopSignal(), []

    async def work() -> None:
        bound(signal)
        if inside:
            with signal.scope():
                await asyncio.Event().wait()
        await asyncio.Event().wait()
        passed.append(True)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    signal.stop(StopKind.LOST)
    await asyncio.wait({task})
    assert task.cancelled() and not passed


async def test_a_cancellation_from_outside_goes_through() -> None:
    signal = StopSignal()

    async def work() -> None:
        bound(signal)
        with signal.scope():
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
