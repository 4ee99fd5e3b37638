"""The rate figure: bars by configuration, seeds as points, an interval only where there are seeds."""

import pytest
from matplotlib.figure import Figure as Page

from flashevolve_lab.core import Spend
from flashevolve_lab.errors import SetupError
from flashevolve_lab.plots import rates_figure, rates_info, rates_matplotlib, rates_plotly
from flashevolve_lab.views import ProgressSnapshot, RunFacts, Standing

EVIL = "<img src=x onerror=alert(1)> & $x$"


def run(accepted, proposals=20, seconds=120.0, metric_calls=500, tokens=2_000_000, clock="wall", simulated=False):
    spent = Spend(metric_calls=metric_calls, tokens=tokens, proposals=proposals)
    facts = RunFacts(run="demo", clock=clock, simulated=simulated, algorithm="GEPA", task="reviews")
    return ProgressSnapshot(facts=facts, standing=Standing(seq=9, at=seconds, spent=spent, accepted=accepted))


def printed(info):
    page = Page(figsize=(3.5, 2.5))
    rates_matplotlib(info, page)
    return page


@pytest.mark.parametrize(
    ("per", "rate", "label"),
    [
        ("minute", 3.0, "accepted proposals per minute"),
        ("metric_calls", 12.0, "accepted proposals per 1,000 metric calls"),
        ("tokens", 3.0, "accepted proposals per million tokens"),
    ],
)
def test_a_rate_is_accepted_ones_over_time_calls_or_tokens(per, rate, label):
    info = rates_info({"demo": [run(6)]}, per)
    assert (info.bars[0].rate.mean, info.x_label) == (rate, label)


def test_minutes_of_another_clock_are_lab_minutes():
    info = rates_info({"demo": [run(6, clock="virtual", simulated=True)]})
    assert info.x_label == "accepted proposals per lab minute (virtual)"
    assert "simulated model" in info.words


def test_another_unit_is_refused_with_those_there_are():
    with pytest.raises(SetupError, match=r"per='hour'\): a rate is per one of minute, metric_calls, tokens"):
        rates_info({"demo": [run(6)]}, "hour")


def test_seeds_are_points_with_the_interval_of_their_mean():
    info = rates_info({"one": [run(6)], "three": [run(2), run(4), run(6)]})
    one, three = info.bars
    assert info.points(one) == [] and one.rate.low == one.rate.high
    assert [x for x, _ in info.points(three)] == [1.0, 2.0, 3.0]
    assert (three.rate.mean, three.rate.low) == (2.0, 0.0)  # 2 ± 2.48, and a rate is never below 0
    assert info.words.endswith("mean of 1 to 3 runs, 95% t-interval, a point per run")


def test_points_stay_inside_their_bar_and_apart():
    info = rates_info({"a": [run(1), run(1), run(1)], "b": [run(1)]}, proposals=True)
    for bar in info.bars[:2]:
        ys = [y for _, y in info.points(bar)]
        assert len(set(ys)) == 3 and all(abs(y - info.place(bar)) <= 0.11 for y in ys)


def test_proposals_are_drawn_beside_the_accepted_ones_when_asked():
    info = rates_info({"demo": [run(6)]}, proposals=True)
    assert [(bar.what, bar.rate.mean) for bar in info.bars] == [("proposals", 10.0), ("accepted", 3.0)]
    assert info.place(info.bars[0]) < 0 < info.place(info.bars[1])
    assert [text.get_text() for text in printed(info).legends[0].get_texts()] == ["proposals", "accepted"]


def test_a_run_that_has_spent_nothing_says_so_in_its_place():
    info = rates_info({"new": [run(0, tokens=0)], "demo": [run(6)]}, "tokens")
    assert info.missing == {"new": "no tokens yet"} and [bar.label for bar in info.bars] == ["demo"]
    assert "no tokens yet" in [text.get_text() for text in printed(info).axes[0].texts]


def test_without_any_rate_there_is_a_sentence(tmp_path):
    figure = rates_figure({"new": [ProgressSnapshot()]})
    assert figure.info.empty.startswith("There is nothing to divide by yet")
    assert figure.plotly().layout.annotations[0].text == figure.info.empty
    assert figure.export(tmp_path / "empty.png").stat().st_size > 1_000


def test_a_run_that_accepted_nothing_is_a_bar_of_nothing_not_a_failure(tmp_path):
    figure = rates_figure({"demo": [run(0), run(0)]})
    assert figure.info.bars[0].rate.mean == 0.0
    assert figure.export(tmp_path / "none.pdf").stat().st_size > 1_000


def test_plotly_draws_bars_with_whiskers_and_points():
    bars, points = rates_plotly(rates_info({"a": [run(2), run(4), run(6)], "b": [run(6)]})).data
    assert list(bars.x) == [2.0, 3.0] and list(bars.error_x.arrayminus) == [2.0, 0.0]
    assert list(points.x) == [1.0, 2.0, 3.0] and not points.showlegend
    assert bars.hovertext[0] == "<b>a</b><br>accepted: 2 [0, 4.48] of 3 runs"


def test_print_has_the_same_bars_and_labels_and_numbers():
    axes = printed(rates_info({"a": [run(6)], "b": [run(12)]})).axes[0]
    assert [patch.get_width() for patch in axes.patches] == [3.0, 6.0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in axes.texts] == ["3.00", "6.00"]


def test_hostile_labels_are_shown_literally(tmp_path):
    figure = rates_figure({EVIL: [run(6), run(7)]}, proposals=True)
    drawn = figure.plotly().to_json()
    assert "<img" not in drawn and "\\u003cimg" not in drawn and "$x$" not in drawn and "&lt;img" in drawn
    assert b"/FontFile2" in figure.export(tmp_path / "hostile.pdf").read_bytes()


def test_the_manifest_knows_unit_and_seeds():
    source = rates_figure({"a": [run(1), run(2)]}, "tokens").source
    assert (source.function, source.runs) == ("rates", (("demo", 9), ("demo", 9)))
    assert source.parameters == {"per": "tokens", "proposals": False, "labels": {"a": 2}}
