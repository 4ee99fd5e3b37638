"""Wall, scaled and virtual time: one shell, three clocks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.engine import VirtualLoop


def on_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], Awaitable[Any]]) -> Any:
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work())  # type: ignore[arg-type]


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_day_of_virtual_time_costs_no_real_time() -> None:
    async def a_day() -> float:
        for _ in range(24):
            await asyncio.sleep(3600)
        return now()

    began = time.monotonic()
    assert on_loop(VirtualLoop(), a_day) == 24 * 3600
    assert time.monotonic() - began < 1


def test_virtual_time_starts_at_zero_and_moves_only_by_timers() -> None:
    async def work() -> list[float]:
        seen = [now()]
        for _ in range(1000):
            await asyncio.sleep(0)
        return [*seen, now()]

    assert on_loop(VirtualLoop(), work) == [0.0, 0.0]


def test_timers_fire_in_order_of_their_time_and_at_it() -> None:
    async def work() -> list[tuple[str, float]]:
        fired: list[tuple[str, float]] = []

        async def wait(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            fired.append((name, now()))

        await asyncio.gather(wait("late", 7.5), wait("early", 0.25), wait("middle", 3.0))
        return fired

    assert on_loop(VirtualLoop(), work) == [("early", 0.25), ("middle", 3.0), ("late", 7.5)]


def test_the_same_timers_give_the_same_story_each_time() -> None:
    async def work() -> list[tuple[int, int, float]]:
        story: list[tuple[int, int, float]] = []

        async def walk(name: int) -> None:
            for step in range(20):
                await asyncio.sleep((name * 7919 + step * 104729) % 13)
                story.append((name, step, now()))

        await asyncio.gather(*[walk(name) for name in range(20)])
        return story

    assert on_loop(VirtualLoop(), work) == on_loop(VirtualLoop(), work)


def test_a_far_timer_is_reached_although_asyncio_waits_a_day_at_most() -> None:
    async def work() -> float:
        await asyncio.sleep(10 * 24 * 3600)
        return now()

    assert on_loop(VirtualLoop(), work) == 10 * 24 * 3600


def test_a_timeout_on_virtual_time_ends_what_hangs() -> None:
    async def work() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(120):
                await asyncio.Event().wait()
        return now()

    assert on_loop(VirtualLoop(), work) == 120


def test_while_work_is_outside_virtual_time_stands_still() -> None:
    loop = VirtualLoop()

    async def work() -> tuple[float, float]:
        back, go = asyncio.Event(), threading.Event()
        timer = loop.create_task(asyncio.sleep(1.0))

        def outside() -> None:
            go.wait()
            loop.call_soon_threadsafe(back.set)

        thread = threading.Thread(target=outside)
        loop.hold()
        thread.start()
        for _ in range(100):  # the loop has nothing else to do, and still does not jump to the timer
            await asyncio.sleep(0)
        loop.call_soon(go.set)
        await back.wait()
        then = now()
        loop.release()
        await timer
        thread.join()
        return then, now()

    assert on_loop(loop, work) == (0.0, 1.0)


def test_before_the_virtual_loop_really_waits_it_says_so() -> None:
    loop, waits = VirtualLoop(), []

    async def work() -> None:
        back = asyncio.Event()
        loop.before_blocking = lambda: waits.append(loop.call_soon_threadsafe(back.set))
        loop.hold()
        await back.wait()
        loop.release()
        await asyncio.sleep(5)

    on_loop(loop, work)
    assert len(waits) == 1


def test_scaled_time_runs_faster_than_real_time_by_its_factor() -> None:
    async def work() -> float:
        began = now()
        await asyncio.sleep(60)
        return now() - began

    began = time.monotonic()
    passed = on_loop(lab.Scaled(1000).loop(), work)
    real = time.monotonic() - began
    assert 60 <= passed <= 1000 * real
    assert real >= 0.06


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf"), "x", None, True])
def test_a_scale_that_is_not_above_zero_is_refused(factor: Any) -> None:
    with pytest.raises(lab.SetupError, match="Scaled.*expected a number above 0; got"):
        lab.Scaled(factor)
