"""The Gantt figure: a bar per job in its lane, as long as the job; marks; hatches; nothing from a model read as markup."""

from dataclasses import replace
from itertools import pairwise

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure as Page

from flashevolve_lab.errors import SetupError
from flashevolve_lab.plots import STAGES, gantt_figure, gantt_info, gantt_matplotlib, gantt_plotly
from flashevolve_lab.plots.gantt import labels
from flashevolve_lab.views import Mark, RunFacts, Span, TimelineSnapshot

EVIL = "<img src=x onerror=alert(1)> & $x$"


def span(job, stage, slot, start, end, **more):
    fixed = {"item": "p1", "kind": "proposal", "parent": "a0", "artifact": "a1", "base": 2, "version": 4, "gap": 2}
    return Span(job, stage, slot, start=start, end=end, **{"outcome": "finished", **fixed, **more})


RUN = TimelineSnapshot(
    facts=RunFacts(run="demo", clock="virtual", simulated=True),
    seq=77,
    at=20.0,
    status="running",
    stages=("rollout", "patch", "gate"),
    lanes={"rollout": 2, "gate": 1},
    spans=(
        span("j0", "rollout", 0, 0.0, 5.0, calls=3, tokens=1_200, dollars=0.25),
        span("j1", "rollout", 1, 1.0, 9.0, outcome="failed", note=f"samples: {EVIL}"),
        span("j2", "gate", 0, 5.0, 8.0, item_outcome="rejected"),
        span("j3", "rollout", 0, 6.0, None, outcome="running"),
        span("j4", "gate", 0, 9.0, 12.0, outcome="abandoned", note="stop"),
    ),
    marks=(
        Mark(10, 4.0, "commit", "v0: a0, mean 0.5", 0, "a0", "p0"),
        Mark(20, 8.0, "setting", f"staleness: Full() → {EVIL} (user)"),
        Mark(30, 12.0, "warning", "slow"),
    ),
)


def test_lanes_are_the_slots_of_each_stage_in_the_order_of_the_work():
    info = gantt_info(RUN)
    assert [(lane.stage, lane.slot) for lane in info.lanes] == [("rollout", 0), ("rollout", 1), ("gate", 0)]
    assert info.stages == ("rollout", "gate")
    assert all(below.y - above.y >= 1 for above, below in pairwise(info.lanes))


def test_a_bar_is_as_long_as_its_job_and_a_running_one_reaches_now():
    bars = {bar.span.job: (bar.start, bar.seconds) for bar in gantt_info(RUN).bars}
    assert bars == {"j0": (0.0, 5.0), "j1": (1.0, 8.0), "j2": (5.0, 3.0), "j3": (6.0, 14.0), "j4": (9.0, 3.0)}


def test_a_window_cuts_bars_and_leaves_out_what_is_outside():
    info = gantt_info(RUN, 5.5, 8.5)
    assert {bar.span.job: (bar.start, bar.seconds) for bar in info.bars} == {
        "j1": (5.5, 3.0),
        "j2": (5.5, 2.5),
        "j3": (6.0, 2.5),
    }
    assert [mark.kind for mark in info.marks] == ["setting"]


def test_an_empty_window_is_refused():
    with pytest.raises(SetupError, match=r"expected start < end; the run is 20 s long"):
        gantt_info(RUN, 8, 8)


def test_a_window_without_jobs_says_so():
    assert gantt_info(RUN, 30, 40).empty == "No job ran between 30 and 40 s: the run is 20 s long."


def test_a_run_without_jobs_gives_a_sentence_not_an_error(tmp_path):
    figure = gantt_figure(TimelineSnapshot(), run="new")
    assert figure.plotly().layout.annotations[0].text.startswith("No job has started yet")
    assert figure.export(tmp_path / "empty.pdf").stat().st_size > 1_000


def test_labels_never_overlap_and_changes_go_before_commits():
    marks = [Mark(i, i / 10, "commit", "", i) for i in range(100)] + [Mark(200, 5.0, "pause", "paused (user)")]
    info = gantt_info(TimelineSnapshot(at=10.0, spans=RUN.spans, stages=RUN.stages, lanes=RUN.lanes, marks=tuple(marks)))
    fitting = labels(info, 40)
    assert fitting[200] == "pause" and 50 not in fitting
    places = sorted((mark.at, len(fitting[mark.seq])) for mark in marks if mark.seq in fitting)
    assert all(right - left >= (a + b) / 2 * 10 / 40 for (left, a), (right, b) in pairwise(places))


# --- Plotly -----------------------------------------------------------------------------------------------------------


def traces(info):
    return {trace.name: trace for trace in gantt_plotly(info).data if trace.showlegend is not False}


def test_plotly_draws_a_trace_per_stage_with_explicit_width_on_common_lanes():
    drawn = gantt_plotly(gantt_info(RUN))
    rollout = traces(gantt_info(RUN))["rollout"]
    assert (list(rollout.base), list(rollout.x), rollout.width) == ([0.0, 1.0, 6.0], [5.0, 8.0, 14.0], 0.86)
    assert rollout.marker.color == STAGES["rollout"] and drawn.layout.barmode == "overlay"


def test_plotly_hatches_what_did_not_end_well_and_explains_the_hatch():
    drawn = traces(gantt_info(RUN))
    assert list(drawn["rollout"].marker.pattern.shape) == ["", "x", "."]
    assert list(drawn["gate"].marker.pattern.shape) == ["", "/"]
    assert {"running", "failed", "abandoned"} < set(drawn) and "lost" not in drawn


def test_hovering_a_bar_tells_its_job():
    hover = traces(gantt_info(RUN))["rollout"].hovertext[0]
    for part in ("<b>rollout</b> j0 · slot 0", "p1 → a1 (from a0)", "base v2, gap 2", "0.00 to 5.00 s", "1,200 tokens"):
        assert part in hover


def test_plotly_marks_commits_and_changes_as_lines_with_a_head_to_hover():
    drawn = traces(gantt_info(RUN))
    assert (list(drawn["commit"].x), list(drawn["commit"].text)) == ([4.0], ["v0"])
    assert (list(drawn["change"].x), list(drawn["change"].text)) == ([8.0], ["staleness"])
    assert "v0: a0, mean 0.5" in drawn["commit"].hovertext[0]


def test_texts_of_models_and_users_are_shown_literally_never_as_markup():
    hostile = TimelineSnapshot(
        facts=RunFacts(run=EVIL, task=EVIL),
        at=9.0,
        stages=(EVIL,),
        lanes={EVIL: 1},
        spans=(span(EVIL, EVIL, 0, 0.0, 5.0, item=EVIL, parent=EVIL, artifact=EVIL, note=EVIL, item_outcome=EVIL),),
        marks=(Mark(1, 2.0, "setting", EVIL), Mark(2, 8.0, "commit", EVIL, 1)),
    )
    drawn = gantt_plotly(gantt_info(hostile)).to_json()
    assert "<img" not in drawn and "\\u003cimg" not in drawn and "$x$" not in drawn and "&lt;img" in drawn


def test_the_figure_says_that_model_and_time_are_simulated():
    info = gantt_info(RUN)
    assert (info.note, info.x_label) == ("simulated model", "lab seconds (virtual)")


# --- matplotlib -------------------------------------------------------------------------------------------------------


def printed(info):
    page = Page(figsize=(3.5, 2.5))
    gantt_matplotlib(info, page)
    return page


def test_print_has_the_same_bars_and_hatches():
    collections = [c for c in printed(gantt_info(RUN)).axes[0].collections if isinstance(c, PolyCollection)]
    assert sum(len(collection.get_paths()) for collection in collections) == len(RUN.spans)
    assert sorted(collection.get_hatch() or "" for collection in collections) == ["", "", ".....", "//////", "xxxxxx"]


def test_print_explains_stages_hatches_and_lines():
    texts = [text.get_text() for text in printed(gantt_info(RUN)).legends[0].get_texts()]
    assert texts == ["rollout", "gate", "running", "failed", "abandoned", "commit", "change"]


@pytest.mark.parametrize("width", ["column", "page"])
@pytest.mark.parametrize("end", [7.0, 10.0], ids=["without changes", "with a change"])
def test_the_note_stands_close_below_the_axis(width, end):
    page = gantt_figure(RUN, end=end).matplotlib(width)
    FigureCanvasAgg(page).draw()
    label, note = page.axes[0].xaxis.label.get_window_extent(), page._supxlabel.get_window_extent()
    assert 0 < (label.y0 - note.y1) / page.dpi * 72 < 10  # points


def test_print_takes_hostile_names_literally(tmp_path):
    hostile = TimelineSnapshot(at=9.0, stages=(EVIL,), lanes={EVIL: 1}, spans=(span("j", EVIL, 0, 0.0, 5.0),))
    figure = gantt_figure(hostile, run=EVIL)
    assert b"/FontFile2" in figure.export(tmp_path / "hostile.pdf").read_bytes()


def test_ten_thousand_jobs_are_printed_as_few_collections():
    spans = tuple(span(f"j{i}", "rollout", i % 16, float(i // 16), i // 16 + 0.9) for i in range(10_000))
    run = TimelineSnapshot(at=625.0, stages=("rollout",), lanes={"rollout": 16}, spans=spans)
    assert len(printed(gantt_info(run)).axes[0].collections) == 16


def test_a_figure_knows_run_position_and_window():
    source = gantt_figure(RUN, 1.0, 9.0).source
    assert (source.function, source.runs, source.parameters) == ("gantt", (("demo", 77),), {"start": 1.0, "end": 9.0})


@pytest.mark.parametrize("height", [1.6, 8.0])
def test_a_version_stands_clear_above_the_head_of_its_mark_on_a_low_and_a_tall_page(height):
    page = gantt_figure(RUN, end=7.0).matplotlib("page", height)
    FigureCanvasAgg(page).draw()
    axes = page.axes[0]
    (label,) = [text for text in axes.texts if text.get_text() == "v0"]
    heads = [line for line in axes.lines if line.get_marker() == "v"]
    middle = heads[0].get_transform().transform(heads[0].get_xydata())[0][1]
    assert 1.25 < (label.get_window_extent().y0 - middle) / page.dpi * 72 < 4  # points; half a head is 1.25


# --- partial results ----------------------------------------------------------------------------------------------------


EARLY = replace(
    RUN,
    stages=("rollout", "validate"),
    lanes={"rollout": 1, "validate": 3},
    spans=(
        replace(span("j0", "rollout", 0, 0.0, 6.0), released=4.0),
        replace(span("j1", "validate", 0, 0.0, 8.0), inserted=2.0, fate="confirmed"),
        replace(span("j2", "validate", 1, 0.0, 8.0), inserted=3.0, fate="rolled back"),
        replace(span("j3", "validate", 2, 0.0, 5.0), fate="proven", note="it can reach 0.310 at most"),
    ),
    marks=(
        Mark(1, 2.0, "provisional", "v1: a1 joins provisionally", 1, "a1", "p1"),
        Mark(2, 8.0, "confirmed", "a1 of v1 is confirmed", 1, "a1", "p1"),
        Mark(3, 9.0, "rolled back", "v3: a2 is rolled back", 3, "a2", "p2"),
    ),
)


def test_what_ran_on_after_its_partial_result_went_on_is_a_part_of_its_bar():
    info = gantt_info(EARLY)
    assert [(part.kind, part.start, part.seconds) for part in info.early] == [
        ("late", 4.0, 2.0), ("provisional", 2.0, 6.0), ("rolled back", 3.0, 5.0),
    ]  # fmt: skip
    assert [bar.span.job for bar in info.proven] == ["j3"]
    assert [(part.start, part.seconds) for part in gantt_info(EARLY, 5.0, 7.0).early] == [(5.0, 1.0), (5.0, 2.0), (5.0, 2.0)]


def test_a_roll_back_is_labelled_with_its_artifact_and_a_confirmation_moves_no_version():
    info = gantt_info(EARLY)
    assert [mark.kind for mark in info.marks] == ["provisional", "rolled back"]
    assert set(labels(info, 100).values()) == {"v1?", "roll-back a2"}


def test_plotly_and_print_explain_partial_results_once_each():
    drawn = traces(gantt_info(EARLY))
    words = {"late samples", "provisional", "rolled back", "proven", "joins provisionally", "roll-back"}
    assert words < set(drawn) and list(drawn["roll-back"].text) == ["roll-back a2"]
    texts = [text.get_text() for text in printed(gantt_info(EARLY)).legends[0].get_texts()]
    assert texts == ["rollout", "validate", "late samples", "provisional", "rolled back", "proven", "roll-back"]


def test_hovering_a_bar_that_was_proven_hopeless_tells_the_bound():
    assert "<i>proven</i>: it can reach 0.310 at most" in traces(gantt_info(EARLY))["validate"].hovertext[2]
