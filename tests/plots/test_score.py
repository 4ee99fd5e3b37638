"""The score figure: a step line to the end of the log, a dot per commit, over time or cost."""

import pytest
from matplotlib.figure import Figure as Page

from flashevolve_lab.core import Spend
from flashevolve_lab.errors import SetupError
from flashevolve_lab.plots import score_figure, score_info, score_matplotlib, score_plotly
from flashevolve_lab.views import Point, ProgressSnapshot, RunFacts, Standing

FACTS = RunFacts(run="demo", clock="virtual", simulated=True, algorithm="GEPA", task="reviews")


def point(version, at, mean, best, tokens):
    spent = {"metric_calls": 10 * version, "llm_calls": 5 * version, "dollars": 0.5 * version, "proposals": version}
    return Point(at, tokens=tokens, version=version, artifact=f"a{version}", mean=mean, coverage=1.0, best=best,
                 best_artifact="a0", **spent)  # fmt: skip


RUN = ProgressSnapshot(
    facts=FACTS,
    standing=Standing(seq=50, at=100.0, spent=Spend(metric_calls=99, llm_calls=88, tokens=7_000, dollars=4.0, proposals=9)),
    points=(point(0, 10.0, 0.5, 0.5, 0), point(1, 20.0, 0.4, 0.5, 1_000), point(2, 60.0, 0.75, 0.75, 5_000)),
)


def test_the_line_is_the_best_so_far_and_goes_on_to_the_end_of_the_log():
    (line,) = score_info({"demo": RUN}).lines
    assert (line.xs, line.best) == ((10.0, 20.0, 60.0, 100.0), (0.5, 0.5, 0.75, 0.75))


def test_every_commit_is_a_dot_at_its_own_mean():
    (line,) = score_info({"demo": RUN}).lines
    assert (line.dot_xs, line.dots, line.artifacts) == ((10.0, 20.0, 60.0), (0.5, 0.4, 0.75), ("a0", "a1", "a2"))


@pytest.mark.parametrize(
    ("x", "label", "last"),
    [
        ("seconds", "lab seconds (virtual)", 100.0),
        ("metric_calls", "metric calls", 99.0),
        ("llm_calls", "model calls", 88.0),
        ("tokens", "tokens", 7_000.0),
        ("dollars", "dollars", 4.0),
        ("proposals", "proposals", 9.0),
    ],
)
def test_the_score_can_be_drawn_over_time_and_over_every_cost(x, label, last):
    info = score_info({"demo": RUN}, x)
    assert (info.x_label, info.lines[0].xs[-1]) == (label, last)


def test_another_x_is_refused_with_those_there_are():
    with pytest.raises(SetupError, match="x='hours': a score is drawn over one of seconds, metric_calls"):
        score_info({"demo": RUN}, "hours")


def test_the_figure_says_that_the_model_was_simulated():
    info = score_info({"demo": RUN})
    assert "simulated model" in info.note
    assert "simulated model" in score_plotly(info).layout.title.subtitle.text


def test_several_runs_are_several_lines_with_a_legend():
    info = score_info({"one": RUN, "two": RUN})
    drawn = score_plotly(info)
    assert [trace.name for trace in drawn.data if trace.showlegend is not False] == ["one", "two"]
    assert len({trace.line.dash for trace in drawn.data if trace.mode == "lines"}) == 2
    page = Page()
    score_matplotlib(info, page)
    assert [text.get_text() for text in page.legends[0].get_texts()] == ["one", "two"]


def test_names_are_shown_literally_never_as_markup():
    drawn = score_plotly(score_info({"<b>x</b>": RUN, "<a href='x'>$y$</a>": RUN})).to_json()
    assert "<b>x" not in drawn and "<a " not in drawn and "$y$" not in drawn


def test_a_run_without_a_commit_gives_a_sentence_not_an_error(tmp_path):
    figure = score_figure({"new": ProgressSnapshot()})
    assert figure.info.empty.startswith("Nothing has been committed yet")
    assert figure.plotly().layout.annotations[0].text == figure.info.empty
    assert figure.export(tmp_path / "empty.png").stat().st_size > 1_000


def test_the_plotly_paper_is_transparent_so_that_both_themes_work():
    layout = score_plotly(score_info({"demo": RUN})).layout
    assert layout.paper_bgcolor == layout.plot_bgcolor == "rgba(0, 0, 0, 0)"


def test_the_printed_figure_labels_its_axes():
    page = Page()
    score_matplotlib(score_info({"demo": RUN}, "tokens"), page)
    assert (page.axes[0].get_xlabel(), page.axes[0].get_ylabel()) == ("tokens", "mean validation score")
