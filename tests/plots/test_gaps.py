"""The gap figure: every verdict in one bar, by action; several runs as panels; nothing stale is said in words."""

import json

import pytest
from matplotlib.container import BarContainer
from matplotlib.figure import Figure as Page

from flashevolve_lab.errors import SetupError
from flashevolve_lab.plots import ACTION_STYLES, gaps_figure, gaps_info, gaps_matplotlib, gaps_plotly
from flashevolve_lab.views import ACTIONS, RunFacts, StalenessSnapshot, StaleRow

EVIL = "<img src=x onerror=alert(1)> & $x$"
FACTS = RunFacts(run="demo", clock="virtual", simulated=True, algorithm="GEPA", task="reviews")


def verdict(action, gap, where="dequeue"):
    fixed = {"item": "p1", "artifact": "a1", "stage": "validate", "counterpart": "a0", "reason": "", "policy": "", "why": ""}
    return StaleRow(
        seq=1, at=0.0, where=where, base=0, version=gap, gap=gap, touched=True, superseded=False, action=action, **fixed
    )


def judged(*verdicts, run="demo"):
    return StalenessSnapshot(
        seq=50, rows=tuple(verdicts), facts=RunFacts(run=run, simulated=True, algorithm="GEPA", task="reviews")
    )


RUN = judged(
    verdict("accept", 1), verdict("accept", 1, "commit"), verdict("discard", 4), verdict("update", 4), verdict("accept", 2)
)  # fmt: skip


def printed(info):
    page = Page(figsize=(3.5, 2.5))
    gaps_matplotlib(info, page)
    return page


def test_verdicts_are_counted_by_gap_and_action_in_the_order_of_actions():
    info = gaps_info({"demo": [RUN]})
    assert (info.starts, info.actions, info.names) == ((1, 2, 3, 4), ("accept", "update", "discard"), ("1", "2", "3", "4"))
    assert info.panels[0].counts == {"accept": (2, 1, 0, 0), "update": (0, 0, 0, 1), "discard": (0, 0, 0, 1)}
    assert info.panels[0].note == "n = 5, median 2, 90% ≤ 4"


@pytest.mark.parametrize(("where", "total"), [("all", 5), ("dequeue", 4), ("commit", 1), ("hand", 0)])
def test_verdicts_can_be_narrowed_to_where_they_fell(where, total):
    assert gaps_info({"demo": [RUN]}, where).panels[0].total == total


def test_another_place_is_refused_with_those_there_are():
    with pytest.raises(SetupError, match="where='queue'.*all, dequeue, commit, hand"):
        gaps_info({"demo": [RUN]}, "queue")


def test_wide_ranges_share_bars_and_lose_no_verdict():
    run = judged(*(verdict("accept", gap) for gap in range(1, 101)))
    info = gaps_info({"demo": [run]})
    assert (info.width, info.names[0], info.names[-1]) == (4, "1–4", "97–100")
    assert sum(info.panels[0].counts["accept"]) == 100 and set(info.panels[0].counts["accept"]) == {4}


def test_one_run_shows_counts_and_several_show_percent_on_one_axis():
    one, two = gaps_info({"a": [RUN]}), gaps_info({"a": [RUN], "b": [judged(verdict("patch", 7))]})
    assert (one.share, one.y_label, one.top) == (False, "verdicts", 2)
    assert (two.share, two.y_label, two.top) == (True, "verdicts (%)", 100)
    assert two.panels[0].heights("accept", True) == (40.0, 20.0, 0, 0, 0, 0, 0)
    assert two.panels[1].heights("patch", True)[-1] == 100.0


def test_runs_of_one_label_are_counted_together():
    info = gaps_info({"Full": [RUN, RUN], "Guarded": [RUN]})
    assert (info.panels[0].total, info.panels[0].note) == (10, "n = 10 of 2 runs, median 2, 90% ≤ 4")


def test_a_run_without_staleness_says_so(tmp_path):
    figure = gaps_figure({"one by one": [judged()]})
    assert figure.info.empty.startswith("No work went stale: no verdict has fallen. One proposal at a time")
    assert figure.plotly().layout.annotations[0].text == figure.info.empty
    assert figure.export(tmp_path / "empty.pdf").stat().st_size > 1_000


def test_a_run_without_staleness_beside_one_with_says_so_in_its_panel():
    info = gaps_info({"Sequential": [judged()], "Pipelined": [RUN]})
    assert not info.empty and info.panels[0].note == "No work went stale"
    assert "Sequential\nNo work went stale" in [text.get_text() for text in printed(info).axes[0].texts]
    assert gaps_info({"Sequential": [judged(), judged()], "P": [RUN]}).panels[0].note == "No work went stale in 2 runs"


def test_a_log_without_entries_says_that_nothing_was_judged():
    assert gaps_info({"new": [StalenessSnapshot()]}).empty.startswith("Nothing has been judged yet")


def test_every_action_has_a_colour_and_a_hatch_of_its_own():
    assert tuple(ACTION_STYLES) == ACTIONS
    for look in ("colour", "plotly", "matplotlib"):
        assert len({getattr(style, look) for style in ACTION_STYLES.values()}) == len(ACTIONS)


def test_plotly_stacks_an_action_a_trace_and_names_it_once():
    drawn = gaps_plotly(gaps_info({"a": [RUN], "b": [RUN]}))
    assert drawn.layout.barmode == "stack"
    assert [trace.name for trace in drawn.data if trace.showlegend] == ["accept", "update", "discard"]
    assert [trace.yaxis for trace in drawn.data] == ["y"] * 3 + ["y2"] * 3
    assert drawn.layout.yaxis.range == drawn.layout.yaxis2.range
    assert drawn.data[0].hovertext[0] == "<b>accept</b> at gap 1<br>2 of 5 verdicts<br>a"


def test_print_stacks_the_same_heights_and_draws_no_empty_bar():
    axes = printed(gaps_info({"demo": [RUN]})).axes[0]
    bars = [[(bar.get_y(), bar.get_height()) for bar in drawn] for drawn in axes.containers if isinstance(drawn, BarContainer)]
    assert bars == [[(0, 2), (0, 1)], [(0, 1)], [(1, 1)]]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("version gap Δ (commits since the base version)", "verdicts")


def test_print_explains_the_actions_once():
    texts = [text.get_text() for text in printed(gaps_info({"a": [RUN], "b": [RUN]})).legends[0].get_texts()]
    assert texts == ["accept", "update", "discard"]


def test_hostile_names_and_actions_are_shown_literally(tmp_path):
    figure = gaps_figure({EVIL: [judged(verdict(EVIL, 1), run=EVIL)], "b": [RUN]})
    drawn = figure.plotly().to_json()
    assert "<img" not in drawn and "\\u003cimg" not in drawn and "$x$" not in drawn and "&lt;img" in drawn
    assert b"/FontFile2" in figure.export(tmp_path / "hostile.pdf").read_bytes()


def test_the_manifest_names_every_run_and_its_label(tmp_path):
    gaps_figure({"Full": [RUN, judged(run="two")], "Guarded": [judged(run="three")]}).export(tmp_path / "gaps.svg")
    manifest = json.loads((tmp_path / "gaps.svg.json").read_text())
    assert (manifest["figure"], manifest["parameters"]) == ("gaps", {"where": "all", "labels": {"Full": 2, "Guarded": 1}})
    assert [run["run"] for run in manifest["runs"]] == ["demo", "two", "three"]


def test_the_figure_says_that_the_model_was_simulated():
    info = gaps_info({"demo": [RUN]})
    assert info.note == "GEPA · reviews · simulated model"
    assert "simulated model" in gaps_plotly(info).layout.title.subtitle.text
