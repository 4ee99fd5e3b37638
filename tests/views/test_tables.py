"""Tables: named columns of plain values, the same from any chunking."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.errors import SetupError
from flashevolve_lab.views import COLUMNS, NAMES, Tables


def tables(entries):
    filled = Tables()
    filled.feed(entries)
    return filled


def rows(entries, name):
    """A table as dicts, by the value of its first column."""
    columns = tables(entries).columns(name)
    return {row[0]: dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)}


def test_an_unknown_table_is_refused_with_the_names_there_are():
    with pytest.raises(SetupError, match="no table 'job': the tables are jobs, calls, artifacts"):
        Tables().columns("job")


@pytest.mark.parametrize("name", NAMES)
def test_a_table_has_its_columns_before_the_first_entry_and_after_the_last(name, story, early):
    assert list(Tables().columns(name)) == list(COLUMNS[name])
    full = tables(early if name == "completion" else story).columns(name)
    assert list(full) == list(COLUMNS[name]) and len({len(values) for values in full.values()}) == 1
    assert len(next(iter(full.values()))) > 0


def test_jobs_have_times_outcomes_and_costs(story):
    told = rows(story, "jobs")
    assert (told["j3"]["started_at"], told["j3"]["ended_at"], told["j3"]["seconds"]) == (6.0, 8.0, 2.0)
    assert (told["j3"]["stage"], told["j3"]["outcome"], told["j3"]["calls"], told["j3"]["tokens"]) == (
        "propose",
        "finished",
        1,
        300,
    )
    assert (told["j13"]["ended_at"], told["j13"]["seconds"]) == (None, None)


def test_calls_have_what_was_charged_and_what_came_back(story):
    told = rows(story, "calls")
    assert (told["c2"]["stage"], told["c2"]["item"], told["c2"]["role"], told["c2"]["seconds"]) == (
        "propose",
        "p1",
        "reflection",
        1.5,
    )
    assert (told["c2"]["tokens"], told["c2"]["completion_tokens"], told["c2"]["text"]) == (300, 10, "```\nBe better.\n```")
    assert (told["c4"]["outcome"], told["c4"]["ended_at"], told["c4"]["tokens"]) == ("running", None, None)


def test_artifacts_have_texts_scores_gate_and_the_end_of_their_item(story):
    told = rows(story, "artifacts")
    assert (told["a0"]["version"], told["a0"]["mean"], told["a0"]["parents"], told["a0"]["outcome"]) == (
        0,
        0.5,
        (),
        "committed",
    )
    assert (told["a1"]["texts"], told["a1"]["parents"]) == ({"prompt": "Be better."}, ("a0",))
    assert (told["a1"]["gate"], told["a1"]["parent_sum"], told["a1"]["child_sum"], told["a1"]["coverage"]) == (
        True,
        0.0,
        1.0,
        1.0,
    )
    assert (told["a2"]["outcome"], told["a2"]["reason"], told["a2"]["version"]) == ("replaced", "by a3", None)
    assert (told["a3"]["origin"], told["a3"]["outcome"], told["a3"]["reason"]) == ("update", "discarded", "enough")


def test_items_have_their_place_and_their_end(story):
    told = rows(story, "items")
    assert (told["p1"]["place"], told["p1"]["outcome"], told["p1"]["seconds"]) == ("ended", "committed", 7.0)
    assert (told["p2"]["base"], told["p2"]["updates"], told["p2"]["child"], told["p2"]["parent"]) == (1, 1, "a3", "a1")
    assert (told["p3"]["place"], told["p3"]["stage"], told["p3"]["ended_at"]) == ("working", "rollout", None)
    assert told["p3"]["minibatch"] == [3, 4]
    waiting = rows(story[:3], "items")
    assert waiting["p0"]["place"] == "waiting"


def test_the_budget_has_a_row_per_dimension_with_none_for_no_limit(story):
    told = rows(story, "budget")
    assert list(told) == ["metric_calls", "llm_calls", "tokens", "dollars", "proposals", "seconds"]
    assert told["metric_calls"] == {"dimension": "metric_calls", "limit": 200, "spent": 6, "reserved": 0, "left": 194}
    assert (told["tokens"]["limit"], told["tokens"]["left"], told["tokens"]["reserved"]) == (None, None, 200)
    assert told["seconds"]["spent"] == 19.0


def test_settings_are_a_history_that_begins_with_the_start(story):
    columns = tables(story).columns("settings")
    history = list(zip(columns["at"], columns["knob"], columns["by"], columns["why"], strict=True))
    assert history[:4] == [(0.0, knob, "start", "") for knob in ("schedule", "staleness", "slots", "budget")]
    assert [knob for _, knob, _, _ in history[4:6]] == ["depth", "slots of propose"]
    assert history[6:] == [(14.5, "staleness", "user", "<i>why not</i>"), (14.5, "budget", "user", "")]
    assert columns["old"][6:] == [{"name": "Full"}, {"metric_calls": 100}] and columns["old"][0] is None


def test_slots_tell_per_stage_what_is_used_and_what_waits(story):
    told = rows(story, "slots")
    assert (told["rollout"]["used_max"], told["rollout"]["used_now"], told["rollout"]["jobs"]) == (2, 1, 7)
    assert (told["gate"]["slots"], told["gate"]["used_now"], told["gate"]["busy_s"]) == (1, 0, 3.0)
    assert told["rollout"]["slots"] is None and told["rollout"]["busy_s"] == 12.0
    assert told["validate"]["waiting"] == 0


def test_scores_are_validation_scores_of_committed_artifacts(story):
    columns = tables(story).columns("scores")
    scores = list(zip(columns["artifact"], columns["example"], columns["score"], strict=True))
    assert scores == [("a0", 0, 0.0), ("a0", 1, 1.0), ("a1", 0, 1.0), ("a1", 1, 1.0)]


def test_failures_tell_whether_a_call_a_sample_or_a_job_failed(story):
    columns = tables(story).columns("failures")
    told = list(zip(columns["what"], columns["kind"], columns["job"], columns["item"], strict=True))
    assert told == [("call", "rate_limited", "j2", "p2"), ("sample", "transient", "j2", "p2"), ("job", "samples", "j2", "p2")]
    assert (columns["call"][0], columns["message"][0]) == ("c1", "429 <b>slow down</b>")
    assert (columns["example"][1], columns["artifact"][1]) == (4, "a0")
    assert columns["raw"] == [None, None, "raw"]


def test_a_failed_sample_is_a_sample_without_a_score(story):
    columns = tables(story).columns("samples")
    assert columns["score"].count(None) == 1
    i = columns["score"].index(None)
    assert (columns["outcome"][i], columns["split"][i], columns["feedback"][i]) == ("transient", "train", "the provider broke")


@settings(deadline=None)  # a busy machine is no failure
@given(cuts=st.lists(st.integers(0, 200), max_size=12))
def test_tables_fed_in_any_chunking_are_the_same(story, cuts):
    pieces, whole = Tables(), tables(story)
    for start, end in pairwise([0, *sorted(cuts), len(story)]):
        pieces.feed(story[start:end])
    assert all(pieces.columns(name) == whole.columns(name) for name in NAMES)


def test_what_reviews_saw_is_a_table_and_what_they_changed_is_among_the_settings(story):
    [review] = rows(story, "reviews").values()
    assert (review["at"], review["policy"], review["wishes"], review["rates"]) == (14.0, "ServerAware", {"gate": 1}, {"gate": 12.0})
    columns = tables(story).columns("settings")
    changed = list(zip(columns["at"], columns["knob"], columns["new"], columns["by"], columns["why"], strict=True))
    assert (14.0, "depth", 1, "livelock", "too many discards") in changed
    assert (14.0, "slots of propose", 3, "ServerAware", "items wait") in changed
    assert rows(story, "slots")["propose"]["slots"] == 3
