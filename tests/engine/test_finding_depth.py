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
def entries_of(
    slots: int,
    schedule: Any,
    workers: Any = None,
    n_val: int = 100,
    seconds: float | None = None,
    *,
    staleness: Any = None,
    model: type[lab.Simulated] = lab.Simulated,
    speed: Any = None,
    calls: int | None = None,
) -> tuple[Entry, ...]:
    """The log of an evolution on a server with so many slots, of which the gateway uses as many unless ``calls`` says otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        run = lab.start(
            lab.simulated_task(LANDSCAPE, n_train=100, n_val=n_val),
            lab.GEPA(cache=False),
            llm=model(LANDSCAPE, speed=speed or SPEED[slots], seed=4),
            schedule=schedule,
            staleness=staleness or lab.Full(),
            workers=workers,
            limits=lab.Limits(concurrency=calls or slots),
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
    assert changes and all(1 <= c.event.new <= 16 and c.event.why for c in changes)
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


# --- slots and calls by what the server says --------------------------------------------------------------------------------


class Telling(lab.Simulated):
    """A server that also tells how much of its KV cache is in use: all of it when all its slots are."""

    async def seen(self) -> dict[str, float]:
        told = await super().seen()
        return {**told, "kv_cache": told["running"] / self.speed.slots}


def changes_of(entries: Sequence[Entry], what: str) -> list[tuple[float, int, int, str]]:
    """When, from what, to what, why: of a stage's slots or of the concurrency."""
    found = []
    for entry in entries:
        match entry.event:
            case ev.SlotsChanged(stage, old, new, why) if stage == what:
                found.append((entry.at, old, new, why))
            case ev.SettingChanged("concurrency", old, new, "ServerAware", why) if what == "concurrency":
                found.append((entry.at, old, new, why))
    return found


def saturated(workers: Any, staleness: Any) -> tuple[Entry, ...]:
    """Sixteen slots, three times as many proposals in flight."""
    return entries_of(16, lab.Pipelined(48), workers, 50, 120.0, staleness=staleness)


def test_on_a_saturated_server_the_slots_are_soon_near_what_is_in_use_and_stay_there() -> None:
    entries = saturated(lab.ServerAware(), lab.Full())
    last = {stage: changes_of(entries, stage)[-1] for stage in ("rollout", "propose", "gate", "validate")}
    assert max(at for at, *_ in last.values()) < 80.0 and len(of(entries, ev.SlotsChanged)) <= 8
    assert last["rollout"][2] <= 8 and sum(new for _, _, new, _ in last.values()) <= 48
    assert busy(entries, 16, 50.0) >= 0.97


def test_on_a_saturated_server_it_accepts_as_much_as_fixed_slots_and_far_more_where_stale_work_is_discarded() -> None:
    """One seed; over ten the accepted a minute are 45.7 against 45.8 (Full) and 37.9 against 25.6 (Guarded(8)): see `ServerAware`."""
    rates, scores, tokens = {}, {}, {}
    for staleness in (lab.Full(), lab.Guarded(max_gap=8)):
        for workers in (lab.Fixed(), lab.ServerAware()):
            state = RunState().apply_all(saturated(workers, staleness))
            key = (type(staleness).__name__, type(workers).__name__)
            best = state.pool.best()
            rates[key], scores[key], tokens[key] = state.counts["committed"], best.mean if best else 0.0, state.spent.tokens
    assert rates["Full", "ServerAware"] >= 0.9 * rates["Full", "Fixed"]
    assert rates["Guarded", "ServerAware"] >= 1.2 * rates["Guarded", "Fixed"]
    per_accepted = {key: tokens[key] / rates[key] for key in rates}
    assert per_accepted["Guarded", "ServerAware"] < 0.9 * per_accepted["Guarded", "Fixed"]
    assert all(scores[kind, "ServerAware"] > scores[kind, "Fixed"] for kind in ("Full", "Guarded"))


def test_on_a_stationary_server_ten_minutes_bring_a_dozen_changes_at_most() -> None:
    entries = entries_of(16, lab.Pipelined(48), lab.ServerAware(), 50, 600.0, speed=lab.FixedLatency(slots=16, task_s=1.0, reflection_s=10.0))
    assert entries[-1].at == pytest.approx(600.0, abs=1.0)
    changed = [*of(entries, ev.SlotsChanged), *(e for e in of(entries, ev.SettingChanged) if e.by == "ServerAware")]
    assert 1 <= len(changed) <= 12 and all(change.why for change in changed)


@pytest.mark.parametrize("model", [lab.Simulated, Telling], ids=["queue", "queue and KV cache"])
def test_calls_that_wait_inside_the_server_are_made_to_wait_here_instead(model: type[lab.Simulated]) -> None:
    entries = entries_of(16, lab.Pipelined(32), lab.ServerAware(), 50, 100.0, model=model, calls=64)
    changes = changes_of(entries, "concurrency")
    assert [(old, new) for _, old, new, _ in changes[:2]] == [(64, 32), (32, 17)] and changes[-1][2] in (16, 17) and len(changes) <= 4
    assert "48 requests wait inside the server beside 16 in service" in changes[0][3]
    told = [seen for seen in of(entries, ev.ServerSeen)][-5:]
    assert all(seen.running == 16 and seen.waiting <= 1 for seen in told)
    why = "100% of its KV cache are in use" if model is Telling else "the server is full"
    assert why in changes_of(entries, "rollout")[0][3] and changes_of(entries, "rollout")[-1][2] <= 8


def test_a_server_that_only_slows_down_is_kept_as_busy_by_controlled_slots() -> None:
    speed = lab.Batching(slots=64, half_load=32.0)
    entries = [entries_of(64, lab.Pipelined(48), workers, 50, 120.0, speed=speed) for workers in (lab.Fixed(), lab.ServerAware())]
    fixed, aware = (busy(log, 64, 60.0) for log in entries)
    assert aware >= fixed - 0.03 and of(entries[1], ev.SlotsChanged)


def test_a_server_that_answers_429_gets_fewer_proposals_and_ends_no_job() -> None:
    refusing = lab.FixedLatency(slots=16, max_waiting=0)
    entries = entries_of(16, lab.Pipelined(32), lab.ServerAware(), 50, 100.0, speed=refusing, calls=64)
    [(_, old, new, why), *_] = changes_of(entries, "rollout")
    assert (old, new) == (32, 8) and "it refuses or misses calls" in why
    assert not changes_of(entries, "concurrency")  # the gateway lowers it by itself already
    assert all(entry.at == entries[-1].at for entry in entries if isinstance(entry.event, ev.JobAbandoned))


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
