"""A dossier is what the log says of one artifact, item or job."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.core import Spend
from flashevolve_lab.core import events as ev
from flashevolve_lab.errors import InvariantError, SetupError
from flashevolve_lab.views import Evidence


def seen(entries):
    evidence = Evidence()
    evidence.feed(entries)
    return evidence


@pytest.fixture
def about(story):
    return seen(story).about


def test_an_item_is_told_by_its_first_text_with_parent_counterpart_and_what_became_of_it(about):
    told = about("p2")
    assert (told.artifact, told.own.components) == ("a2", {"prompt": "Hm."})
    assert (told.parent.id, told.counterpart.id, told.best.id) == ("a0", "a1", "a1")
    assert (told.earlier, told.later.id, told.later.origin) == (None, "a3", "update")


def test_an_updated_text_is_told_beside_the_counterpart_it_was_grafted_on_and_the_text_before(about):
    told = about("a3")
    assert (told.own.id, told.parent.id, told.earlier.id, told.later) == ("a3", "a1", "a2", None)


def test_the_counterpart_of_a_judged_text_is_the_recorded_one_with_its_time(about):
    told = about("a2")
    assert (told.counterpart.id, told.recorded_at) == ("a1", 13.0)


def test_the_counterpart_of_an_unjudged_item_is_its_parent_while_that_is_on_the_front(about):
    told = about("p3")
    assert (told.own, told.parent.id, told.counterpart.id, told.recorded_at) == (None, "a1", "a1", None)


def test_the_counterpart_of_an_unjudged_item_whose_parent_left_is_the_front_member_that_wins_most_of_what_it_won(log):
    log.begin().seed()  # a0 wins both instances (0: 0.0, 1: 1.0)
    log(4.0, ev.ItemMade("p1", "proposal", "rollout", 0, 1, {"parent": "a0", "component": "prompt", "minibatch": [3], "won": "3"}))
    for n, scores in ((1, {"0": 2.0}), (2, {"0": 1.0, "1": 3.0, "2": 1.0})):
        log.proposal(4.0, f"p{n + 1}")(5.0, ev.ArtifactMade(f"a{n}", {"prompt": str(n)}, f"h{n}", ("a0",), "reflection", "prompt", f"p{n + 1}"))
        log(5.0, ev.Committed(n, f"a{n}", f"p{n + 1}", n + 1, scores, 3), ev.ItemEnded(f"p{n + 1}", "committed", "", f"a{n}"))
    assert set(seen(log).state.pool.front()) == {"a1", "a2"}
    assert seen(log).about("p1").counterpart.id == "a1"  # both win one: the lower id


def test_the_seed_has_no_parent_and_no_counterpart(about):
    told = about("a0")
    assert (told.kind, told.parent, told.counterpart, told.item) == ("seed", None, None, "p0")
    assert [one.id for one in told.descendants] == ["a1", "a2", "a3"]


def test_verdicts_and_gates_are_told_as_recorded(about):
    told = about("p2")
    assert [(row.action, row.gap, row.reason) for row in told.verdicts] == [("update", 1, "gap 1 is beyond 0"), ("discard", 3, "enough")]
    assert [(gate.artifact, gate.parent, gate.passed) for gate in told.gates] == [("a2", "a0", True), ("a3", "a1", True)]
    assert (told.base, told.version, told.outcome, told.place) == (0, 1, "discarded", "discarded: enough")


def test_the_minibatch_is_told_with_what_the_parent_and_the_child_did_on_it(about):
    told = about("p1")
    assert told.minibatch == (3, 4)
    assert (told.trials[0].parent.output, told.trials[0].parent.feedback, told.trials[0].child) == ("no", "wrong", None)


def test_an_example_that_could_not_be_scored_is_told_with_its_trouble(about):
    assert about("p2").trials[1].parent_trouble == "transient: the provider broke"


def test_raw_replies_of_the_reflection_are_told_and_those_of_the_task_are_not(about):
    assert [(reply.call, reply.role, reply.text) for reply in about("p1").spoken] == [("c2", "reflection", "```\nBe better.\n```")]


def test_a_reply_is_told_with_the_prompt_it_answers(log):
    log.begin().seed().proposal(4.0, "p1")(4.0, ev.JobStarted("j1", "rollout", 0, "p1", 0))
    log(4.0, ev.CallStarted("c1", "j1", "reflection", "k", 1, Spend(llm_calls=1), "digest", "Improve this."))
    log(5.0, ev.CallFinished("c1", "ok", Spend(llm_calls=1, tokens=9), 4, 5, "stop", "model", "Better."))
    (spoken,) = seen(log).about("p1").spoken
    assert (spoken.prompt, spoken.text) == ("Improve this.", "Better.")


def test_an_example_of_the_minibatch_is_told_as_the_log_shows_it_whoever_ran_it(log):
    log.begin().seed().proposal(4.0, "p1").proposal(4.0, "p2", batch=2)(4.0, ev.JobStarted("j1", "rollout", 0, "p1", 0))
    log(5.0, ev.SampleScored("j1", "a0", "train", 3, 0.0, "no", "wrong", "text: three"))
    log(5.0, ev.SampleScored("j1", "a0", "val", 4, 0.0, "no", "wrong", "text: of another split"))
    assert [[trial.shown for trial in seen(log).about(item).trials] for item in ("p1", "p2")] == [["text: three", ""]] * 2


def test_an_items_cost_is_all_its_calls_as_charged_and_its_metric_calls(about):
    assert about("p1").spent == Spend(metric_calls=3, llm_calls=2, tokens=400, dollars=0.4)


def test_a_job_is_told_as_its_item_with_the_text_it_had(about):
    assert [(told.item, told.artifact, told.job) for told in (about("j8"), about("j9"))] == [("p2", "a2", "j8"), ("p2", "a3", "j9")]


def test_the_jobs_of_an_item_are_told_with_their_ends(about):
    work = {one.job: one for one in about("p3").work}
    assert (work["j10"].outcome, work["j12"].outcome, work["j13"].outcome) == ("abandoned, still running", "lost", "running")
    assert work["j13"].ended is None
    assert about("p2").work[0].raw == "raw"


def test_where_an_item_in_flight_is_is_told_in_words(about, log):
    assert (about("p3").place, about("p3").in_flight) == ("in rollout (slot 0, j13)", True)
    assert seen(log.begin()).about("p0").place == "waits for validate"


def test_scores_stand_beside_those_of_the_parent_the_current_and_the_best(about):
    rows = about("a1").scores
    assert [(row.example, row.score, row.parent, row.best) for row in rows] == [(0, 1.0, 0.0, 1.0), (1, 1.0, 1.0, 1.0)]


def test_ancestors_come_nearest_first_and_each_once(about):
    assert [(one.id, one.steps, one.outcome) for one in about("a3").ancestors] == [
        ("a1", 1, "in the pool"), ("a2", 1, "replaced"), ("a0", 2, "in the pool"),
    ]  # fmt: skip


def test_an_item_without_a_text_has_the_ancestors_of_its_parent(about):
    assert [(one.id, one.steps) for one in about("p3").ancestors] == [("a1", 1), ("a0", 2)]


def test_what_people_did_by_hand_is_kept_in_order(log):
    judged = {"item": "p1", "artifact": "", "stage": "rollout", "where": "hand", "base": 0, "version": 0, "gap": 0, "policy": "by hand"}
    log.begin().seed().proposal(5.0, "p1")
    log(6.0, ev.Warned("by hand", "p9 has ended already"), ev.Warned("slow", "not this one"))
    log(7.0, ev.StalenessJudged(touched=False, superseded=False, counterpart="a0", action="discard", reason="dull", **judged))
    log(7.0, ev.ItemEnded("p1", "discarded", "by hand: dull"))
    log(8.0, ev.ArtifactMade("a1", {"prompt": "Mine."}, "h1", ("a0",), "human", "prompt", "p2"))
    log(8.0, ev.ItemMade("p2", "human", "gate", 0, 2, {"parent": "a0", "child": "a1", "minibatch": [3], "component": "prompt"}))
    evidence = seen(log)
    assert [(act.at, act.item, act.words) for act in evidence.acts] == [
        (6.0, "", "p9 has ended already"),
        (7.0, "p1", "p1 was discarded by hand: dull"),
        (8.0, "p2", "a text by hand, a1, waits at the gate as p2"),
    ]
    assert (evidence.about("p2").own.id, evidence.about("a1").item) == ("a1", "p2")


def test_an_unknown_id_is_an_error_that_says_what_was_expected(about):
    with pytest.raises(SetupError, match="no 'x7' in this log so far: expected an artifact"):
        about("x7")


def test_a_missing_entry_is_an_error(story):
    with pytest.raises(InvariantError):
        Evidence().feed([*story[:3], *story[4:]])


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 200), max_size=12))
def test_fed_in_any_chunking_it_tells_the_same(story, cuts):
    evidence, whole = Evidence(), seen(story)
    for start, end in pairwise([0, *sorted(cuts), len(story)]):
        evidence.feed(story[start:end])
        evidence.feed(story[: min(3, end)])  # seen before: skipped
    ids = [*whole.state.artifacts, "p0", "p1", "p2", "p3", "p4", "j0", "j9"]
    assert [evidence.about(id) for id in ids] == [whole.about(id) for id in ids]
    assert evidence.acts == whole.acts
