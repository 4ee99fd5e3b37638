"""Gantts one above the other: the same seconds, the same height of a slot, every stage named once."""

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Page

from flashevolve_lab.errors import SetupError
from flashevolve_lab.plots import (
    STAGES,
    stacked_gantt_figure,
    stacked_gantt_info,
    stacked_gantt_matplotlib,
    stacked_gantt_plotly,
)
from flashevolve_lab.views import Mark, RunFacts, Span, TimelineSnapshot

EVIL = "<img src=x onerror=alert(1)> & $x$"


def span(job, stage, slot, start, end, outcome="finished"):
    return Span(job, stage, slot, "p1", "proposal", "a0", "a1", 0, 0, 0, start=start, end=end, outcome=outcome)


def commits(*ats):
    return tuple(Mark(10 + version, at, "commit", f"v{version}", version) for version, at in enumerate(ats))


def timeline(name, at, lanes, spans, marks, status="stopped"):
    facts = RunFacts(run=name, clock="virtual", simulated=True)
    return TimelineSnapshot(facts, 70, at, status, tuple(lanes), lanes, tuple(spans), marks)


SLOW = timeline("slow", 40.0, {"rollout": 1, "gate": 1},
                [span("j0", "rollout", 0, 0.0, 10.0), span("j1", "gate", 0, 10.0, 12.0)], commits(2.0, 30.0))  # fmt: skip
FAST = timeline("fast", 10.0, {"rollout": 3, "patch": 1, "gate": 2},
                [*(span(f"k{i}", "rollout", i, 0.0, 4.0 + i) for i in range(3)), span("k3", "gate", 1, 5.0, 9.0, "failed")],
                commits(1.0, 2.0, 6.0, 9.0))  # fmt: skip
BOTH = {"synchronous": SLOW, "asynchronous": FAST}


def printed(info, size=(7.16, 3.0)):
    page = Page(figsize=size, layout="constrained")
    stacked_gantt_matplotlib(info, page)
    FigureCanvasAgg(page).draw()
    return page


def test_all_runs_share_the_window_of_the_longest():
    info = stacked_gantt_info(BOTH)
    assert [(panel.gantt.start, panel.gantt.end) for panel in info.panels] == [(0.0, 40.0)] * 2
    assert [panel.label for panel in info.panels] == ["synchronous", "asynchronous"]


def test_a_panel_says_which_version_was_reached_and_when_the_run_ended():
    assert [panel.reached for panel in stacked_gantt_info(BOTH).panels] == ["v1 after 40 s", "v3 ended at 10 s"]
    assert [panel.reached for panel in stacked_gantt_info(BOTH, end=8).panels] == ["v0 after 8 s", "v2 after 8 s"]
    assert stacked_gantt_info({"new": TimelineSnapshot()}).panels[0].reached == "no version after 0 s"


def test_stages_are_those_of_all_runs_once_in_the_order_of_the_work():
    assert stacked_gantt_info(BOTH).stages == ("rollout", "patch", "gate")


def test_an_empty_window_or_no_run_is_refused():
    with pytest.raises(SetupError, match=r"gantt\(start=5, end=5\): expected start < end; the longest run is 40 s long"):
        stacked_gantt_info(BOTH, 5, 5)
    with pytest.raises(SetupError, match="at least one run"):
        stacked_gantt_info({})


def test_print_draws_a_second_as_wide_and_a_slot_as_high_in_every_run():
    above, below = printed(stacked_gantt_info(BOTH)).axes
    assert above.get_xlim() == below.get_xlim() == (0.0, 40.0)
    heights = [abs(axes.transData.transform((0, 1))[1] - axes.transData.transform((0, 0))[1]) for axes in (above, below)]
    widths = [axes.transData.transform((1, 0))[0] - axes.transData.transform((0, 0))[0] for axes in (above, below)]
    assert heights[0] == pytest.approx(heights[1], rel=0.02) and widths[0] == pytest.approx(widths[1])


def test_print_names_each_stage_hatch_and_line_once_and_only_the_lower_axis():
    page = printed(stacked_gantt_info(BOTH))
    texts = [text.get_text() for text in page.legends[0].get_texts()]
    assert texts == ["rollout", "patch", "gate", "failed", "commit"] and len(page.legends) == 1
    assert [axes.get_xlabel() for axes in page.axes] == ["", "lab seconds (virtual)"]
    assert page.axes[1].get_title(loc="left").startswith("asynchronous: v3")


def test_plotly_puts_each_run_on_lanes_of_its_own_under_one_axis_of_time():
    drawn = stacked_gantt_plotly(stacked_gantt_info(BOTH))
    rollouts = [trace for trace in drawn.data if trace.name == "rollout"]
    assert [(trace.yaxis, len(trace.x), trace.marker.color) for trace in rollouts] == [
        ("y", 1, STAGES["rollout"]), ("y2", 3, STAGES["rollout"])]  # fmt: skip
    assert {trace.xaxis for trace in drawn.data} == {None} and drawn.layout.xaxis.anchor == "y2"
    upper, lower = drawn.layout.yaxis, drawn.layout.yaxis2
    assert lower.domain[0] == 0.0 and lower.domain[1] < upper.domain[0] < upper.domain[1] < 1
    scale = [(axis.domain[1] - axis.domain[0]) / (axis.range[0] - axis.range[1]) for axis in (upper, lower)]
    assert scale[0] == pytest.approx(scale[1])


def test_plotly_names_everything_once():
    names = [trace.name for trace in stacked_gantt_plotly(stacked_gantt_info(BOTH)).data if trace.showlegend is not False]
    assert sorted(names) == ["commit", "failed", "gate", "patch", "rollout"]


def test_versions_are_marks_in_their_own_run_only():
    drawn = stacked_gantt_plotly(stacked_gantt_info(BOTH))
    heads = {trace.yaxis: list(trace.x) for trace in drawn.data if trace.name == "commit" and trace.mode == "markers+text"}
    assert heads == {"y": [2.0, 30.0], "y2": [1.0, 2.0, 6.0, 9.0]}


def test_a_run_that_did_nothing_in_the_window_says_so_in_its_panel():
    info = stacked_gantt_info(BOTH, 10.5, 20)
    assert not info.empty and info.panels[1].gantt.empty == "No job ran between 10.5 and 20 s: the run is 10 s long."
    assert info.panels[1].gantt.empty in [text.get_text() for text in printed(info).axes[1].texts]


def test_runs_without_jobs_give_a_sentence_not_an_error(tmp_path):
    figure = stacked_gantt_figure({"a": TimelineSnapshot(), "b": TimelineSnapshot()})
    assert figure.plotly().layout.annotations[0].text.startswith("No job has started yet")
    assert figure.export(tmp_path / "empty.pdf").stat().st_size > 1_000


def test_a_run_without_lanes_beside_one_with_can_be_drawn(tmp_path):
    figure = stacked_gantt_figure({"new": TimelineSnapshot(), "fast": FAST})
    assert figure.export(tmp_path / "figure.png", width="page").stat().st_size > 1_000
    assert "No job has started yet" in figure.plotly().to_json()


def test_hostile_names_are_shown_literally(tmp_path):
    figure = stacked_gantt_figure({EVIL: timeline(EVIL, 5.0, {EVIL: 1}, [span("j", EVIL, 0, 0.0, 5.0)], ()), "b": FAST})
    drawn = figure.plotly().to_json()
    assert "<img" not in drawn and "\\u003cimg" not in drawn and "$x$" not in drawn and "&lt;img" in drawn
    assert b"/FontFile2" in figure.export(tmp_path / "hostile.pdf").read_bytes()


def test_the_figure_knows_its_runs_window_and_what_was_simulated():
    figure = stacked_gantt_figure(BOTH, 0, 9)
    assert figure.source.runs == (("slow", 70), ("fast", 70)) and figure.info.note == "simulated model"
    assert figure.source.parameters == {"start": 0, "end": 9, "labels": ["synchronous", "asynchronous"]}
