"""Runs whose late calls are asked a second time: what the log, the table, the budget and the server's own count say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import events as ev

LAND = lab.IndependentRules(n_rules=10, p_improve=0.8)


def whole_run(folder: Path, name: str, hedge: float | None, **budget: Any) -> tuple[lab.Run, lab.Simulated]:
    llm = lab.Simulated(LAND, speed=lab.FixedLatency(task_sigma=1.2, reflection_sigma=1.2))
    run = lab.start(
        lab.simulated_task(LAND, 20, 10), llm=llm, budget=lab.Budget(**(budget or {"metric_calls": 1500})),
        clock=lab.Virtual(), limits=lab.Limits(hedge=hedge), name=name, folder=folder,
    )  # fmt: skip
    run.wait(60)
    return run, llm


def test_in_a_run_the_servers_own_count_is_the_logs_and_the_table_marks_second_calls(tmp_path: Path) -> None:
    run, llm = whole_run(tmp_path, "r", 0.9)
    calls = run.frame("calls")
    counts = llm.stats()["roles"].values()
    assert sum(count["arrived"] for count in counts) == len(calls) == run.state.spent.llm_calls
    assert sum(count["cancelled"] for count in counts) == (calls["outcome"] == "cancelled").sum()
    assert sum(count["finished"] for count in counts) == (calls["outcome"] == "ok").sum()
    hedged = calls[calls["hedge"]]
    assert len(hedged) > 20 and (hedged["outcome"] == "ok").any()
    pairs = calls.groupby(["job", "key", "attempt"]).size()
    assert pairs.max() == 2 and (pairs == 2).sum() == len(hedged)
    losers = [e.event for e in run.entries if isinstance(e.event, ev.CallFinished) and e.event.outcome == "cancelled"]
    reserved = {e.event.call: e.event.reserved for e in run.entries if isinstance(e.event, ev.CallStarted)}
    assert losers and all(loser.spent == reserved[loser.call] for loser in losers)


def test_a_run_with_second_calls_is_the_same_run_every_time(tmp_path: Path) -> None:
    once, again = (whole_run(tmp_path, name, 0.9)[0] for name in ("a", "b"))
    assert [(e.at, e.event) for e in once.entries][1:] == [(e.at, e.event) for e in again.entries][1:]


@pytest.mark.parametrize("limit", [{"llm_calls": 700}, {"tokens": 200_000}])
def test_no_budget_is_exceeded_by_second_calls(tmp_path: Path, limit: dict[str, int]) -> None:
    run, _ = whole_run(tmp_path, "r", 0.9, **limit)
    [(name, most)] = limit.items()
    assert run.frame("calls")["hedge"].any()
    assert 0.8 * most < getattr(run.state.spent, name) <= most


def test_a_run_that_is_paused_in_the_middle_of_late_calls_sends_no_second_ones(tmp_path: Path) -> None:
    run = lab.start(
        lab.simulated_task(LAND, 20, 10), llm=lab.Simulated(LAND, speed=lab.FixedLatency(task_sigma=1.2)),
        budget=lab.Budget(metric_calls=100_000), clock=lab.Virtual(), limits=lab.Limits(hedge=0.5), name="r", folder=tmp_path,
    )  # fmt: skip
    while not any(isinstance(e.event, ev.CallStarted) and e.event.hedge for e in run.entries):
        run.wait(0.05)
    run.pause()
    run.stop().wait(20)
    paused = False
    for entry in run.entries:
        paused = paused or isinstance(entry.event, ev.Paused)
        assert not (paused and isinstance(entry.event, ev.CallStarted))
    assert paused
    open_calls = {e.event.call for e in run.entries if isinstance(e.event, ev.CallStarted)}
    assert open_calls == {e.event.call for e in run.entries if isinstance(e.event, ev.CallFinished)}
