"""A depth that is found and slots that are controlled, in virtual time on the simulated server: busy, not too deep, and at rest."""

from __future__ import annotations

import functools
import sqlite3
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import Entry, RunState
from flashevolve_lab.core import events as ev
from flashevolve_lab.store import Writer

LANDSCAPE = lab.IndependentRules(n_rules=60, p_improve=0.5, seed=4)
SPEED = {64: lab.FixedLatency(slots=64), 16: lab.FixedLatency(slots=16)}
SECONDS, WARM = {64: 100.0, 16: 160.0}, {64: 60.0, 16: 50.0}


@functools.cache
def entries_of(slots: int, schedule: Any, workers: Any = None, n_val: int = 100, seconds: float | None = None) -> tuple[Entry, ...]:
    """The log of an evolution on a server with so many slots."""
    with tempfile.TemporaryDirectory() as folder:
        run = lab.start(
            lab.simulated_task(LANDSCAPE, n_train=100, n_val=n_val),
            lab.GEPA(cache=False),
            llm=lab.Simulated(LANDSCAPE, speed=SPEED[slots], seed=4),
            schedule=schedule,
            staleness=lab.Full(),
            workers=workers,
            limits=lab.Limits(concurrency=slots),
            budget=lab.Budget(seconds=seconds or SECONDS[slots]),
            clock=lab.Virtual(),
            seed=4,
            folder=folder,
        )
        run.wait(120)
        return tuple(run.entries)


def busy(entries: Sequence[Entry], slots: int, since: float) -> float:
    """Share of the slots in use, time average from a moment to the end."""
    area, calls = 0.0, 0
    for entry, following in pairwise(entries):
        calls += isinstance(entry.event, ev.CallStarted)
        calls -= isinstance(entry.event, ev.CallFinished)
        area += calls * max(0.0, following.at - max(entry.at, since))
    return area / (entries[-1].at - since) / slots


def of(entries: Sequence[Entry], kind: type) -> list[Any]:
    return [entry.event for entry in entries if isinstance(entry.event, kind)]


@pytest.mark.parametrize("slots", [64, 16])
def test_auto_keeps_the_server_busy_at_a_depth_not_far_above_the_smallest_that_does(slots: int) -> None:
    entries = entries_of(slots, lab.Pipelined("auto"))
    assert busy(entries, slots, WARM[slots]) >= 0.92
    changes = of(entries, ev.DepthChanged)
    found = changes[-1].new
    shallower = entries_of(slots, lab.Pipelined(max(1, int(found / 1.5))))
    assert busy(shallower, slots, WARM[slots]) < 0.95, f"{found} was found, and {found / 1.5:.0f} would have done"


@pytest.mark.parametrize("slots", [64, 16])
def test_a_found_depth_comes_to_rest(slots: int) -> None:
    changes = [(e.at, e.event.new - e.event.old) for e in entries_of(slots, lab.Pipelined("auto")) if isinstance(e.event, ev.DepthChanged)]
    assert 1 <= len(changes) <= 9
    late = [by for at, by in changes if at > WARM[slots]]
    assert sum(a * b < 0 for a, b in pairwise(late)) <= 1, f"to and fro: {late}"


def test_every_change_of_depth_has_its_reason_and_follows_a_review() -> None:
    entries = entries_of(16, lab.Pipelined("auto"))
    for before, entry in pairwise(entries):
        if isinstance(entry.event, ev.DepthChanged):
            assert isinstance(before.event, ev.WorkersReviewed) and before.event.wishes["depth"] and entry.event.by == "Pipelined"
            assert "% of the calls the server may have were in flight" in entry.event.why


@pytest.mark.parametrize("workers", [lab.RateBalanced(most=16), lab.ServerAware(most=16)], ids=["rate balanced", "server aware"])
def test_controlled_slots_come_to_rest_within_their_bounds_and_lowering_ends_no_job(workers: Any) -> None:
    entries = entries_of(16, lab.Pipelined(12), workers, n_val=40, seconds=90.0)
    changes = [entry for entry in entries if isinstance(entry.event, ev.SlotsChanged)]
    assert changes and all(abs(c.event.new - c.event.old) == 1 and 1 <= c.event.new <= 16 and c.event.why for c in changes)
    for stage in {change.event.stage for change in changes}:
        steps = [change.event.new - change.event.old for change in changes if change.event.stage == stage]
        assert sum(a * b < 0 for a, b in pairwise(steps)) <= 4, f"{stage} goes to and fro: {steps}"
    stopped = entries[-1].at
    assert all(entry.at == stopped for entry in entries if isinstance(entry.event, ev.JobAbandoned))
    assert not of(entries, ev.JobLost) and not of(entries, ev.JobFailed)


def test_above_lowered_slots_nothing_starts() -> None:
    entries = entries_of(16, lab.Pipelined(12), lab.ServerAware(), n_val=40, seconds=90.0)
    state, lowered = RunState(), 0
    for entry in entries:
        if isinstance(entry.event, ev.JobStarted) and (given := state.given.get(entry.event.stage)):
            assert len(state.slots[entry.event.stage]) < given
            lowered += given < 12
        state.apply_all([entry])
    assert lowered


def test_a_resume_goes_on_at_the_depth_that_was_found(tmp_path: Path) -> None:
    schedule, landscape = lab.Pipelined("auto", least=2), lab.IndependentRules(n_rules=10, p_improve=0.6)
    task, model = lab.simulated_task(landscape, n_train=20, n_val=10), lab.Simulated(landscape, speed=SPEED[16])
    shared = {"llm": model, "clock": lab.Virtual(), "limits": lab.Limits(concurrency=16)}
    run = lab.start(task, schedule=schedule, budget=lab.Budget(metric_calls=900), name="whole", folder=tmp_path, **shared)
    run.wait(60)
    whole = run.entries
    [*_, last] = [i for i, entry in enumerate(whole) if isinstance(entry.event, ev.DepthChanged)]
    cut = next(i + 1 for i in range(last, len(whole)) if whole[i].at != whole[i + 1].at)
    path = tmp_path / "cut.sqlite"
    writer = Writer(path)
    writer.append(whole[:cut])
    writer.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE meta SET value = '999999999@nowhere' WHERE key = 'writer'")
    before = RunState().apply_all(whole[:cut])
    again = lab.resume(path, task=task, **shared)
    again.wait(60)
    [*_, resumed] = [i for i, entry in enumerate(again.entries) if isinstance(entry.event, ev.RunResumed)]
    after = RunState().apply_all(again.entries[: resumed + 1])
    assert (after.auto_depth, after.meters.leans) == (before.auto_depth, before.meters.leans) and before.auto_depth
    most = max(RunState().apply_all(again.entries[:n]).in_flight for n in range(resumed + 1, resumed + 200, 20))
    assert most >= before.auto_depth
    replayed = lab.open(path).state
    assert (replayed.auto_depth, replayed.meters) == (again.state.auto_depth, again.state.meters)
