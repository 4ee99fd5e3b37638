"""What went on before it was complete: a promise is no score, a bound is no score, and what is rolled back leaves every count."""

import pytest

from flashevolve_lab.core import RunState, check
from flashevolve_lab.views import (
    COMPLETIONS,
    CompletionFeed,
    Diagnosis,
    Evidence,
    Lineage,
    Progress,
    Runtime,
    Tables,
    Timeline,
)


def seen(view, log):
    view.feed(log)
    return view.snapshot()


def upto(log, at):
    return [entry for entry in log if entry.at <= at]


def table(log, name):
    tables = Tables()
    tables.feed(log)
    columns = tables.columns(name)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def about(log, id):
    evidence = Evidence()
    evidence.feed(log)
    return evidence.about(id)


def test_the_story_is_one_that_the_core_could_have_written(early):
    check(RunState().apply_all(early))


# --- the rows ---------------------------------------------------------------------------------------------------------------


def test_every_event_is_a_row_in_order_with_its_reason(early):
    snapshot = seen(CompletionFeed(), early)
    kinds = ["released", "provisional", "confirmed", "provisional", "rolled back", "proven", "proven"]
    assert [row.kind for row in snapshot.rows] == kinds and all(row.reason for row in snapshot.rows)
    assert snapshot.counts == {"released": 1, "provisional": 2, "confirmed": 1, "rolled back": 1, "proven": 2}
    assert tuple(snapshot.counts) == COMPLETIONS


def test_a_release_says_which_samples_were_late(early):
    row = seen(CompletionFeed(), early).rows[0]
    assert (row.item, row.job, row.stage, row.scored, row.wanted) == ("p1", "j1", "rollout", 1, 2)
    assert (row.examples, row.late) == ((3,), (4,))


def test_a_provisional_row_tells_its_prefix_and_what_its_rival_has_on_the_same_examples(early):
    first = seen(CompletionFeed(), early).rows[1]
    assert (first.version, first.scored, first.wanted, first.score) == (1, 1, 2, 1.0)
    assert (first.rival, first.rival_score, first.prefix, first.prefix_score) == ("a0", 0.0, 1, 1.0)


def test_a_confirmation_and_a_roll_back_tell_what_came_of_the_promise(early):
    rows = seen(CompletionFeed(), early).rows
    assert (rows[2].score, rows[2].scored, rows[2].rival_score, rows[2].version) == (0.75, 2, 0.5, 1)
    assert (rows[4].score, rows[4].rival, rows[4].rival_score, rows[4].version) == (0.5, "a1", 0.75, 4)
    assert rows[4].derived == ("p3", "a4")


def test_a_bound_is_never_a_score_and_says_what_it_saved(early):
    gate, validation = seen(CompletionFeed(), early).rows[-2:]
    assert (gate.score, gate.bound, gate.saved) == (None, 0.5, 1)
    assert (validation.score, validation.bound, validation.saved) == (None, 0.5, 1)
    assert seen(CompletionFeed(), early).saved == {"gate": 1, "validate": 1}


def test_what_is_provisional_now_is_counted_now(early):
    assert [seen(CompletionFeed(), upto(early, at)).provisional for at in (6.0, 7.0, 7.5, 8.5, 9.0)] == [0, 1, 0, 1, 0]


@pytest.mark.parametrize("view", [CompletionFeed, Lineage, Timeline, Progress, Diagnosis])
def test_in_any_pieces_it_is_the_same(early, view):
    pieces = view()
    for entry in early:
        pieces.feed([entry])
    assert pieces.snapshot() == seen(view(), early)


# --- the other views --------------------------------------------------------------------------------------------------------


def test_a_score_curve_has_only_what_is_fully_scored(early):
    progress = seen(Progress(), early)
    assert [(p.at, p.artifact, p.version, p.mean, p.best) for p in progress.points] == [
        (4.0, "a0", 0, 0.5, 0.5), (7.5, "a1", 1, 0.75, 0.75), (8.5, "a4", 3, 0.25, 0.75),
    ]  # fmt: skip
    assert seen(Progress(), upto(early, 7.0)).standing.best == 0.5, "a promise is never the best"


def test_where_a_run_stands_counts_partial_results(early):
    now = seen(Progress(), early).standing
    assert (now.accepted, now.version, now.provisional, now.confirmed, now.rolled_back) == (2, 4, 0, 1, 1)
    assert (now.proven, now.saved, now.saved_at_gates, now.released) == (2, 1, 1, 1)
    assert (now.outcomes["rolled_back"], now.outcomes["outdone"]) == (1, 1)


def test_the_bar_of_a_released_job_says_when_and_ends_with_its_late_samples(early):
    span = next(span for span in seen(Timeline(), early).spans if span.job == "j1")
    assert (span.released, span.inserted, span.end, span.note) == (5.0, None, 6.0, "1 of 2 samples are in")


def test_the_bar_of_a_validation_says_when_its_artifact_joined_and_what_came_of_it(early):
    spans = {span.job: span for span in seen(Timeline(), early).spans}
    assert (spans["j3"].inserted, spans["j3"].fate, spans["j3"].item_outcome) == (7.0, "confirmed", "committed")
    assert (spans["j21"].inserted, spans["j21"].fate, spans["j21"].item_outcome) == (8.5, "rolled back", "rolled_back")
    assert spans["j21"].note == "its prefix promised more"
    assert next(s for s in seen(Timeline(), upto(early, 7.0)).spans if s.job == "j3").fate == "provisional"


def test_a_bar_that_was_proven_hopeless_says_so(early):
    spans = {span.job: span for span in seen(Timeline(), early).spans}
    assert [spans[job].fate for job in ("j50", "j61")] == ["proven", "proven"]
    assert (spans["j61"].outcome, spans["j61"].item_outcome, spans["j61"].note) == ("finished", "outdone", "it can reach 0.5")


def test_every_change_of_the_pool_is_a_mark(early):
    marks = [(m.kind, m.version, m.artifact) for m in seen(Timeline(), early).marks]
    changes = [("commit", 0, "a0"), ("provisional", 1, "a1"), ("confirmed", 1, "a1"), ("provisional", 2, "a2")]
    assert marks == [*changes, ("commit", 3, "a4"), ("rolled back", 4, "a2")]
    assert "p3, a4" in seen(Timeline(), early).marks[-1].text


def test_a_rolled_back_artifact_stays_in_the_lineage_marked_and_so_does_what_was_made_from_it(early):
    nodes = {node.artifact: node for node in seen(Lineage(), early).nodes}
    assert {id: node.standing for id, node in nodes.items()} == {
        "a0": "in the pool", "a1": "in the pool", "a2": "rolled back", "a4": "in the pool",
    }  # fmt: skip
    assert (nodes["a2"].reason, nodes["a2"].mean, nodes["a2"].coverage) == ("its prefix promised more", 1.0, 0.5)
    assert (nodes["a4"].from_gone, nodes["a1"].from_gone) == ("a2", "")
    assert nodes["a1"].mean == 0.75, "a confirmed one shows its full score"


def test_front_and_best_are_the_pools_own_after_every_change(early):
    lineage, state = Lineage(), RunState()
    for entry in early:
        state.apply_all([entry])
        delta = lineage.feed([entry])
        assert dict(delta.front) == {id: mask.bit_count() for id, mask in state.pool.front().items()}
        assert delta.best == (best.id if (best := state.pool.best()) else "")
    assert "a2" not in delta.front and delta.best == "a1"


def test_a_change_of_a_node_is_in_the_delta_once(early):
    lineage = Lineage()
    lineage.feed(upto(early, 8.5))
    delta = lineage.feed(early)
    assert (delta.nodes, [(n.artifact, n.standing) for n in delta.changed]) == (
        (),
        [("a2", "rolled back"), ("a4", "in the pool")],
    )
    assert lineage.feed(early).changed == ()


def test_versions_that_provisional_artifacts_and_roll_backs_make_leave_others_behind(early):
    assert seen(Diagnosis(), upto(early, 8.5)).origins == {("rollout", "waiting"): 1, ("validate", "working"): 1}
    assert seen(Diagnosis(), upto(early, 9.0)).origins[("rollout", "waiting")] == 2, "the roll-back too"


def test_tables_say_where_an_artifact_stands_and_keep_promises_and_bounds_out_of_scores(early):
    rows = {row["artifact"]: row for row in table(early, "artifacts")}
    status = {id: row["status"] for id, row in rows.items()}
    assert status == {
        "a0": "in the pool",
        "a1": "in the pool",
        "a2": "rolled back",
        "a4": "in the pool",
        "a5": "rejected",
        "a6": "outdone",
    }
    assert (rows["a1"]["mean"], rows["a2"]["mean"], rows["a2"]["version"]) == (0.75, None, 2)
    assert (rows["a5"]["child_sum"], rows["a5"]["bound"], rows["a6"]["bound"]) == (None, 0.5, 0.5)
    assert {row["artifact"] for row in table(early, "scores")} == {"a0", "a1", "a4"}
    before = {row["artifact"]: row for row in table(upto(early, 7.0), "artifacts")}["a1"]
    assert (before["status"], before["version"], before["mean"]) == ("provisional", 1, None)


def test_an_item_is_provisional_while_its_artifact_is_and_has_its_outcome_then(early):
    status = {row["item"]: row["status"] for row in table(upto(early, 8.5), "items")}
    assert (status["p1"], status["p2"], status["p3"]) == ("committed", "provisional", "waiting")
    assert {row["item"]: row["status"] for row in table(early, "items")}["p2"] == "rolled_back"
    assert next(row for row in table(upto(early, 5.0), "items") if row["item"] == "p1")["status"] == "working"


def test_the_table_of_partial_results_has_a_row_for_each(early):
    rows = table(early, "completion")
    assert [row["event"] for row in rows] == [row.kind for row in seen(CompletionFeed(), early).rows]
    assert (rows[4]["derived"], rows[4]["reason"], rows[-1]["saved"]) == (("p3", "a4"), "its prefix promised more", 1)


# --- one subject ------------------------------------------------------------------------------------------------------------


def test_a_dossier_tells_prefix_promise_and_what_came(early):
    told = about(early, "p2")
    assert [row.kind for row in told.completion] == ["provisional", "rolled back"]
    assert (told.own.rolled_back, told.own.version, told.place) == (True, None, "rolled back: its prefix promised more")
    assert next(work for work in told.work if work.job == "j21").first == (1,)
    assert [(c.example, c.score) for c in told.scores] == [(0, 0.0), (1, 1.0)], "its scores stay in the evidence"


def test_a_dossier_of_a_released_item_says_which_samples_came_late(early):
    told = about(early, "p1")
    assert [(trial.example, trial.late) for trial in told.trials] == [(3, False), (4, True)]
    assert next(work for work in told.work if work.job == "j1").released == 5.0


def test_a_dossier_tells_a_provisional_text_from_one_that_stays(early):
    assert (about(upto(early, 7.0), "a1").own.provisional, about(early, "a1").own.provisional) == (True, False)


def test_a_dossier_shows_a_bound_as_a_bound(early):
    (gate,) = about(early, "p5").gates
    assert gate.bound and not gate.passed and about(early, "p5").completion[0].bound == 0.5


def test_a_dossier_of_a_descendant_names_what_was_rolled_back(early):
    assert (about(early, "a4").gone, about(early, "p3").gone, about(early, "a1").gone) == ("a2", "a2", "")
    assert [r.outcome for r in about(early, "a4").ancestors if r.id == "a2"] == ["rolled back"]


def test_a_proposals_step_ends_with_its_gate_and_not_with_late_samples(early):
    runtime = Runtime()
    late = [entry for entry in early if entry.at <= 6.0]
    runtime.feed(late)
    assert runtime._worked["p1"] == 2.0, "1 s of rollout until its release, 1 s of propose; not the tail"
