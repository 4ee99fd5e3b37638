"""The runtime model of batched GEPA, reckoned by hand, and its quantities as a run's log shows them."""

import math
from dataclasses import replace
from random import Random

import pytest

from flashevolve_lab.core import events as ev
from flashevolve_lab.errors import InvariantError, SetupError
from flashevolve_lab.views import Runtime, batched_runtime, slowest

NUMBERS = {"acceptance": 0.25, "validation": 50, "workers": 64, "step_s": 3.0, "rollout_s": 0.25}


def told(entries):
    view = Runtime()
    view.feed(entries)
    return view.snapshot()


def test_the_speed_up_is_the_formula_of_the_paper():
    got = batched_runtime(k=8, **NUMBERS)
    q, validation_s = 1 - 0.75**8, 8 * 50 / 64 * 0.25
    assert (got.improving, got.validation_s) == (pytest.approx(q), pytest.approx(validation_s))
    assert got.speedup == pytest.approx(8 * (3.0 + 0.25 * 0.25) / (3.0 + q * validation_s))
    assert got.proposals_per_minute == pytest.approx(60 * 8 / got.seconds)


def test_one_proposal_at_a_time_is_the_unit():
    assert batched_runtime(k=1, **NUMBERS).speedup == pytest.approx(1.0)


def test_with_workers_to_spare_a_validation_takes_one_rollout_however_many_children():
    assert batched_runtime(k=100, **{**NUMBERS, "workers": 5_000}).validation_s == 0.25


def test_workers_that_cannot_hold_one_validation_slow_a_single_proposal_too():
    got = batched_runtime(k=1, **{**NUMBERS, "workers": 10})
    assert got.validation_s == 5 * 0.25 and got.speedup == pytest.approx(1.0)


def test_the_floor_is_all_workers_rolling_out_and_the_ceiling_is_the_same_seen_from_one_by_one():
    got = batched_runtime(k=4, minibatch=3, metric_calls=6_400, **NUMBERS)
    assert got.floor_s == 6_400 * 0.25 / 64
    one_by_one_s = 6_400 / (2 * 3 + 0.25 * 50) * (3.0 + 0.25 * 0.25)
    assert got.ceiling == pytest.approx(one_by_one_s / got.floor_s)
    assert batched_runtime(k=4, **NUMBERS).floor_s is None


def test_with_a_spread_a_step_takes_as_long_as_its_slowest():
    even, uneven = (batched_runtime(k=8, spread=spread, **NUMBERS) for spread in (0.0, 0.6))
    assert even.step_s == 3.0 and uneven.step_s == pytest.approx(3.0 * slowest(8, 0.6))
    assert uneven.speedup < even.speedup


@pytest.mark.parametrize(("k", "spread"), [(1, 0.5), (2, 0.5), (16, 0.6), (64, 1.2)])
def test_the_slowest_of_k_is_what_drawing_shows(k, spread):
    draw = Random(f"{k}/{spread}")
    drawn = [max(draw.lognormvariate(0, spread) for _ in range(k)) for _ in range(20_000)]
    assert slowest(k, spread) == pytest.approx(sum(drawn) / len(drawn) / math.exp(spread**2 / 2), rel=0.04)


@pytest.mark.parametrize(
    "wrong",
    [{"k": 0}, {"k": True}, {"acceptance": 0.0}, {"acceptance": 1.5}, {"validation": 2.5}, {"workers": 0}, {"step_s": -1.0},
     {"rollout_s": math.nan}, {"rollout_s": "1"}, {"spread": 4.0}, {"spread": math.nan}, {"metric_calls": 0}],
)  # fmt: skip
def test_a_number_outside_its_range_is_refused(wrong):
    with pytest.raises(SetupError, match="batched_runtime.*expected"):
        batched_runtime(**{"k": 4, **NUMBERS, **wrong})


# --- what a run shows -------------------------------------------------------------------------------------------------


def test_a_step_is_a_proposals_jobs_up_to_its_first_verdict(story):
    seen = told(story)
    # p1: rollout 4–6, propose 6–8, gate 8–9; p2: a failed rollout 4–6.5, its retry 6.5–9.5, propose 9.5–12, gate 12–13
    assert (seen.proposals, seen.step_s) == (2, (5.0 + 9.0) / 2)
    assert seen.spread == pytest.approx((math.log(9) - math.log(5)) / math.sqrt(2))


def test_acceptance_is_the_share_that_was_validated(story):
    seen = told(story)
    assert (seen.validated, seen.acceptance, seen.validation) == (1, 0.5, 2)  # p1; p2 was updated and discarded


def test_time_and_metric_calls_count_from_the_seeds_commit(story):
    seen = told(story)
    assert (seen.seconds, seen.metric_calls) == (15.0, 4)


def test_a_rollout_is_its_model_calls_or_else_the_time_in_its_job(story, log):
    assert told(story).rollout_s == (1.5 + 1.0 + 0.5) / 6  # calls of the task's model by samples
    log.begin().seed(at=4.0)
    assert told(log).rollout_s == 4.0  # a program that calls no model: both samples came 4 s after the job's start


def test_schedule_workers_and_minibatch_are_those_of_the_log(log):
    two = {"task": [{"simulated": True}, {"simulated": True}]}
    settings = {"schedule": {"name": "Batched", "p": 2, "n": 4}, "concurrency": 32}
    log.begin(settings=settings, llm=two, algorithm={"name": "GEPA", "minibatch": 3})
    seen = told(log)
    assert (seen.schedule, seen.k, seen.batched, seen.steady) == ("Batched(p=2, n=4)", 8, True, True)
    assert (seen.workers, seen.minibatch, seen.facts.simulated) == (64, 3, True)


def test_a_schedule_that_changed_is_not_steady(log):
    log.begin()(1.0, ev.SettingChanged("schedule", {"name": "Pipelined", "depth": 2}, {"name": "Sequential"}))
    seen = told(log)
    assert (seen.steady, seen.k, seen.batched) == (False, 1, True)


def test_a_depth_that_moved_is_not_steady(log):
    assert not told(log.begin()(1.0, ev.DepthChanged(2, 1, "too many discards"))).steady


def test_an_empty_log_measures_nothing():
    assert not told([]).measurable and told([]).seq == 0


@pytest.mark.parametrize("size", [1, 2, 7, 1_000])
def test_fed_in_any_pieces_it_shows_the_same(story, size):
    view = Runtime()
    for i in range(0, len(story), size):
        view.feed(story[max(0, i - 2) : i + size])  # pieces overlap
    assert view.snapshot() == told(story)


def test_a_gap_in_the_log_is_a_bug_of_the_reader(story):
    with pytest.raises(InvariantError, match="entry 3 came after 1"):
        told([story[0], story[2]])


def test_a_snapshot_says_when_every_quantity_is_there(story):
    seen = told(story)
    assert not seen.measurable  # nobody said how many calls may be in flight
    assert replace(seen, workers=64).measurable
