"""The two pure questions of the loop, asked on a run without a shell: what did this mean, and what may start now."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from flashevolve_lab.core import NewItem, Pace, RunState, Spend, StaleItem, Starts, Verdict, check, decide, inputs, plan
from flashevolve_lab.core import events as ev
from flashevolve_lab.core.events import (
    CallFinished,
    CallStarted,
    Committed,
    DepthChanged,
    Event,
    ItemEnded,
    ItemMade,
    ItemQueued,
    JobAbandoned,
    JobFailed,
    JobFinished,
    JobLost,
    JobStarted,
    Paused,
    RunStopped,
    SettingChanged,
    StalenessJudged,
)
from flashevolve_lab.core.step import MAX_IDLE, RETRIES
from flashevolve_lab.errors import InvariantError
from flashevolve_lab.policies import Batched, Full, Guarded, Pipelined, Sequential
from flashevolve_lab.testing import PureRun, Toy


def seeded(**options: Any) -> PureRun:
    """A run whose seed is committed."""
    run = PureRun(**options)
    run.finish("test", score=0.0)
    return run


def started(happened: list[Event]) -> list[tuple[str, str]]:
    """(stage, item) of each job started."""
    return [(event.stage, event.item) for event in happened if isinstance(event, JobStarted)]


def ends(run: PureRun) -> dict[str, str]:
    """Item → outcome."""
    return {event.item: event.outcome for event in run.of(ItemEnded)}


def running(run: PureRun, stage: str) -> list[str]:
    """Items being worked on at a stage."""
    return [job.item for job in run.state.jobs.values() if job.stage == stage]


def make_all(run: PureRun, n: int, **result: Any) -> None:
    """The ``n`` oldest ``make`` jobs return distinct texts."""
    for _ in range(n):
        run.finish("make", text=f"text {run.state.seq}", **result)


# --- the beginning --------------------------------------------------------------------------------------------------------


def test_nothing_is_proposed_before_the_seed_is_committed() -> None:
    run = PureRun(schedule=Pipelined(4))
    assert started(run.of(JobStarted)) == [("test", "p0")]
    happened = run.finish("test", score=0.5)
    assert [event.version for event in run.of(Committed)] == [0]
    assert len(started(happened)) == 4


def test_a_seed_that_cannot_be_scored_ends_the_run_with_the_cause_and_stays_in_its_queue() -> None:
    run = PureRun()
    run.fail("test", message="no server")
    assert run.state.stop == RunStopped("failures", "the seed could not be scored: no server")
    assert list(run.state.queues["test"]) == ["p0"]


# --- starting -------------------------------------------------------------------------------------------------------------


def test_work_nearest_to_a_commit_goes_first() -> None:
    run = seeded(schedule=Pipelined(2))
    run.turn(inputs.Pause())
    run.fail("make", again=True)
    run.finish("make", text="one")
    assert (list(run.state.queues["make"]), list(run.state.queues["test"])) == (["p1"], ["p2"])
    assert started(run.turn(inputs.Continue())) == [("test", "p2"), ("make", "p1")]


def test_each_queue_is_first_in_first_out() -> None:
    run = seeded(schedule=Pipelined(3), settings={"slots": {"test": 1}})
    make_all(run, 3)
    assert running(run, "test") == ["p1"]
    assert list(run.state.queues["test"])[:2] == ["p2", "p3"]


def test_a_worker_slot_is_the_lowest_free_number() -> None:
    run = seeded(schedule=Pipelined(3))
    assert sorted(run.state.slots["make"]) == [0, 1, 2]
    run.turn(inputs.JobDone(run.state.slots["make"][1], {"skip": True}))
    assert sorted(run.state.slots["make"]) == [0, 1, 2], "the freed slot is taken again"


def test_proposals_in_flight_are_bounded_by_the_depth_and_by_the_free_slots_of_the_entry() -> None:
    assert seeded(schedule=Pipelined(5)).state.in_flight == 5
    assert seeded(schedule=Pipelined(5), settings={"slots": {"make": 2}}).state.in_flight == 2


def test_lowering_slots_kills_nothing_and_starts_nothing_above_the_new_number() -> None:
    run = seeded(schedule=Pipelined(4))
    before = running(run, "make")
    assert len(before) == 4
    happened = run.set(slots={"make": 1})
    assert running(run, "make") == before
    assert [type(event) for event in happened] == [SettingChanged]
    for left in (3, 2, 1):
        run.finish("make", skip=True)
        assert len(running(run, "make")) == left
    run.finish("make", skip=True)
    assert len(running(run, "make")) == 1


def test_a_change_of_schedule_governs_starts_only() -> None:
    run = seeded(schedule=Pipelined(4))
    assert run.set(schedule=Sequential()) == run.of(SettingChanged)
    assert len(running(run, "make")) == 4, "what is in flight finishes"
    for _ in range(3):
        assert not started(run.finish("make", skip=True))
    run.finish("make", skip=True)
    assert run.state.in_flight == 1
    assert len(started(run.set(schedule=Pipelined(3)))) == 2


def test_setting_a_knob_to_its_own_value_changes_nothing() -> None:
    run = seeded()
    assert run.set(schedule=Pipelined(1), slots={}) == []


def test_a_setting_change_tells_old_new_who_and_why() -> None:
    run = seeded()
    run.turn(inputs.SetKnobs({"slots": {"test": 2}}, by="user", why="a second validator"))
    assert run.of(SettingChanged) == [SettingChanged("slots", {}, {"test": 2}, "user", "a second validator")]


# --- batches --------------------------------------------------------------------------------------------------------------


def test_batched_draws_all_parents_at_the_start_and_shares_each_among_n() -> None:
    drawn: list[tuple[int, str | None]] = []

    class Choosy(Toy):
        def begin(self, state: RunState, drawn_: Any, parent: str | None) -> NewItem | None:
            drawn.append((len(drawn_), parent))
            chosen = parent or state.pool.order[len(drawn_) % len(state.pool.order)].id
            return NewItem("proposal", "make", state.pool.version, {"parent": chosen})

    run = seeded(algorithm=Choosy(), schedule=Batched(2, 3))
    assert drawn == [(0, None), (1, "a0"), (2, "a0"), (3, None), (4, "a0"), (5, "a0")]
    assert {made.batch for made in run.of(ItemMade)[1:]} == {1}
    assert {made.base for made in run.of(ItemMade)[1:]} == {0}


def test_the_next_batch_starts_when_all_of_this_one_have_settled() -> None:
    run = seeded(schedule=Batched(2, 1))
    run.finish("make", text="one")
    run.finish("test", score=0.5)
    assert run.state.in_flight == 1, "one of two has been committed, and nothing new begins"
    run.finish("make", skip=True)
    assert [made.base for made in run.of(ItemMade)] == [0, 0, 0, 1, 1]


def test_commits_of_siblings_of_the_same_batch_add_no_gap() -> None:
    run = seeded(schedule=Batched(2, 2), staleness=Guarded(0))
    make_all(run, 4)
    for _ in range(4):
        run.finish("test", score=0.5)
    assert run.state.pool.version == 4
    assert not run.of(StalenessJudged)


def test_a_batch_that_the_budget_does_not_cover_is_begun_only_as_far_as_it_does() -> None:
    run = seeded(schedule=Batched(4, 1), budget={"metric_calls": 6})
    assert run.state.in_flight == 3


# --- pause and step -------------------------------------------------------------------------------------------------------


def test_pausing_starts_nothing_and_kills_nothing() -> None:
    run = seeded(schedule=Pipelined(3))
    before = running(run, "make")
    assert run.turn(inputs.Pause()) == [Paused("user")]
    assert running(run, "make") == before
    for _ in range(3):
        assert not started(run.finish("make", text=f"text {run.state.seq}"))
    assert not run.state.jobs and len(run.state.queues["test"]) == 3
    assert run.state.status == "paused", "a paused run does not end for want of work"
    assert len(started(run.turn(inputs.Continue()))) == 3


def test_pausing_starts_no_new_call() -> None:
    run = seeded()
    wanted = inputs.CallWanted(run.job("make").id, "task", "k#1", 0, Spend(llm_calls=1))
    run.turn(inputs.Pause())
    assert run.give(wanted) == []
    run.turn(inputs.Continue())
    assert [type(event) for event in run.give(wanted)] == [CallStarted]


def test_pausing_twice_or_continuing_what_runs_is_no_event() -> None:
    run = seeded()
    assert run.turn(inputs.Continue()) == []
    run.turn(inputs.Pause())
    assert run.turn(inputs.Pause()) == []


@pytest.mark.parametrize("n", [1, 2])
def test_a_step_starts_exactly_that_many_jobs_of_the_stage(n: int) -> None:
    run = seeded(schedule=Pipelined(4))
    run.turn(inputs.Pause())
    make_all(run, 3)
    happened = run.turn(inputs.Step(n, "test"))
    assert [stage for stage, _ in started(happened)] == ["test"] * n
    assert all(job.stepped for job in run.state.jobs.values() if job.stage == "test")
    assert run.state.status == "paused"
    assert not started(run.finish("test", score=0.5)), "it stays paused"


def test_a_step_of_any_stage_takes_what_would_be_next() -> None:
    run = seeded(schedule=Pipelined(2))
    run.turn(inputs.Pause())
    make_all(run, 2)
    assert started(run.turn(inputs.Step(1))) == [("test", "p1")]


def test_a_step_may_begin_a_proposal() -> None:
    run = seeded(schedule=Sequential())
    run.turn(inputs.Pause())
    run.finish("make", skip=True)
    assert started(run.turn(inputs.Step(1))) == [("make", "p2")]


def test_a_step_of_a_stage_where_nothing_waits_starts_nothing() -> None:
    run = seeded(schedule=Pipelined(2))
    run.turn(inputs.Pause())
    run.finish("make", skip=True)
    assert not started(run.turn(inputs.Step(1, "test")))


def test_a_step_works_only_when_paused() -> None:
    assert seeded().give(inputs.Step(1)) == []


def test_a_stepped_job_may_call_while_the_run_is_paused() -> None:
    run = seeded(schedule=Sequential())
    run.turn(inputs.Pause())
    run.finish("make", skip=True)
    run.turn(inputs.Step(1))
    assert run.give(inputs.CallWanted(run.job("make").id, "task", "k#1", 0, Spend(llm_calls=1)))


def test_continuing_forgets_what_a_step_still_allowed() -> None:
    run = seeded(schedule=Pipelined(2))
    run.turn(inputs.Pause(), inputs.Step(5, "test"), inputs.Continue())
    assert run.state.step_jobs == 0
    run.turn(inputs.Pause())
    assert not started(run.finish("make", text="one"))


# --- staleness ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Says:
    """A policy that says the same to everything."""

    action: Any
    reason: Any = "because"

    def judge(self, item: StaleItem) -> Verdict:
        return Verdict(self.action, self.reason)


class Raises:
    """A policy with a bug."""

    def judge(self, item: StaleItem) -> Verdict:
        raise ZeroDivisionError("oops")


class Nonsense:
    """A policy that returns no verdict."""

    def judge(self, item: StaleItem) -> Any:
        return "discard"


def stale(staleness: Any, *, superseded: bool = False, updates_before: bool = False) -> PureRun:
    """A run where p2 waits before its test while p1 is committed: a gap of 1 at its dequeue."""
    run = seeded(schedule=Pipelined(2), staleness=staleness, settings={"slots": {"test": 1}})
    make_all(run, 2, superseded=superseded)
    assert running(run, "test") == ["p1"] and "p2" in run.state.queues["test"]
    run.finish("test", score=0.5)
    return run


def test_a_verdict_is_logged_with_its_reason_and_all_it_was_based_on() -> None:
    run = stale(Guarded(0, beyond="discard"))
    judged = run.of(StalenessJudged)[0]
    assert judged == StalenessJudged(
        item="p2", artifact="a2", stage="test", where="dequeue", base=0, version=1, gap=1, touched=True, superseded=False,
        counterpart="a1", action="discard", reason="gap 1 is beyond 0", policy="Guarded", why="1 commits since",
    )  # fmt: skip
    assert ItemEnded("p2", "discarded", "gap 1 is beyond 0", "a2") in run.of(ItemEnded)


def test_an_item_without_a_gap_is_not_judged() -> None:
    run = seeded(staleness=Says("discard"))
    run.finish("make", text="fresh")
    run.finish("test", score=0.5)
    assert not run.of(StalenessJudged)
    assert run.state.pool.version == 1


def test_an_item_is_judged_when_it_is_dequeued_not_when_it_is_queued() -> None:
    run = seeded(schedule=Pipelined(2), staleness=Full(), settings={"slots": {"test": 1}})
    make_all(run, 2)
    assert not run.of(StalenessJudged), "p2 waits, fresh"
    run.finish("test", score=0.5)
    assert [(j.item, j.where) for j in run.of(StalenessJudged)] == [("p2", "dequeue")]


def test_an_item_that_becomes_stale_while_validating_is_judged_again_at_its_commit() -> None:
    run = seeded(schedule=Pipelined(2), staleness=Full())
    make_all(run, 2)
    assert len(running(run, "test")) == 2, "both were taken fresh"
    run.finish("test", score=0.5)
    assert not run.of(StalenessJudged)
    run.finish("test", score=0.6)
    assert [(j.item, j.where, j.gap) for j in run.of(StalenessJudged)] == [("p2", "commit", 1)]
    assert run.state.pool.version == 2


def test_an_item_accepted_at_its_dequeue_is_judged_again_at_its_commit() -> None:
    run = stale(Full())
    run.finish("test", score=0.6)
    assert [(j.item, j.where) for j in run.of(StalenessJudged)] == [("p2", "dequeue"), ("p2", "commit")]


@pytest.mark.parametrize(
    ("policy", "superseded", "outcome"),
    [
        (Guarded(0), False, "committed"),
        (Guarded(0), True, "discarded"),
        (Guarded(0, paper=True), False, "discarded"),
        (Guarded(1, paper=True), True, "committed"),
    ],
)
def test_at_commit_our_default_discards_only_the_superseded_and_the_papers_rule_by_gap(
    policy: Guarded, superseded: bool, outcome: str
) -> None:
    run = seeded(schedule=Pipelined(2), staleness=policy)
    make_all(run, 2, superseded=superseded)
    run.finish("test", score=0.5)
    run.finish("test", score=0.6)
    assert ends(run)["p2"] == outcome
    assert run.state.pool.version == (2 if outcome == "committed" else 1)


@pytest.mark.parametrize("action", ["update", "patch"])
def test_at_commit_there_is_nothing_to_redo_so_it_is_accepted(action: str) -> None:
    run = seeded(schedule=Pipelined(2), staleness=Says(action))
    make_all(run, 2)
    run.finish("test", score=0.5)
    run.finish("test", score=0.6)
    judged = run.of(StalenessJudged)[-1]
    assert (judged.where, judged.action) == ("commit", "accept")
    assert "because" in judged.reason
    assert ends(run)["p2"] == "committed"


def test_an_item_is_updated_once_then_discarded() -> None:
    run = stale(Says("update"))
    assert run.state.items["p2"].stage == "make"
    assert (run.state.items["p2"].base, run.state.items["p2"].updates) == (1, 1), "its base is the version now"
    jobs = {job.item: job.id for job in run.state.jobs.values()}
    run.turn(inputs.JobDone(jobs["p3"], {"text": "third"}))
    run.finish("test", score=0.5)  # p3 overtakes
    run.turn(inputs.JobDone(jobs["p2"], {"text": "updated"}))
    actions = [(j.item, j.action) for j in run.of(StalenessJudged) if j.item == "p2"]
    assert actions == [("p2", "update"), ("p2", "discard")]
    assert "updated once already" in run.of(StalenessJudged)[-1].reason


def test_a_validated_item_that_was_updated_before_is_not_discarded_for_that() -> None:
    run = stale(Says("update"))
    order = {job.item: job.id for job in run.state.jobs.values() if job.stage == "make"}
    run.set(slots={"test": 2})
    run.turn(inputs.JobDone(order["p2"], {"text": "updated"}), inputs.JobDone(order["p3"], {"text": "third"}))
    tests = {job.item: job.id for job in run.state.jobs.values() if job.stage == "test"}
    run.turn(inputs.JobDone(tests["p3"], {"score": 0.5}))
    run.turn(inputs.JobDone(tests["p2"], {"score": 0.6}))
    assert run.of(StalenessJudged)[-1].where == "commit"
    assert ends(run)["p2"] == "committed", "nothing is left to redo, so the update rule says nothing"


def test_patch_without_a_patch_stage_is_accepted_and_says_so() -> None:
    run = stale(Says("patch"))
    assert "no patch stage" in run.of(StalenessJudged)[0].reason
    assert running(run, "test") == ["p2"]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        (Raises(), "policy Raises failed: ZeroDivisionError: oops"),
        (Nonsense(), "policy Nonsense failed"),
        (Says("banish"), "'banish'"),
        (Says("discard", reason=None), "reason"),
    ],
)
def test_a_policy_that_raises_or_returns_nonsense_is_contained(policy: Any, says: str) -> None:
    run = stale(policy)
    judged = run.of(StalenessJudged)[0]
    assert judged.action == "accept"
    assert says in judged.reason
    assert run.state.status == "running"


def test_each_verdict_uses_the_policy_in_force_when_it_is_given() -> None:
    run = seeded(schedule=Pipelined(2), staleness=Full(), settings={"slots": {"test": 1}})
    make_all(run, 2)
    run.set(staleness=Guarded(0))
    run.finish("test", score=0.5)
    assert [(j.policy, j.action) for j in run.of(StalenessJudged)] == [("Guarded", "discard")]


# --- livelock -------------------------------------------------------------------------------------------------------------


def stuck() -> PureRun:
    """Twelve in flight although the depth is now four; p1 was committed just now, so the eleven behind it are stale."""
    run = seeded(schedule=Pipelined(12), staleness=Says("discard"), settings={"slots": {"test": 1}})
    make_all(run, 12)
    run.set(schedule=Pipelined(4))
    run.finish("test", score=0.5)
    return run


def test_after_twice_the_depth_discards_in_a_row_the_effective_depth_halves() -> None:
    run = stuck()
    assert list(ends(run).values()).count("discarded") == 11
    assert [(e.old, e.new) for e in run.of(DepthChanged)] == [(4, 2)], "at the eighth; three more are too few for the next"
    assert "8 stale items in a row" in run.of(DepthChanged)[0].why
    assert run.state.in_flight == 2, "fewer are in flight"


def test_fewer_discards_in_a_row_than_twice_the_depth_are_not_enough() -> None:
    run = seeded(schedule=Pipelined(8), staleness=Says("discard"), settings={"slots": {"test": 1}})
    make_all(run, 8)
    run.set(schedule=Pipelined(4))
    run.finish("test", score=0.5)
    assert list(ends(run).values()).count("discarded") == 7
    assert not run.of(DepthChanged)


def test_each_commit_lets_the_effective_depth_grow_by_one_up_to_the_setting() -> None:
    run = stuck()
    for depth in (3, 4, 4):
        fresh = next(j.id for j in run.state.jobs.values() if run.state.items[j.item].base == run.state.pool.version)
        run.turn(inputs.JobDone(fresh, {"text": f"text {run.state.seq}"}))
        run.finish("test", score=0.5)
        assert run.state.in_flight == depth
    assert [(e.old, e.new) for e in run.of(DepthChanged)] == [(4, 2), (2, 3), (3, 4)]


def test_a_new_schedule_takes_the_effective_depth_back() -> None:
    run = stuck()
    run.set(schedule=Pipelined(3))
    assert run.state.in_flight == 3


# --- failures -------------------------------------------------------------------------------------------------------------


def test_a_failed_job_is_data_and_its_siblings_go_on() -> None:
    run = seeded(schedule=Pipelined(3))
    others = running(run, "make")[1:]
    happened = run.fail("make", message="boom")
    assert JobFailed("j1", "error", "boom") in happened
    assert ends(run)["p1"] == "failed"
    assert set(others) <= set(running(run, "make"))


def test_work_worth_another_try_is_tried_once_more_and_then_fails() -> None:
    run = seeded()
    for _ in range(RETRIES):
        run.fail("make", again=True)
        assert running(run, "make") == ["p1"]
    run.fail("make", again=True)
    assert ends(run)["p1"] == "failed"


@pytest.mark.parametrize(
    ("kind", "outcome"), [("error", "failed"), ("unchanged", "refused"), ("truncated", "refused"), ("budget", "unaffordable")]
)
def test_how_a_job_broke_decides_how_its_item_ends(kind: str, outcome: str) -> None:
    run = seeded()
    run.fail("make", kind=kind, message="why")
    assert ends(run)["p1"] == outcome


def test_failures_in_a_row_stop_the_run_with_the_cause() -> None:
    run = seeded(settings={"max_failures": 5})
    for _ in range(4):
        run.fail("make", message="boom 7")
        assert run.state.status == "running"
    run.fail("make", message="boom 7")
    assert run.state.stop == RunStopped("failures", "5 failures in a row (make: error); the last: boom 7")


def test_a_success_of_the_stage_ends_a_row_of_failures() -> None:
    run = seeded(settings={"max_failures": 3})
    for _ in range(5):
        run.fail("make")
        run.fail("make")
        run.finish("make", skip=True)
    assert run.state.status == "running"


def test_a_success_of_another_stage_does_not_end_a_row_of_failures() -> None:
    run = seeded(schedule=Pipelined(1), settings={"max_failures": 3})
    for _ in range(3):
        run.finish("make", text=f"text {run.state.seq}")
        run.fail("test")
    assert run.state.stop is not None and "test: error" in run.state.stop.reason


def test_a_row_of_failures_is_longer_than_what_was_in_flight() -> None:
    run = seeded(schedule=Pipelined(8), settings={"max_failures": 5})
    for _ in range(15):
        run.fail("make")
    assert run.state.status == "running"
    run.fail("make")
    assert run.state.status == "stopped"


def test_samples_that_fail_in_a_row_stop_the_run() -> None:
    run = seeded(settings={"max_failures": 3})
    run.finish("make", text="one")
    job = run.job("test").id
    for _ in range(3):
        run.turn(ev.SampleFailed(job, "a1", "val", 0, "transient", "refused to connect"))
    assert run.state.stop is not None
    assert run.state.stop.reason == "3 failures in a row (samples); the last: refused to connect"


def test_what_reaches_the_core_from_a_job_that_has_ended_is_ignored() -> None:
    run = seeded()
    job = run.job("make").id
    call = next(
        e.call for e in run.give(inputs.CallWanted(job, "task", "k", 0, Spend(llm_calls=1))) if isinstance(e, CallStarted)
    )
    run.finish("make", skip=True)
    late = [
        inputs.JobDone(job, {"skip": True}),
        inputs.JobBroke(job, "error", "late"),
        ev.SampleScored(job, "a0", "val", 0, 1.0),
        ev.SampleFailed(job, "a0", "val", 0, "x", "y"),
        ev.CallFinished(call, "ok", Spend(llm_calls=1)),
        inputs.CallWanted(job, "task", "k", 1, Spend(llm_calls=1)),
    ]
    assert run.give(*late) == []


class BrokenSchedule:
    """A schedule with a bug, once a proposal has been made."""

    depth = 2

    def admits(self, pace: Pace) -> Any:
        if pace.version == 0:
            return Starts(2 - pace.in_flight)
        raise KeyError("oops")


class NoStarts:
    """A schedule that returns a number."""

    depth = 2

    def admits(self, pace: Pace) -> Any:
        return 3


def test_a_schedule_that_raises_lets_what_is_in_flight_finish_and_then_stops_with_the_cause() -> None:
    run = seeded(schedule=BrokenSchedule())
    make_all(run, 2)
    run.finish("test", score=0.5)
    assert run.state.status == "running" and running(run, "test") == ["p2"]
    run.finish("test", score=0.6)
    assert run.state.pool.version == 2
    assert run.state.stop == RunStopped("failures", "the schedule BrokenSchedule failed: KeyError: 'oops'")


def test_a_schedule_that_returns_nonsense_stops_the_run_with_the_cause() -> None:
    run = seeded(schedule=NoStarts())
    assert run.state.stop is not None and "NoStarts failed: TypeError" in run.state.stop.reason


# --- budget ---------------------------------------------------------------------------------------------------------------


def test_a_job_reserves_what_it_needs_and_returns_what_it_did_not_use() -> None:
    run = seeded(algorithm=Toy(cost=3), budget={"metric_calls": 100})
    run.finish("make", text="one")
    assert run.state.reserved.metric_calls == 3
    run.turn(ev.SampleScored(run.job("test").id, "a1", "val", 0, 1.0))
    assert (run.state.spent.metric_calls, run.state.reserved.metric_calls) == (1, 2)
    run.finish("test", score=0.5)
    assert (run.state.spent.metric_calls, run.state.reserved.metric_calls) == (1, 0)


def test_failed_samples_are_charged() -> None:
    run = seeded()
    run.finish("make", text="one")
    run.turn(ev.SampleFailed(run.job("test").id, "a1", "val", 0, "timeout", "late"))
    assert run.state.spent.metric_calls == 1


def test_a_call_is_reserved_before_it_is_sent_and_charged_for_what_it_used() -> None:
    run = seeded(budget={"tokens": 100})
    job = run.job("make").id
    run.give(inputs.CallWanted(job, "task", "k", 0, Spend(llm_calls=1, tokens=60)))
    assert run.state.reserved.tokens == 60
    assert run.give(inputs.CallWanted(job, "task", "l", 0, Spend(llm_calls=1, tokens=41))) == [], "it would not fit any more"
    run.give(ev.CallFinished("c0", "ok", Spend(llm_calls=1, tokens=20)))
    assert (run.state.spent.tokens, run.state.reserved.tokens) == (20, 0)
    assert run.give(inputs.CallWanted(job, "task", "l", 0, Spend(llm_calls=1, tokens=80))), "exactly what is left fits"


def test_calls_that_nobody_waits_for_any_more_are_charged_as_reserved() -> None:
    run = seeded()
    run.give(inputs.CallWanted(run.job("make").id, "task", "k", 0, Spend(llm_calls=1, tokens=60)))
    run.fail("make")
    assert [(e.outcome, e.spent.tokens) for e in run.of(CallFinished)] == [("cancelled", 60)]
    assert (run.state.spent.tokens, run.state.reserved.tokens) == (60, 0)


def test_a_proposal_counts_when_it_is_gated_and_is_reserved_until_then() -> None:
    run = seeded(schedule=Pipelined(4), budget={"proposals": 3})
    assert (run.state.in_flight, run.state.reserved.proposals) == (3, 3)
    run.finish("make", skip=True)
    assert (run.state.spent.proposals, run.state.reserved.proposals) == (0, 3), "a skip counts apart: another may start"
    make_all(run, 3, passed=False)
    assert run.state.spent.proposals == 3
    assert run.state.stop is not None and run.state.stop.kind == "budget"
    assert run.state.stop.reason.startswith("proposals: 3 of 3 used")


def test_a_run_ends_when_what_is_left_covers_no_further_proposal() -> None:
    run = seeded(algorithm=Toy(cost=2), budget={"metric_calls": 3})
    run.finish("make", text="one")
    job = run.job("test").id
    run.turn(ev.SampleScored(job, "a1", "val", 0, 1.0), ev.SampleScored(job, "a1", "val", 1, 1.0))
    run.finish("test", score=1.0)
    assert run.state.stop == RunStopped("budget", "metric_calls: 2 of 3 used; another proposal would not fit")


def test_work_that_the_rest_of_the_budget_does_not_cover_is_kept_as_unaffordable_and_the_rest_finishes() -> None:
    run = seeded(algorithm=Toy(cost=2), schedule=Pipelined(3), budget={"metric_calls": 5})
    make_all(run, 3)
    assert running(run, "test") == ["p1", "p2"], "two tests fit into five calls"
    for _ in range(2):
        job = run.job("test").id
        run.turn(
            ev.SampleScored(job, "a1", "val", 0, 1.0), ev.SampleScored(job, "a1", "val", 1, 1.0), inputs.JobDone(job, {"score": 1})
        )
    assert ends(run)["p3"] == "unaffordable"
    assert run.state.pool.version == 2
    assert run.state.stop is not None and run.state.stop.kind == "budget"


def test_a_call_that_can_never_fit_ends_new_starts_and_what_runs_finishes() -> None:
    run = seeded(schedule=Pipelined(2))
    run.fail("make", kind="budget", message="tokens: 90 of 100 used, and the next call may need 20")
    assert running(run, "make") == ["p2"] and run.state.in_flight == 1
    run.finish("make", text="one")
    run.finish("test", score=0.5)
    assert run.state.pool.version == 1
    assert run.state.stop == RunStopped("budget", "tokens: 90 of 100 used, and the next call may need 20")


def test_a_larger_budget_lets_an_exhausted_run_go_on() -> None:
    run = seeded(schedule=Pipelined(2), budget={"tokens": 100})
    run.fail("make", kind="budget", message="tokens: …")
    assert run.state.in_flight == 1
    run.set(budget={"tokens": 200})
    assert run.state.in_flight == 2


def test_the_deadline_stops_the_run_and_abandons_what_runs() -> None:
    run = seeded(schedule=Pipelined(2), budget={"seconds": 10.0})
    assert run.turn(at=9.999) == []
    happened = run.turn(at=10.0)
    assert [event.job for event in happened if isinstance(event, JobAbandoned)] == ["j2", "j1"]
    assert run.state.stop == RunStopped("budget", "seconds: the 10 s of the budget are over")


# --- ends -----------------------------------------------------------------------------------------------------------------


def test_a_run_in_which_everything_is_skipped_stops_with_nothing_left_to_learn() -> None:
    run = seeded()
    for _ in range(MAX_IDLE):
        run.finish("make", skip=True)
    assert run.state.stop is not None and run.state.stop.kind == "done"
    assert run.state.stop.reason.startswith(f"{MAX_IDLE} proposals in a row") and "nothing left to learn" in run.state.stop.reason


def test_replies_that_cannot_be_used_in_between_do_not_begin_the_row_anew() -> None:
    """A train set with nothing left to learn, and a model whose replies are cut off now and then: else it would never end."""
    run = seeded()
    for i in range(2 * MAX_IDLE):
        if run.state.status == "stopped":
            break
        if i % 10 == 9:
            run.fail("make", "truncated")
        else:
            run.finish("make", skip=True)
    assert run.state.stop is not None and run.state.stop.kind == "done"
    assert run.state.idle_ends == MAX_IDLE


def test_one_gate_verdict_ends_a_row_of_skips() -> None:
    run = seeded()
    for _ in range(2):
        for _ in range(MAX_IDLE - 1):
            run.finish("make", skip=True)
        run.finish("make", text=f"text {run.state.seq}", passed=False)
    assert run.state.status == "running"
    run.finish("make", skip=True)
    run.finish("make", text="passes")
    assert run.state.idle_ends == 0, "already at the verdict, not only at the commit"


def test_a_stop_abandons_what_runs_keeps_its_items_in_order_and_is_the_last_event() -> None:
    run = seeded(schedule=Pipelined(3))
    run.give(inputs.CallWanted(run.job("make").id, "task", "k", 0, Spend(llm_calls=1, tokens=5)))
    happened = run.turn(inputs.Stop("user", "enough", frozenset({"j2"})))
    assert happened[-1] == RunStopped("user", "enough")
    assert [(e.job, e.still_running) for e in happened if isinstance(e, JobAbandoned)] == [
        ("j3", False),
        ("j2", True),
        ("j1", False),
    ]
    assert list(run.state.queues["make"]) == ["p1", "p2", "p3"]
    assert run.state.reserved.tokens == 0 and not run.state.calls
    assert run.turn(inputs.Stop("user", "again"), inputs.JobDone("j1", {})) == []


# --- resume ---------------------------------------------------------------------------------------------------------------


def test_a_resume_after_a_kill_loses_no_item_and_takes_them_up_in_order() -> None:
    run = seeded(schedule=Pipelined(3))
    run.give(inputs.CallWanted("j1", "task", "k", 0, Spend(llm_calls=1, tokens=5)))
    happened = run.give(inputs.Resume("2026-01-02"))
    assert [event.job for event in happened if isinstance(event, JobLost)] == ["j3", "j2", "j1"]
    assert list(run.state.queues["make"]) == ["p1", "p2", "p3"]
    assert run.state.spent.tokens == 5, "a call in flight at the kill is charged as reserved"
    assert started(run.plan()) == [("make", "p1"), ("make", "p2"), ("make", "p3")]


def test_a_resume_after_a_stop_goes_on() -> None:
    run = seeded(schedule=Pipelined(2))
    run.turn(inputs.Stop("user", "lunch"))
    happened = run.turn(inputs.Resume("2026-01-02"))
    assert run.state.status == "running" and run.state.stop is None
    assert started(happened) == [("make", "p1"), ("make", "p2")]


# --- invariants -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("breaking", "says"),
    [
        (lambda s: s.queues["test"].append("p1"), "waits and is worked on"),
        (lambda s: s.queues["test"].extend(["p9", "p9"]), "two queues"),
        (lambda s: s.items.pop("p1"), "nowhere|ended"),
        (lambda s: setattr(s, "in_flight", 7), "in flight"),
        (lambda s: s.slots["make"].clear(), "slots"),
        (lambda s: s.jobs.clear(), "nowhere"),
        (lambda s: setattr(s, "stop", RunStopped("user", "x")), "stop"),
        (lambda s: setattr(s, "reserved", Spend(tokens=9)), "reservations"),
        (lambda s: setattr(s, "spent", Spend(metric_calls=99)), "exceeded"),
        (lambda s: s.pool.order.reverse() or s.pool.order.append(s.pool.order[0]), "versions"),
    ],
)
def test_check_catches_a_broken_state(breaking: Any, says: str) -> None:
    run = seeded(schedule=Pipelined(2), budget={"metric_calls": 50})
    check(run.state)
    breaking(run.state)
    with pytest.raises(InvariantError, match=says):
        check(run.state)


def test_deciding_and_planning_change_nothing_by_themselves() -> None:
    run = seeded(schedule=Pipelined(2))
    run.turn(inputs.Pause())
    make_all(run, 1)
    before = repr(run.state)
    copy = deepcopy(run.state)
    for one in (inputs.Continue(), inputs.Step(1), inputs.JobDone(run.job("make").id, {"text": "x"}), inputs.Stop("user", "x")):
        assert decide(run.state, one, 1.0, run.rules) == decide(copy, one, 1.0, run.rules)
    plan(run.state, 1.0, run.rules)
    assert repr(run.state) == before


def test_one_started_job_is_one_finished_item_move() -> None:
    run = seeded()
    happened = run.finish("make", text="one")
    assert [type(e) for e in happened[:1]] == [JobFinished]
    assert [e.stage for e in happened if isinstance(e, ItemQueued)] == ["test"]
