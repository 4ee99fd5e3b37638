"""The timeline: one span per job, marks, queues; the same picture from any chunking, and deltas that add up to it."""

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.core import RunState, Spend, check, decode, encode
from flashevolve_lab.core import events as ev
from flashevolve_lab.core.events import Entry
from flashevolve_lab.errors import InvariantError
from flashevolve_lab.views import Timeline


def seen(entries):
    timeline = Timeline()
    timeline.feed(entries)
    return timeline.snapshot()


def spans(entries):
    return {span.job: span for span in seen(entries).spans}


def test_the_story_told_here_is_one_the_core_could_have_written(story):
    check(RunState().apply_all(story))


def test_each_job_has_one_span_from_its_start_to_its_end(log):
    span = spans(log.begin().seed(at=4.0))["j0"]
    assert (span.stage, span.slot, span.item, span.kind, span.artifact) == ("validate", 0, "p0", "seed", "a0")
    assert (span.start, span.end, span.outcome, span.item_outcome) == (0.0, 4.0, "finished", "committed")
    assert (span.base, span.version, span.gap) == (0, -1, 0)


def test_a_running_job_has_no_end(story):
    span = spans(story)["j13"]
    assert (span.end, span.outcome, span.calls, span.tokens) == (None, "running", 1, 0)


def test_a_span_tells_what_became_of_its_job_and_why(story):
    told = spans(story)
    assert (told["j2"].outcome, told["j2"].note) == ("failed", "samples: 1 of 2 <train> samples")
    assert (told["j10"].outcome, told["j10"].note, told["j10"].stepped) == ("abandoned", "enough", True)
    assert told["j12"].outcome == "lost"


def test_a_span_tells_the_end_of_its_item_only_when_its_job_brought_it(story):
    outcomes = {span.job: span.item_outcome for span in seen(story).spans if span.item_outcome}
    assert outcomes == {"j0": "committed", "j6": "committed", "j11": "skipped"}  # p2 was discarded while it waited


def test_a_child_is_named_on_the_job_that_made_it_and_on_those_that_work_on_it(story):
    told = spans(story)
    assert [told[job].artifact for job in ("j1", "j3", "j5", "j6")] == ["", "a1", "a1", "a1"]
    assert [told[job].artifact for job in ("j8", "j9")] == ["a2", "a3"]  # grafted while the item waited: not j8's
    assert (told["j9"].parent, told["j9"].base) == ("a1", 1)


def test_the_gap_is_counted_at_the_start_without_commits_of_the_items_own_batch(log):
    log.begin().seed().proposal(4.0, "p1").proposal(4.0, "p2")
    log(4.0, ev.JobStarted("j1", "rollout", 0, "p1", 0), ev.JobFinished("j1"))
    log(5.0, ev.ArtifactMade("a1", {"prompt": "x"}, "h1", ("a0",), "reflection", "prompt", "p1"))
    log(5.0, ev.Committed(1, "a1", "p1", 1, {"0": 1.0}, 2), ev.ItemEnded("p1", "committed", "version 1", "a1"))
    log.proposal(6.0, "p3", base=0, batch=2)
    log(6.0, ev.JobStarted("j2", "rollout", 0, "p2", 1), ev.JobStarted("j3", "rollout", 1, "p3", 1))
    told = spans(log)
    assert (told["j2"].gap, told["j3"].gap) == (0, 1)


def test_calls_are_counted_when_sent_and_charged_when_they_end(story):
    told = spans(story)
    assert (told["j3"].calls, told["j3"].tokens, told["j3"].dollars) == (1, 300, 0.3)
    assert (told["j2"].calls, told["j2"].tokens) == (1, 0)
    assert (told["j10"].calls, told["j10"].tokens) == (1, 200)  # cancelled: charged as reserved


def test_spans_of_one_slot_never_overlap(story):
    lanes = {}
    for span in seen(story).spans:
        lanes.setdefault((span.stage, span.slot), []).append(span)
    for lane in lanes.values():
        assert all(before.end is not None and before.end <= after.start for before, after in pairwise(lane))


def test_the_lanes_of_a_stage_are_the_slots_it_ever_used(story):
    assert seen(story).lanes == {"rollout": 2, "propose": 1, "gate": 1, "validate": 1}


def test_what_changed_the_run_is_marked_in_words(story):
    marks = [(mark.kind, mark.at, mark.text) for mark in seen(story).marks]
    assert marks == [
        ("commit", 4.0, "v0: a0, mean 0.5"),
        ("commit", 11.0, "v1: a1, mean 1"),
        ("depth", 14.0, "effective depth 2 → 1 (too many discards)"),
        ("setting", 14.0, "slots of propose: 2 → 3 (ServerAware: items wait)"),
        ("setting", 14.5, "staleness: Full() → Guarded(max_gap=8, beyond='discard') (user: <i>why not</i>)"),
        ("setting", 14.5, "budget: metric_calls=100 → metric_calls=200 (user)"),
        ("pause", 15.0, "paused (user)"),
        ("step", 15.0, "step of 1 job of rollout"),
        ("continue", 16.0, "continued (user)"),
        ("warning", 16.0, "slow: the server is slow"),
        ("stop", 17.0, "stopped (user): enough"),
        ("resume", 17.0, "resumed (2026-01-02T00:00:00+00:00)"),
        ("resume", 18.0, "resumed (2026-01-03T00:00:00+00:00)"),
    ]


def test_a_commit_mark_carries_version_artifact_and_item(story):
    mark = next(mark for mark in seen(story).marks if mark.version == 1)
    assert (mark.artifact, mark.item) == ("a1", "p1")


def test_a_queue_is_a_step_function_of_what_waits(log):
    log.begin().seed().proposal(5.0, "p1").proposal(6.0, "p2", batch=2).proposal(7.0, "p3", batch=3)
    log(8.0, ev.JobStarted("j1", "rollout", 0, "p1", 0), ev.JobStarted("j2", "rollout", 1, "p2", 0))
    line = seen(log).queues["rollout"]
    assert (line.at, line.value) == ((0.0, 5.0, 6.0, 7.0, 8.0), (0, 1, 2, 3, 1))


def test_an_item_that_passes_through_a_queue_at_once_leaves_no_step(log):
    log.begin().seed().proposal(5.0, "p1")(5.0, ev.JobStarted("j1", "rollout", 0, "p1", 0))
    line = seen(log).queues["rollout"]
    assert (line.at, line.value) == ((0.0,), (0,))


def test_an_empty_log_is_an_empty_picture():
    snapshot = Timeline().snapshot()
    assert (snapshot.spans, snapshot.stages, snapshot.status, snapshot.facts.run) == ((), (), "new", "")


def test_the_picture_says_whether_model_and_time_are_real(log):
    simulated = seen(log.begin()).facts
    assert (simulated.simulated, simulated.clock, simulated.algorithm, simulated.task) == (True, "virtual", "GEPA", "reviews")
    log.clear()
    real = seen(log.begin(llm={"task": {"kind": "openai", "model": "simulated"}}, clock="wall")).facts
    assert (real.simulated, real.clock) == (False, "wall")


def test_entries_seen_before_are_skipped(story):
    timeline = Timeline()
    timeline.feed(story[:20])
    timeline.feed(story)
    assert timeline.snapshot() == seen(story)


def test_a_missing_entry_is_an_error_not_a_wrong_picture(story):
    with pytest.raises(InvariantError, match="entry 3 came after 1"):
        Timeline().feed([story[0], story[2]])


def test_a_log_read_back_from_json_gives_the_same_picture(story):
    back = []
    for entry in story:
        kind, body = encode(entry.event)
        back.append(Entry(entry.seq, entry.at, decode(kind, json.loads(json.dumps(body)))))
    assert seen(back) == seen(story)


def test_time_never_falls(log):
    log.begin().seed(at=4.0).proposal(3.0, "p1")(3.0, ev.JobStarted("j1", "rollout", 0, "p1", 0, Spend()))
    assert spans(log)["j1"].start == 4.0


@settings(deadline=None)  # a busy machine is no failure
@given(cuts=st.lists(st.integers(0, 200), max_size=12))
def test_a_timeline_fed_in_any_chunking_gives_the_same_snapshot_and_deltas_that_add_up_to_it(story, cuts):
    timeline, whole = Timeline(), seen(story)
    drawn, marks, queues = [], [], {}
    for start, end in pairwise([0, *sorted(cuts), len(story)]):
        delta = timeline.feed(story[start:end])
        assert (delta.spans_from, delta.marks_from) == (len(drawn), len(marks))
        for i, span in delta.changed.items():
            drawn[i] = span
        drawn += delta.spans
        marks += delta.marks
        for stage, change in delta.queues.items():
            at, value = queues.get(stage, ([], []))
            queues[stage] = [*at[: change.start], *change.at], [*value[: change.start], *change.value]
    assert timeline.snapshot() == whole
    assert (tuple(drawn), tuple(marks)) == (whole.spans, whole.marks)
    assert queues == {stage: (list(line.at), list(line.value)) for stage, line in whole.queues.items()}
    assert (delta.seq, delta.at, delta.lanes, delta.stages) == (whole.seq, whole.at, whole.lanes, whole.stages)


def test_a_joint_job_is_one_bar_that_names_all_its_items_and_tells_the_end_of_the_first(log):
    log.begin().seed()
    for n in (1, 2):
        log.proposal(4.0, f"p{n}", batch=n)(5.0, ev.ItemQueued(f"p{n}", "gate"))
    log(6.0, ev.JobStarted("j1", "gate", 0, "p1", 0, also=("p2",)))
    log(7.0, ev.JobFinished("j1"), ev.ItemEnded("p2", "distilled", "into a9"), ev.ItemEnded("p1", "discarded", "enough"))
    timeline = Timeline()
    timeline.feed(log)
    bar = next(span for span in timeline.snapshot().spans if span.job == "j1")
    assert (bar.item, bar.also, bar.item_outcome, bar.outcome) == ("p1", ("p2",), "discarded", "finished")
