"""Partial results on every screen: a promise is shown as one, a bound as one, and what was rolled back as gone."""

import json
import re
from pathlib import Path

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import events as ev
from flashevolve_lab.views import COMPLETIONS, OUTCOMES
from flashevolve_lab.widgets import spans
from flashevolve_lab.widgets.controls import Controls
from flashevolve_lab.widgets.feed import Feed
from flashevolve_lab.widgets.gantt import Gantt
from flashevolve_lab.widgets.inspector import Inspector
from flashevolve_lab.widgets.lineage import NODE, LineageTree
from flashevolve_lab.widgets.overview import Overview

WIDGETS = Path(spans.__file__).parent


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """A run in virtual time in which artifacts are released, confirmed, rolled back and proven hopeless."""
    land = lab.UnitingRules(n_rules=6, unite=2, p_improve=0.6, noise=0.2, seed=8)
    run = lab.start(
        lab.simulated_task(land, 60, 100),
        lab.GEPA(),
        llm=lab.Simulated(land, speed=lab.Batching(slots=24), seed=0),
        budget=lab.Budget(metric_calls=4_000),
        schedule=lab.Pipelined(24),
        staleness=lab.Full(),
        completion=lab.Speculative(rollout=0.5, validation=0.05),
        clock=lab.Virtual(),
        folder=tmp_path_factory.mktemp("runs"),
        name="speculative",
        seed=8,
    )
    run.wait(60)
    return run


def events(run, kind):
    return [entry.event for entry in run.entries if isinstance(entry.event, kind)]


def fed(view, entries):
    view.take(entries)
    return view


def test_the_run_has_all_of_it(run):
    found = {kind: events(run, kind) for kind in (ev.Released, ev.Provisional, ev.Confirmed, ev.RolledBack, ev.Proven)}
    assert all(found.values()) and {event.stage for event in found[ev.Proven]} == {"gate", "validate"}
    assert any(event.derived for event in found[ev.RolledBack])


# --- the Gantt --------------------------------------------------------------------------------------------------------------


def test_a_record_says_when_a_partial_result_went_on_and_what_came_of_it(run):
    picture = fed(Gantt(colours=lambda stages: dict.fromkeys(stages, "#000")), run.entries)._picture
    records = list(spans.SPAN.iter_unpack(bytes(picture._records)))
    flags = {span.job: (record[2], record[4]) for span, record in zip(picture.spans, records, strict=True)}
    for event in events(run, ev.Released):
        early, bits = flags[event.job]
        assert early >= 0 and bits & spans.SPECULATIVE and not bits & spans.INSERTED
    for event in events(run, ev.Proven):
        assert spans.FATES[flags[event.job][1] >> 12 & 3] == "proven"
    fates = [spans.FATES[bits >> 12 & 3] for _, bits in flags.values() if bits & spans.INSERTED]
    assert fates.count("confirmed") == len(events(run, ev.Confirmed))
    assert fates.count("rolled back") == len(events(run, ev.RolledBack))


def test_a_roll_back_is_a_mark_that_names_the_artifact(run):
    marks = fed(Gantt(colours=lambda stages: dict.fromkeys(stages, "#000")), run.entries)._picture.marks
    labels = [label for _, kind, label, _ in marks if kind == "rolled back"]
    assert labels == [f"roll-back {event.artifact}" for event in events(run, ev.RolledBack)]


def test_the_browser_reads_the_same_layout_outcomes_and_flags():
    script = (WIDGETS / "gantt.js").read_text()
    assert f"const SPAN = {spans.SPAN.size}, END = {spans.END.size}, STEP = {spans.STEP.size};" in script
    assert json.loads(re.search(r"const ITEM = (\[.*?\]);", script)[1]) == ["", *OUTCOMES]
    assert json.loads(re.search(r"FATE = (\[.*?\]);", script)[1]) == list(spans.FATES)
    assert (spans.SPECULATIVE, spans.INSERTED, spans.STEPPED) == (1 << 11, 1 << 14, 1 << 10)
    assert "SPECULATIVE = 1 << 11, INSERTED = 1 << 14" in script


def test_every_outcome_has_room_in_the_flags():
    assert len(spans.ITEM_OUTCOMES) <= 16 and len(spans.JOB_OUTCOMES) <= 8 and len(spans.FATES) <= 4


# --- the feed ---------------------------------------------------------------------------------------------------------------


def rows_of(feed):
    whole = json.loads(feed._rows.packed())
    names = ("item", "artifact", "stage", "where", "action", "reason", "why", "counterpart", "policy", "heir")
    return [
        {
            **dict(zip(("at", "base", "version", "gap", "flags"), row, strict=False)),
            **{n: whole["strings"][i] for n, i in zip(names, row[5:], strict=True)},
        }
        for row in whole["rows"]
    ]


def test_partial_results_stand_between_the_verdicts_in_the_order_of_the_log(run):
    rows = rows_of(fed(Feed(), run.entries))
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    kinds = {row["action"] for row in rows if row["where"] == "completion"}
    assert kinds == set(COMPLETIONS) and "accept" in {row["action"] for row in rows}
    assert all((row["gap"] == -1) == (row["where"] == "completion") for row in rows), "they have no gap"


def test_the_browser_knows_every_kind():
    script = (WIDGETS / "feed.js").read_text()
    assert json.loads(re.search(r"const EARLY = (\[.*?\]);", script)[1]) == list(COMPLETIONS)
    style = (WIDGETS / "feed.css").read_text()
    assert all(f".lab-{kind.replace(' ', '-')}" in style for kind in COMPLETIONS)


def test_what_was_made_from_a_rolled_back_artifact_is_marked_from_then_on(run):
    rows = rows_of(fed(Feed(), run.entries))
    gone = next(event for event in events(run, ev.RolledBack) if event.derived)
    at = next(i for i, row in enumerate(rows) if row["action"] == "rolled back" and row["artifact"] == gone.artifact)
    heirs = [row for row in rows if row["heir"] == gone.artifact]
    assert heirs and all(rows.index(row) > at and {row["item"], row["artifact"]} & set(gone.derived) for row in heirs)
    assert ", ".join(gone.derived) in rows[at]["why"]


def test_a_bound_is_called_one_in_the_feed(run):
    proven = [row for row in rows_of(fed(Feed(), run.entries)) if row["action"] == "proven"]
    assert proven and all(row["why"].startswith("can reach ") and "at most" in row["why"] for row in proven)


def test_the_plain_text_counts_them(run):
    assert f"{len(events(run, ev.RolledBack))} rolled back" in repr(fed(Feed(), run.entries))


# --- inspector, lineage, overview -------------------------------------------------------------------------------------------


def shown(run, id):
    inspector = fed(Inspector(), run.entries)
    inspector.show(id)
    return json.loads(inspector.facts)


def test_the_inspector_tells_a_roll_back_with_promise_and_reason(run):
    gone = events(run, ev.RolledBack)[0]
    facts = shown(run, gone.artifact)
    assert facts["own"]["rolled_back"] and facts["own"]["mean"] is None
    last = facts["completion"][-1]
    assert (last["kind"], last["reason"], last["derived"]) == ("rolled back", gone.reason, list(gone.derived))
    promise = next(row for row in facts["completion"] if row["kind"] == "provisional")
    assert promise["prefix"] and promise["prefix_score"] is not None


def test_the_inspector_marks_the_gate_that_was_decided_by_a_bound(run):
    gated = next(event for event in events(run, ev.Gated) if event.bound)
    assert [gate["bound"] for gate in shown(run, gated.item)["gates"]][-1] is True


def test_the_lineage_sends_a_node_again_when_it_changes(run):
    rows = fed(LineageTree(), run.entries)._rows
    pieces = LineageTree()
    for start in range(0, len(run.entries), 200):
        pieces.take(run.entries[start : start + 200])
    last = {row[0]: row for row in pieces._rows}
    assert last == {row[0]: row for row in rows} and len(pieces._rows) > len(rows)
    standing = {id: row[NODE.index("standing")] for id, row in last.items()}
    assert {id for id, words in standing.items() if words == "rolled back"} == {e.artifact for e in events(run, ev.RolledBack)}


def test_the_overview_counts_partial_results_and_never_takes_a_promise_for_a_score(run):
    overview = fed(Overview(), run.entries)
    early = overview.facts._now["early"]
    assert (early["confirmed"], early["rolled_back"]) == (len(events(run, ev.Confirmed)), len(events(run, ev.RolledBack)))
    assert early["saved"] == sum(e.wanted - e.scored for e in events(run, ev.Proven) if e.stage == "validate")
    assert overview.header._now["best"] == run.best.score
    scored = {e.artifact for e in [*events(run, ev.Committed), *events(run, ev.Confirmed)]}
    assert {point.artifact for point in overview.points} == scored


def test_a_run_without_them_shows_no_such_card(finished):
    assert fed(Overview(), finished.entries).facts._now["early"] == {}


# --- controls ---------------------------------------------------------------------------------------------------------------


def test_never_is_a_word_in_the_menu_of_what_stops(fake_run, run):
    controls = Controls(fake_run(run.entries))
    controls.take(run.entries[:1])
    proven = controls.completion._inputs["Complete"]["proven"]
    assert [word for word, _ in proven.options] == ["never", "front", "parent"] and proven.value == ""


class ByType:
    """Judges a partial result under another name."""

    def judge(self, so_far: lab.Partial) -> lab.Ruling:
        return lab.Ruling("wait")


class ByText:
    """As in a cell with postponed annotations."""

    def judge(self, it: "lab.Gate") -> object:
        return None


class ByName:
    """Without annotations."""

    def judge(self, partial):
        return lab.Ruling("wait")


class Stale:
    """Whatever it calls a stale item."""

    def judge(self, x):
        return lab.Verdict("accept", "")


def test_a_policy_of_ones_own_joins_the_menu_of_what_it_judges(fake_run):
    controls = Controls(fake_run([]), policies=[ByType, ByText, ByName, Stale])
    found = {
        name: knob.name
        for knob in controls.knobs[:5]
        for name in getattr(knob, "_classes", {})
        if name.startswith(("By", "Stale"))
    }
    assert found == {"ByType": "completion", "ByText": "acceptance", "ByName": "completion", "Stale": "staleness"}
