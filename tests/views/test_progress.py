"""Progress: points at commits with what had been spent, outcomes, budget, requests in flight."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.core import Spend
from flashevolve_lab.core import events as ev
from flashevolve_lab.views import Progress


def seen(entries):
    progress = Progress()
    progress.feed(entries)
    return progress.snapshot()


def commit(log, at, artifact, version, *scores):
    """An item of its own that commits ``artifact`` with these scores."""
    item = f"p{version}"
    log.proposal(at, item, batch=version)
    log(at, ev.ArtifactMade(artifact, {"prompt": artifact}, artifact, ("a0",), "reflection", "prompt", item))
    by_example = {str(i): score for i, score in enumerate(scores)}
    return log(at, ev.Committed(version, artifact, item, version, by_example, 2), ev.ItemEnded(item, "committed", "", artifact))


def test_a_point_holds_what_had_been_spent_at_its_commit(story):
    seed, child = seen(story).points
    assert (seed.at, seed.metric_calls, seed.llm_calls, seed.tokens, seed.proposals) == (4.0, 2, 0, 0, 0)
    assert (child.at, child.metric_calls, child.llm_calls, child.tokens, child.proposals) == (11.0, 6, 3, 400, 1)
    assert child.dollars == 0.4


def test_a_point_holds_the_mean_and_coverage_of_its_artifact(log):
    commit(log.begin().seed(), 5.0, "a1", 1, 0.25)
    point = seen(log).points[-1]
    assert (point.artifact, point.version, point.mean, point.coverage) == ("a1", 1, 0.25, 0.5)


def test_the_best_is_the_highest_mean_so_far_and_the_earliest_of_equals(log):
    log.begin().seed()
    for version, scores in enumerate([(0.0, 0.5), (1.0, 1.0), (1.0, 1.0), (0.0, 0.0)], start=1):
        commit(log, 4.0 + version, f"a{version}", version, *scores)
    best = [(point.best, point.best_artifact) for point in seen(log).points]
    assert best == [(0.5, "a0"), (0.5, "a0"), (1.0, "a2"), (1.0, "a2"), (1.0, "a2")]


def test_outcomes_are_counted_without_the_seed(story):
    standing = seen(story).standing
    assert {outcome: n for outcome, n in standing.outcomes.items() if n} == {"committed": 1, "discarded": 1, "skipped": 1}
    assert (standing.accepted, standing.proposals, standing.in_flight) == (1, 2, 1)
    assert standing.outcomes["refused"] == 0  # named although none


def test_failures_are_counted_by_what_failed_and_cancelled_calls_are_not(story):
    standing = seen(story).standing
    assert (standing.failed_jobs, standing.failed_samples, standing.failed_calls) == (1, 1, 1)


def test_the_standing_tells_what_is_spent_reserved_and_allowed(story):
    standing = seen(story).standing
    assert standing.spent == Spend(metric_calls=6, llm_calls=4, tokens=600, dollars=0.4, proposals=2)
    assert standing.reserved.tokens == 200 and standing.budget == {"metric_calls": 200}


def test_a_stop_tells_its_kind_and_reason_until_the_run_is_resumed(story):
    stopped = next(i for i, entry in enumerate(story) if isinstance(entry.event, ev.RunStopped))
    standing = seen(story[: stopped + 1]).standing
    assert (standing.status, standing.stop_kind, standing.stop_reason) == ("stopped", "user", "enough")
    standing = seen(story).standing
    assert (standing.status, standing.stop_kind, standing.stop_reason) == ("running", "", "")


def test_requests_in_flight_are_a_step_function(log):
    log.begin().seed().proposal(4.0, "p1")(4.0, ev.JobStarted("j1", "rollout", 0, "p1", 0))
    log(5.0, *(ev.CallStarted(f"c{i}", "j1", "task", f"{i}", 1, Spend(llm_calls=1)) for i in (0, 1)))
    log(6.0, ev.CallFinished("c0", "ok", Spend(llm_calls=1)))
    line = seen(log).requests
    assert (line.at, line.value) == ((0.0, 5.0, 6.0), (0, 2, 1))


def test_before_the_first_entry_nothing_is_claimed():
    standing = Progress().snapshot().standing
    assert (standing.status, standing.best, standing.version, standing.in_flight) == ("new", None, -1, 0)


@settings(deadline=None)  # a busy machine is no failure
@given(cuts=st.lists(st.integers(0, 200), max_size=12))
def test_progress_fed_in_any_chunking_gives_the_same_snapshot_and_deltas_that_add_up_to_it(story, cuts):
    progress, whole = Progress(), seen(story)
    points, at, value = [], [], []
    for start, end in pairwise([0, *sorted(cuts), len(story)]):
        delta = progress.feed(story[start:end])
        assert delta.points_from == len(points)
        points += delta.points
        if change := delta.requests:
            at, value = [*at[: change.start], *change.at], [*value[: change.start], *change.value]
    assert progress.snapshot() == whole
    assert (tuple(points), tuple(at), tuple(value)) == (whole.points, whole.requests.at, whole.requests.value)
    assert delta.standing == whole.standing
