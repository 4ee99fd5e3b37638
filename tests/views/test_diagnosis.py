"""The diagnosis in words, the costs and the pace: checked on logs written by hand, and fed in any pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.core import Spend
from flashevolve_lab.core import events as ev
from flashevolve_lab.views import Costs, Diagnosis


def diagnosed(log):
    view = Diagnosis()
    view.feed(log)
    return view.snapshot()


def cost(log):
    view = Costs()
    view.feed(log)
    return view.snapshot()


def busy(log, stage, items, start=4.0):
    """Jobs of a stage, one an item, from ``start`` on."""
    for i, item in enumerate(items):
        log(start, ev.JobStarted(f"{stage}-{i}", stage, i, item, 0))
    return log


def test_an_empty_log_says_that_nothing_has_happened():
    assert diagnosed([]).line == "Nothing has happened yet."


def test_before_the_seed_is_scored_it_says_so(log):
    assert diagnosed(log.begin()).limit == "the seed is being validated; proposals start after it"


def test_a_stage_whose_slots_are_full_and_that_items_wait_for_limits_the_run(log):
    log.begin(settings={"schedule": {"name": "Pipelined", "depth": 4}, "slots": {"rollout": 1}}).seed()
    for item in ("p1", "p2", "p3"):
        log.proposal(4.0, item)
    busy(log, "rollout", ["p1"])(14.0, ev.Warned("time", "passes"))
    found = diagnosed(log)
    assert found.limit == "rollout limits the run: its 1 slot is 100% busy and 2.0 items wait for it"
    assert found.loads[0].busy == pytest.approx(1.0)


def test_a_stage_that_worked_once_and_stands_idle_starves_beside_a_full_one(log):
    log.begin(settings={"schedule": {"name": "Pipelined", "depth": 4}, "slots": {"rollout": 1}}).seed()
    for item in ("p1", "p2", "p3"):
        log.proposal(4.0, item)
    busy(log, "rollout", ["p1"])(60.0, ev.Warned("time", "passes"))
    assert diagnosed(log).starving == "validate starves (0% busy)"


def test_a_full_schedule_limits_the_run_and_says_where_the_time_goes(log):
    log.begin().seed().proposal(4.0, "p1").proposal(4.0, "p2")
    busy(log, "rollout", ["p1", "p2"])(100.0, ev.Warned("time", "passes"))
    assert "all 2 proposals it allows are in flight, most of the time in rollout" in diagnosed(log).limit


def test_a_full_gateway_limits_the_run_before_anything_else(log):
    log.begin(settings={"concurrency": 1}).seed().proposal(4.0, "p1")
    busy(log, "rollout", ["p1"])(4.0, ev.CallStarted("c1", "rollout-0", "task", "k", 1, Spend(llm_calls=1)))
    log.proposal(5.0, "p2")(90.0, ev.Warned("time", "passes"))
    assert diagnosed(log).limit == "the gateway limits the run: 1 of 1 calls are in flight"


def test_a_paused_run_says_what_still_runs(log):
    log.begin().seed().proposal(4.0, "p1")
    busy(log, "rollout", ["p1"])(5.0, ev.Paused())
    assert diagnosed(log).line == "paused: 1 job still running, nothing new starts."


def test_an_ended_run_says_why(log):
    log.begin().seed()(5.0, ev.RunStopped("user", "enough"))
    assert diagnosed(log).line == "ended by user: enough."


def test_staleness_is_attributed_to_where_proposals_were_when_a_version_passed(log):
    log.begin().seed().proposal(4.0, "p1", batch=1).proposal(4.0, "p2", batch=2)
    busy(log, "rollout", ["p1"])
    log(5.0, ev.ArtifactMade("a1", {"prompt": "x"}, "h1", ("a0",), "reflection", "prompt", "p1"))
    log(6.0, ev.JobFinished("rollout-0"), ev.ItemQueued("p1", "validate"), ev.JobStarted("j9", "validate", 0, "p1", 0))
    log(7.0, ev.JobFinished("j9"), ev.Committed(1, "a1", "p1", 1, {"0": 1.0}, 2), ev.ItemEnded("p1", "committed", "", "a1"))
    found = diagnosed(log)
    assert found.origins == {("rollout", "waiting"): 1}
    assert found.staleness == "most staleness arises while waiting for rollout (100% of version gaps)"


def test_after_every_prefix_of_a_log_there_is_a_diagnosis(story):
    view = Diagnosis()
    for n, entry in enumerate(story, 1):
        view.feed([entry])
        assert view.snapshot() == diagnosed(story[:n])


def depth(schedule, log):
    return diagnosed(log.begin(settings={"schedule": schedule})).depth


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({"name": "Mine", "code": "1234", "depth": 6, "p": 9, "n": 9}, 6),  # fields that look like those of a built-in one
        ({"name": "Mine", "code": "1234", "p": 9, "n": 9}, 1),
        ({"name": "Mine", "code": "1234", "depth": "<b>"}, 1),
        ({"name": "Batched", "p": 2, "n": 4, "depth": 8}, 8),
    ],
)
def test_the_depth_is_the_recorded_one(schedule, expected, log):
    assert depth(schedule, log) == expected


@pytest.mark.parametrize(
    ("schedule", "expected"), [({"name": "Sequential"}, 1), ({"name": "Batched", "p": 2, "n": 4}, 8), ({"name": "Pipelined", "depth": 5}, 5)]
)
def test_in_logs_that_do_not_record_it_the_depth_is_that_of_the_built_in_schedule(schedule, expected, log):
    assert depth(schedule, log) == expected


@settings(deadline=None)  # a busy machine is no failure
@given(cuts=st.lists(st.integers(1, 60), max_size=12))
def test_fed_in_any_pieces_diagnosis_and_costs_are_the_same(story, cuts):
    for view, whole in ((Diagnosis(), diagnosed(story)), (Costs(), cost(story))):
        start = 0
        for cut in [*cuts, len(story)]:
            view.feed(story[start : start + cut])
            view.feed(story[:start])  # what was seen already is skipped
            start += cut
        view.feed(story[start:])
        assert view.snapshot() == whole


def test_costs_are_what_was_charged_by_stage_and_role_failures_included(log):
    log.begin().seed().proposal(4.0, "p1")
    busy(log, "rollout", ["p1"]).call(4.0, 5.0, "c1", "rollout-0", tokens=100).call(5.0, 6.0, "c2", "rollout-0", "rate_limited", 0)
    found = cost(log)
    (rollout,) = found.costs
    assert (rollout.stage, rollout.role, rollout.calls, rollout.failed, rollout.tokens) == ("rollout", "task", 2, 1, 100)
    assert found.failures == {"call: rate_limited": 1}


def test_the_time_left_is_what_is_left_at_the_pace_of_late(log):
    log.begin(budget={"metric_calls": 12}).seed(at=4.0).proposal(4.0, "p1")
    busy(log, "rollout", ["p1"])(6.0, *(ev.SampleScored("rollout-0", "a0", "train", i, 1.0) for i in range(5)))
    assert cost(log).eta["metric_calls"] == pytest.approx(2.0)  # 5 of the 10 left after the seed in 2 s


def test_a_server_in_which_requests_wait_limits_the_run(log):
    log.begin().seed()
    log(5.0, ev.ServerSeen("s", 8.0, 3.0, 0.25))
    assert diagnosed(log).server == ev.ServerSeen("s", 8.0, 3.0, 0.25)
    assert diagnosed(log).limit == "the server limits the run: 8 requests in service and 3 waiting in it, 25% of its KV cache in use"
    log(7.0, ev.ServerSeen("s", 40.0, 3.0))  # fewer than a tenth: the usual come and go
    assert "server" not in diagnosed(log).limit


def test_a_found_depth_is_the_one_in_force_within_its_bounds_and_so_are_given_slots(log):
    log.begin(settings={"schedule": {"name": "Pipelined", "depth": "auto", "least": 4, "most": 20}}).seed()
    assert diagnosed(log).depth == 4
    log(5.0, ev.DepthChanged(4, 8, "it has room", "Pipelined"), ev.SlotsChanged("propose", 8, 3, "too many", "ServerAware"))
    assert diagnosed(log).depth == 8
    assert {load.stage: load.slots for load in diagnosed(log).loads} == {"rollout": 8, "propose": 3, "gate": 1, "validate": 8}
    log(6.0, ev.DepthChanged(8, 4, "livelock"))
    assert diagnosed(log).depth == 4
