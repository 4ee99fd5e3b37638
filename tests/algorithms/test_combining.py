"""Map–reduce reflection as a join: the window closes, what is late goes to the next one, and nothing is dropped or paid twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashevolve_lab as lab
from flashevolve_lab.algorithms.combining import split
from flashevolve_lab.core import RunState, apply, check
from flashevolve_lab.core import events as ev
from flashevolve_lab.errors import SetupError

WORLD = lab.UnitingRules(n_rules=20, p_improve=0.7)


class Uneven:
    """The simulated world, whose every fourth reflection takes a minute. ``fail``: replies of reflections that cannot be used."""

    def __init__(self, *, slow_s: float = 60.0, fail: bool = False) -> None:
        self.world, self.slow_s, self.fail, self.asked = WORLD, slow_s, fail, 0
        self.inner = lab.Simulated(WORLD, speed=lab.FixedLatency(task_s=1, reflection_s=1))

    async def complete(self, request: lab.Request) -> lab.Reply:
        slow = False
        if request.role == "reflection":
            self.asked += 1
            slow = self.asked % 4 == 0
        await asyncio.sleep(self.slow_s if slow else 1 + self.asked % 3 / 10)
        if self.fail and request.role == "reflection" and self.asked % 5 == 0:
            return lab.Reply("no block at all", "stop", 10, 5)
        return await self.inner.complete(request)

    async def check(self) -> None:
        """Always there."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "uneven", "simulated": True, "in_process": True}


def started(folder: Path, proposer: Any, llm: Any = None, *, budget: Any = None, **more: Any) -> lab.Run:
    given: dict[str, Any] = {"schedule": lab.Pipelined(3), "clock": lab.Virtual(), "staleness": lab.Full(), **more}
    return lab.start(
        lab.simulated_task(WORLD, 40, 20),
        lab.GEPA(minibatch=20, proposer=proposer),
        llm=llm or Uneven(),
        budget=budget or lab.Budget(metric_calls=1_500),
        folder=folder,
        **given,
    )


def ended(*args: Any, **more: Any) -> lab.Run:
    run = started(*args, **more)
    run.wait(60)
    return run


def of(run: lab.Run, kind: type) -> list[Any]:
    return [entry.event for entry in run.entries if isinstance(entry.event, kind)]


def folded(run: lab.Run) -> RunState:
    state = RunState()
    for entry in run.entries:
        apply(state, entry)
    check(state)
    return state


def maps(run: lab.Run) -> list[ev.CallStarted]:
    return [e for e in of(run, ev.CallStarted) if e.role == "reflection"]


# --- the split ------------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(n=st.integers(1, 40), copies=st.integers(1, 4), groups=st.integers(1, 9), seed=st.integers(0, 99))
def test_every_record_is_dealt_as_often_as_wanted_and_never_twice_to_one_group(n: int, copies: int, groups: int, seed: int) -> None:
    records = [lab.Record(str(i), "", 0.0, "", i) for i in range(n)]
    groups = min(groups, n)
    dealt = split(records, copies, groups, Random(seed))
    assert len(dealt) == groups and all(dealt)
    assert Counter(r.example for part in dealt for r in part) == dict.fromkeys(range(n), min(copies, groups))
    assert all(len({r.example for r in part}) == len(part) for part in dealt)
    sizes = [len(part) for part in dealt]
    assert max(sizes) - min(sizes) <= min(copies, groups)


def test_the_number_of_groups_is_the_root_of_the_records_by_default() -> None:
    assert [lab.MapReduce().calls(n) for n in (1, 3, 20, 36, 40)] == [2, 2, 5, 7, 7]
    assert lab.MapReduce(groups=8).calls(20) == 9 and lab.MapReduce(groups=8).calls(3) == 4


# --- a whole window -------------------------------------------------------------------------------------------------------


def test_one_commit_comes_of_many_reflections_and_one_uniting_call(tmp_path: Path) -> None:
    run = ended(tmp_path, lab.MapReduce())
    proposed = [e for e in of(run, ev.JobStarted) if e.stage == "propose"]
    by_job = Counter(e.job for e in maps(run))
    assert proposed and all(by_job[e.job] == 4 for e in proposed)
    united = [e for e in of(run, ev.CallStarted) if e.role == "patch"]
    assert Counter(e.job for e in united) == {e.job: 1 for e in proposed}
    assert run.status.accepted and not folded(run).late
    notes = [e.result["note"] for e in of(run, ev.JobFinished) if "note" in e.result]
    assert set(notes) == {"united from 4 of 4 reflections"}


def test_the_same_seed_gives_the_same_log(tmp_path: Path) -> None:
    one, two = (ended(tmp_path / name, lab.MapReduce(close=0.75), name="same") for name in "ab")
    assert [(e.at, e.event) for e in one.entries[1:]] == [(e.at, e.event) for e in two.entries[1:]]


# --- late arrivals --------------------------------------------------------------------------------------------------------

WINDOWS = [lab.MapReduce(close=0.75), lab.MapReduce(count=2), lab.MapReduce(deadline_s=5.0)]


@pytest.mark.parametrize("proposer", WINDOWS, ids=["share", "count", "deadline"])
def test_late_reflections_go_to_the_next_window_each_to_one(proposer: Any, tmp_path: Path) -> None:
    run = ended(tmp_path, proposer)
    state = folded(run)
    released = [e for e in of(run, ev.Released)]
    carried, taken = state.counts["late reflections"], sum(e.count for e in of(run, ev.LateTaken))
    assert released and carried > 3 and taken > 0
    assert carried == taken + sum(map(len, state.late.values())), "each is taken by one window, or still waits"
    opened = sum(len(e.result.get("open", ())) for kind in (ev.Released, ev.JobFinished) for e in of(run, kind))
    assert carried == opened, "every one that missed its window came, and was carried"
    assert len(maps(run)) == 4 * len([e for e in of(run, ev.JobStarted) if e.stage == "propose"]), "none is asked twice"
    assert any("late ones" in e.result.get("note", "") for kind in (ev.Released, ev.JobFinished) for e in of(run, kind))


def test_a_window_that_closes_early_does_not_wait_for_the_slow_ones(tmp_path: Path) -> None:
    whole, early = ended(tmp_path / "a", lab.MapReduce()), ended(tmp_path / "b", lab.MapReduce(close=0.75))
    assert early.entries[-1].at < whole.entries[-1].at
    sent = {e.event.job: e.at for e in early.entries if isinstance(e.event, ev.JobStarted) and e.event.stage == "propose"}
    on = [e.at - sent[e.event.job] for e in early.entries if isinstance(e.event, ev.Released)]
    assert on and sorted(on)[len(on) // 2] < 30


def test_a_deadline_waits_for_one_reflection_at_least(tmp_path: Path) -> None:
    run = ended(tmp_path, lab.MapReduce(deadline_s=0.01))
    notes = [e.result["note"] for kind in (ev.Released, ev.JobFinished) for e in of(run, kind) if "note" in e.result]
    assert run.status.proposals and all(not note.startswith("united from 0") for note in notes)


def test_a_reflection_that_cannot_be_used_is_missing_and_ends_nothing(tmp_path: Path) -> None:
    run = ended(tmp_path, lab.MapReduce(), Uneven(fail=True, slow_s=3.0))
    notes = {e.result["note"] for e in of(run, ev.JobFinished) if "note" in e.result}
    assert "united from 3 of 4 reflections" in notes and run.status.accepted


@pytest.mark.parametrize("cut", [0.2, 0.35, 0.5, 0.65, 0.8])
def test_a_run_killed_anywhere_goes_on_and_uses_each_late_reflection_once(cut: float, tmp_path: Path) -> None:
    from flashevolve_lab.store import Writer

    run = ended(tmp_path, lab.MapReduce(close=0.75))
    entries, end = run.entries, int(len(run.entries) * cut)
    while entries[end].at == entries[end - 1].at:  # what is decided in one turn is written in one transaction
        end += 1
    kept = entries[:end]
    log = Writer(tmp_path / "cut.sqlite", create=True)
    log.append(kept)
    log.close()
    more = lab.resume(
        tmp_path / "cut.sqlite",
        task=lab.simulated_task(WORLD, 40, 20),
        algorithm=lab.GEPA(minibatch=20, proposer=lab.MapReduce(close=0.75)),
        llm=Uneven(),
        clock=lab.Virtual(),
    )
    more.wait(60)
    state = folded(more)
    taken: Counter[str] = Counter()
    for event in of(more, ev.LateTaken):
        taken[event.item] += 1
    assert all(count == 1 for count in taken.values()), "a window that is opened again keeps what it had taken"
    assert state.status == "stopped" and not state.jobs and state.counts["late reflections"] > 0


def test_a_stop_leaves_what_was_late_in_the_log_for_the_resume(tmp_path: Path) -> None:
    run = started(tmp_path, lab.MapReduce(close=0.75), budget=lab.Budget(metric_calls=1_500, seconds=150.0))
    run.wait(60)
    before = folded(run)
    more = lab.resume(
        run.path,
        task=lab.simulated_task(WORLD, 40, 20),
        algorithm=lab.GEPA(minibatch=20, proposer=lab.MapReduce(close=0.75)),
        llm=Uneven(),
        clock=lab.Virtual(),
        budget=lab.Budget(metric_calls=1_500),
    )
    more.wait(60)
    after = [e.event for e in more.entries if isinstance(e.event, ev.LateTaken) and e.seq > before.seq]
    assert sum(map(len, before.late.values())) <= sum(e.count for e in after)
    assert folded(more).counts["late reflections"] >= before.counts["late reflections"] > 0


def test_the_budget_of_calls_is_kept(tmp_path: Path) -> None:
    run = ended(tmp_path, lab.MapReduce(close=0.5), budget=lab.Budget(metric_calls=2_000, llm_calls=700))
    assert run.status.spent["llm_calls"] <= 700


NONSENSE = [
    {"copies": 0}, {"groups": 0}, {"close": 0.0}, {"close": 1.5}, {"count": 0}, {"deadline_s": 0}, {"prompt": "Unite!"},
]  # fmt: skip


@pytest.mark.parametrize("given", NONSENSE, ids=str)
def test_nonsense_is_refused(given: Any) -> None:
    with pytest.raises(SetupError, match="MapReduce"):
        lab.MapReduce(**given)
