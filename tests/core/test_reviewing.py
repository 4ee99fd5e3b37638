"""Reviews of slots and depth: when they are due, what patience holds back, and what a change means for what runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from flashevolve_lab.core import Brought, Change, Load, Meters, RunState, Spend, inputs
from flashevolve_lab.core import events as ev
from flashevolve_lab.core.meters import KEPT, LATELY, Lean
from flashevolve_lab.core.reviewing import full_depth, load_of, slots_of
from flashevolve_lab.policies import Fixed, Pipelined, RateBalanced
from flashevolve_lab.testing import PureRun


@dataclass(frozen=True)
class Script:
    """What it wants at each review, by the review's number; the last one for ever. ``seen`` keeps what it was shown."""

    wants: tuple[tuple[Change, ...], ...]
    seen: Any = None
    every_s: float | None = 5.0

    def judge(self, load: Load) -> Sequence[Change]:
        if self.seen is not None:
            self.seen.append(load)
        number = len(self.seen) - 1 if self.seen is not None else 0
        return self.wants[min(number, len(self.wants) - 1)]


def slots(to: int, after: int = 1, pause: int = 0, stage: str = "test") -> tuple[Change, ...]:
    return (Change(stage, to, "told to", after, pause),)


def seeded(**options: Any) -> PureRun:
    """A run whose seed is committed, at depth 2 unless said otherwise."""
    run = PureRun(**{"schedule": Pipelined(2), "settings": {"concurrency": 10}, **options})
    run.finish("test", score=0.0)
    return run


def rounds(run: PureRun, n: int, seconds: float = 5.0) -> list[ev.Event]:
    """So often: the proposals being made are rejected, one after the other, and the last of them so many seconds later."""
    happened = []
    for _ in range(n):
        making = [job.id for job in run.state.jobs.values() if job.stage == "make"]
        for i, job in enumerate(making):
            at = run.at + (seconds if i + 1 == len(making) else 0.0)
            happened += run.turn(inputs.JobDone(job, {"text": f"text {job}", "passed": False}), at=at)
    return happened


def reviews(run: PureRun) -> list[ev.WorkersReviewed]:
    return run.of(ev.WorkersReviewed)


def test_with_a_fixed_depth_and_fixed_workers_nothing_is_ever_reviewed() -> None:
    run = seeded(workers=Fixed())
    rounds(run, 20)
    assert not reviews(run) and run.state.spent.proposals == 40


def test_a_log_from_before_there_were_worker_policies_is_not_reviewed() -> None:
    run = seeded()
    del run.state.settings["workers"]
    rounds(run, 5)
    assert not reviews(run)


def test_a_review_is_due_after_its_seconds_and_as_many_ended_proposals_as_are_in_flight() -> None:
    run = seeded(workers=RateBalanced(every_s=5.0))
    rounds(run, 3, seconds=2.0)
    assert [entry.at for entry in run.entries if isinstance(entry.event, ev.WorkersReviewed)] == [6.0]
    [job, *_] = [job.id for job in run.state.jobs.values()]
    run.turn(inputs.JobDone(job, {"text": "one of two", "passed": False}), at=100.0)
    assert len(reviews(run)) == 1  # long ago, but only one of the two in flight has ended
    rounds(run, 1)
    assert len(reviews(run)) == 2


def test_a_review_sees_time_averages_since_the_last_one() -> None:
    shown: list[Load] = []
    run = seeded(workers=Script(((),), shown, 10.0), schedule=Pipelined(4), settings={"concurrency": 10, "slots": {"make": 2}})
    for job, at in (("j1", 2.0), ("j2", 4.0), ("j3", 6.0), ("j4", 10.0)):
        run.give(inputs.CallWanted(job, "task", "k", 0, Spend(llm_calls=1)))
        run.give(ev.CallFinished(f"c{int(job[1:]) - 1}", "ok", Spend(llm_calls=1, tokens=30)), at=at)
        run.turn(inputs.JobDone(job, {"text": f"text {job}", "passed": False}))
    [first] = shown
    assert first.seconds == 10.0 and first.depth == 4 and first.proposals == 4 and first.tokens == 120
    make, test = first.stages
    assert (make.slots, make.by_hand, make.busy, make.rate) == (2, True, pytest.approx(2.0), pytest.approx(24.0))
    assert make.waiting == pytest.approx(2.0)  # the schedule would have two more in flight
    assert (test.slots, test.by_hand, test.busy, test.waiting, test.wait_s) == (4, False, 0.0, 0.0, 0.0)
    assert first.server.busy == pytest.approx(0.1) and first.server.latency_s == pytest.approx(2.5)
    assert first.server.backlog == 2  # two jobs are running, each with a call to make and none in flight


def test_a_wish_becomes_a_change_when_enough_reviews_in_a_row_repeat_it() -> None:
    shown: list[Load] = []
    wants = (slots(3, after=3), slots(3, after=3), (), *[slots(3, after=3)] * 3, ())
    run = seeded(workers=Script(wants, shown))
    rounds(run, 5)
    assert len(reviews(run)) == 5 and not run.of(ev.SlotsChanged)
    assert [review.wishes for review in reviews(run)] == [{"test": 1}, {"test": 1}, {}, {"test": 1}, {"test": 1}]
    rounds(run, 1)
    assert run.of(ev.SlotsChanged) == [ev.SlotsChanged("test", 2, 3, "told to", "Script")]
    assert slots_of(run.state, "test", run.rules) == 3


def test_after_a_change_come_reviews_that_change_nothing() -> None:
    shown: list[Load] = []
    run = seeded(workers=Script((slots(3), slots(4, pause=2)), shown))
    rounds(run, 1)
    assert [change.new for change in run.of(ev.SlotsChanged)] == [3]
    rounds(run, 2)
    assert len(run.of(ev.SlotsChanged)) == 1
    rounds(run, 1)
    assert [change.new for change in run.of(ev.SlotsChanged)] == [3, 4]


def test_each_change_back_doubles_the_patience_so_that_nothing_oscillates() -> None:
    @dataclass(frozen=True)
    class ToAndFro:
        every_s: float = 5.0

        def judge(self, load: Load) -> Sequence[Change]:
            return [Change("test", 3 if load.stages[1].slots == 2 else 2, "the other one")]

    run = seeded(workers=ToAndFro())
    rounds(run, 100)
    assert len(reviews(run)) == 100 and len(run.of(ev.SlotsChanged)) <= 1 + 1 + 2 + 100 // 8
    assert run.state.meters.leans["test"].turns >= 3


def test_two_changes_in_one_direction_give_some_of_the_patience_back() -> None:
    lean = Lean().changed(1).changed(-1).changed(1)
    assert lean.turns == 2 and lean.changed(1).turns == 1 and lean.changed(1).changed(1).changed(1).turns == 0


def test_slots_set_by_hand_are_left_alone_until_they_are_given_back() -> None:
    run = seeded(workers=Script((slots(5),)), settings={"concurrency": 10, "slots": {"test": 1}})
    rounds(run, 3)
    assert not run.of(ev.SlotsChanged) and reviews(run)[-1].wishes == {}
    run.set(slots={})
    rounds(run, 1)
    assert slots_of(run.state, "test", run.rules) == 5
    run.set(slots={"test": 2})  # by hand goes before what a policy gave
    assert slots_of(run.state, "test", run.rules) == 2


def test_another_worker_policy_starts_from_the_schedules_depth_again() -> None:
    run = seeded(workers=Script((slots(5),)))
    rounds(run, 1)
    run.set(workers=Fixed())
    assert slots_of(run.state, "test", run.rules) == 2 and not run.state.given and not run.state.meters.leans


def test_lowering_ends_no_job_and_nothing_starts_above_the_new_number() -> None:
    run = seeded(schedule=Pipelined(3))
    making = {job.id for job in run.state.jobs.values()}
    assert len(making) == 3
    run.set(workers=Script((slots(1, stage="make"),)))
    run.state.meters.ended = 3
    run.turn(at=10.0)
    assert [(change.stage, change.new) for change in run.of(ev.SlotsChanged)] == [("make", 1)]
    assert making == {job.id for job in run.state.jobs.values()} and not run.of(ev.JobAbandoned)
    for left in (2, 1):
        run.finish("make", text=f"{left} left", passed=False)
        assert len(run.state.slots["make"]) == left
    run.finish("make", text="the last", passed=False)
    assert len(run.state.slots["make"]) == 1


@pytest.mark.parametrize("bad", ["raises", "nonsense", "zero", "unknown"])
def test_a_failing_policy_is_said_once_aloud_and_changes_nothing(bad: str) -> None:
    class Broken:
        every_s = 5.0

        def judge(self, load: Load) -> Any:
            if bad == "raises":
                raise ValueError("oh no")
            return {"nonsense": [7], "zero": slots(0), "unknown": slots(2, stage="nowhere")}[bad]

    run = seeded(workers=Broken())
    rounds(run, 6)
    assert len(reviews(run)) == 6 and not run.of(ev.SlotsChanged)
    [warned] = run.of(ev.Warned)
    assert warned.kind == "workers" and "Broken failed, so nothing is changed" in warned.message


def test_a_policy_moves_the_concurrency_and_a_person_sets_how_far() -> None:
    shown: list[Load] = []
    run = seeded(workers=Script(((Change("concurrency", 8, "it queues"),), ()), shown))
    rounds(run, 2)
    [change] = run.of(ev.SettingChanged)
    assert (change.knob, change.old, change.new, change.by, change.why) == ("concurrency", 10, 8, "Script", "it queues")
    assert (shown[-1].server.calls, shown[-1].server.ceiling) == (8, 10)
    run.set(concurrency=20)
    rounds(run, 1)
    assert (shown[-1].server.calls, shown[-1].server.ceiling) == (20, 20)


def test_a_worker_policy_does_not_touch_the_depth() -> None:
    run = seeded(workers=Script(((Change("depth", 9, "deeper"),),)))
    rounds(run, 2)
    assert not run.of(ev.DepthChanged) and reviews(run)[-1].wishes == {}


def test_a_slot_is_served_while_its_job_has_a_call_in_flight_however_many() -> None:
    shown: list[Load] = []
    run = seeded(workers=Script(((),), shown, 10.0))
    for number, job in enumerate(("j1", "j1", "j2")):
        run.give(inputs.CallWanted(job, "task", f"k{number}", 0, Spend(llm_calls=1)))
    run.give(ev.CallFinished("c0", "ok", Spend(llm_calls=1)), at=4.0)
    run.give(ev.CallFinished("c2", "ok", Spend(llm_calls=1)), at=5.0)
    run.give(ev.CallFinished("c1", "ok", Spend(llm_calls=1)), at=8.0)
    assert not run.state.meters.serving
    run.at = 10.0
    for job in ("j1", "j2"):
        run.turn(inputs.JobDone(job, {"text": f"text {job}", "passed": False}))
    make = shown[0].stages[0]
    assert make.busy == pytest.approx(2.0) and make.served == pytest.approx((8 + 5) / 10)


def test_what_the_first_stages_slots_bring_is_summed_from_the_second_review_after_a_change() -> None:
    shown: list[Load] = []
    run = seeded(workers=Script(((), slots(1, stage="make"), ()), shown))
    rounds(run, 5)
    assert [load.now for load in shown[:2]] == [None, None]
    assert [load.before.slots for load in shown[2:] if load.before] == [2, 2, 2]
    assert [(load.now.slots, load.now.reviews) for load in shown[2:] if load.now] == [(1, 0), (1, 0), (1, 1)]
    assert shown[-1].now and shown[-1].now.seconds == pytest.approx(5.0)


def test_back_at_the_number_before_its_sums_go_on_and_older_reviews_count_less() -> None:
    meters = Meters()
    meters.brought(10.0, 8, 100, 1_000)
    meters.brought(10.0, 8, 100, 1_000)
    assert meters.now and meters.now.accepted == pytest.approx(8 + 8 * KEPT) and meters.now.per_minute == pytest.approx(48.0)
    meters.turned(12, 6)
    meters.brought(10.0, 8, 100, 1_000)  # still of the twelve
    meters.brought(10.0, 2, 100, 1_000)
    meters.turned(6, 12)
    assert meters.now and meters.past and (meters.now.slots, meters.now.reviews) == (12, 2)
    assert (meters.past.slots, meters.past.accepted) == (6, 2.0)
    meters.turned(12, 9)
    assert meters.now == Brought(9) and meters.past.slots == 12


@pytest.mark.parametrize("what", ["knob", "depth"])
def test_what_slots_brought_is_forgotten_once_something_else_changes(what: str) -> None:
    run = seeded(workers=Script((slots(1, stage="make"), ())))
    rounds(run, 4)
    assert run.state.meters.past
    if what == "knob":
        run.set(concurrency=5)
    else:
        run._applied([ev.DepthChanged(2, 3, "room", "Pipelined")])
    assert run.state.meters.past is None and load_of(run.state, run.at, run.rules).now is None


# --- a depth that is found ------------------------------------------------------------------------------------------------


def test_a_found_depth_begins_at_its_least_and_goes_deeper_while_the_server_has_room() -> None:
    run = seeded(schedule=Pipelined("auto", least=2, most=9))
    assert run.state.in_flight == 2
    rounds(run, 2)
    [change] = run.of(ev.DepthChanged)
    assert (change.old, change.new, change.by) == (2, 4, "Pipelined") and "it has room for more" in change.why
    assert run.state.in_flight == 4 and run.state.auto_depth == 4 and run.state.effective_depth is None
    assert slots_of(run.state, "test", run.rules) == 4
    rounds(run, 9)
    assert run.state.in_flight == 9


def test_going_from_a_number_to_auto_begins_at_that_number_within_the_bounds() -> None:
    run = seeded(schedule=Pipelined(6))
    run.set(schedule=Pipelined("auto"))
    assert full_depth(run.state, run.rules) == 6
    run.set(schedule=Pipelined("auto", most=5))
    assert full_depth(run.state, run.rules) == 5
    run.set(schedule=Pipelined(40))
    run.set(schedule=Pipelined("auto", most=30))
    assert full_depth(run.state, run.rules) == 30


def test_while_livelock_holds_the_depth_back_it_is_not_reviewed() -> None:
    run = seeded(schedule=Pipelined("auto", least=4))
    run.give()
    run._applied([ev.DepthChanged(4, 2, "livelock")])
    assert (run.state.effective_depth, full_depth(run.state, run.rules)) == (2, 4)
    rounds(run, 10)
    assert not reviews(run)


def test_a_found_depth_at_which_nothing_is_held_back_any_more_forgets_the_lower_one() -> None:
    run = seeded(schedule=Pipelined("auto", least=4))
    run._applied([ev.DepthChanged(4, 2, "livelock"), ev.DepthChanged(2, 4, "commits"), ev.DepthChanged(4, 8, "room", "Pipelined")])
    assert run.state.effective_depth is None and run.state.auto_depth == 8


def test_a_pause_and_a_resume_begin_a_new_window() -> None:
    run = seeded(workers=RateBalanced())
    run.turn(inputs.Pause(), at=3.0)
    run.turn(inputs.Continue(), at=1000.0)
    assert run.state.meters.since == 1000.0
    run.turn(inputs.Stop("user", "enough"), at=1001.0)
    run.turn(inputs.Resume(""), at=1001.0)
    assert run.state.meters.since == 1001.0


def test_what_reviews_wanted_is_in_the_state_folded_from_the_log() -> None:
    run = seeded(schedule=Pipelined("auto", least=2, most=9), workers=RateBalanced())
    rounds(run, 8)
    again = RunState().apply_all(run.entries)
    assert again.meters == run.state.meters and again.meters.leans
    assert (again.auto_depth, again.given, again.ceiling) == (run.state.auto_depth, run.state.given, run.state.ceiling)
    assert load_of(again, run.at, run.rules) == load_of(run.state, run.at, run.rules)


# --- meters ---------------------------------------------------------------------------------------------------------------


def test_a_meter_averages_over_time_from_the_beginning_of_its_window() -> None:
    meters = Meters()
    meters.hold("busy", "a", 4, 0.0)
    meters.restart(10.0, {})
    meters.hold("busy", "a", 1, 15.0)
    assert meters.mean("busy", "a", 20.0) == pytest.approx((4 * 5 + 1 * 5) / 10)
    assert meters.mean("busy", "never", 20.0) == 0.0


def test_the_share_in_use_lately_leaves_out_the_review_right_after_a_change_of_depth() -> None:
    meters = Meters()
    meters.reviewed(0.4, {})
    meters.changed("depth", 4, 8)
    meters.reviewed(0.5, {})
    assert meters.reviews == 0
    for _ in range(3 * LATELY):
        meters.reviewed(0.9, {})
    assert meters.lately == pytest.approx(0.9)


def test_a_slot_more_for_a_stage_does_not_make_the_share_in_use_begin_anew() -> None:
    meters = Meters()
    meters.reviewed(0.4, {})
    meters.changed("validate", 4, 5)
    assert meters.lately == 0.4


def test_slowdown_is_against_the_lowest_mean_of_a_window_with_enough_answers() -> None:
    meters = Meters()
    assert meters.slowdown() == 1.0
    for _ in range(20):
        meters.answer("task", 1.0)
    meters.restart(1.0, {})
    meters.answer("task", 3.0)
    assert meters.slowdown() == pytest.approx(3.0)
    meters.restart(2.0, {})
    for _ in range(20):
        meters.answer("task", 2.0)
    assert meters.slowdown() == pytest.approx(2.0)
