"""The runtime figure: the model's curve from the runs one by one, and what the others measured against them."""

from dataclasses import replace

import pytest
from matplotlib.figure import Figure as Page

from flashevolve_lab.errors import SetupError
from flashevolve_lab.plots import runtime_figure, runtime_info, runtime_matplotlib, runtime_plotly
from flashevolve_lab.views import RunFacts, RuntimeSnapshot, batched_runtime

EVIL = "<img src=x onerror=alert(1)> & $x$"
NUMBERS = {"acceptance": 0.25, "validation": 50, "workers": 64, "step_s": 3.0, "rollout_s": 0.25}
ONE = RuntimeSnapshot(
    facts=RunFacts(run="one", clock="virtual", simulated=True), seq=9, schedule="Sequential()", k=1, batched=True, proposals=40,
    validated=10, seconds=120.0, metric_calls=600, validation=50, minibatch=3, workers=64, rollout_s=0.25, step_s=3.0, spread=0.5,
)  # fmt: skip
EIGHT = replace(ONE, schedule="Batched(p=4, n=2)", k=8, seconds=30.0)
PIPE = replace(ONE, schedule="Pipelined(depth=8)", k=8, batched=False, seconds=20.0)
RUNS = {"one": [ONE], "4×2": [EIGHT], "pipe": [PIPE]}


def printed(info):
    page = Page(figsize=(3.5, 3.0))
    runtime_matplotlib(info, page)
    return page


def test_the_curve_is_the_model_with_what_the_runs_one_by_one_show():
    info = runtime_info(RUNS)
    assert info.ks == tuple(range(1, 17))
    assert info.model[7] == pytest.approx(batched_runtime(k=8, **NUMBERS).speedup)
    assert info.slowest[7] == pytest.approx(batched_runtime(k=8, spread=0.5, **NUMBERS).speedup)
    assert info.ceiling == pytest.approx(batched_runtime(k=1, minibatch=3, **NUMBERS).ceiling)
    assert info.given == "a = 0.25, V = 50, W = 64, L_step = 3 s, T_e = 0.25 s, σ = 0.50"


def test_a_measured_speed_up_is_the_time_to_an_equal_number_of_metric_calls():
    runs = {**RUNS, "half": [replace(EIGHT, seconds=30.0, metric_calls=300)]}
    points = {point.label: (point.kind, point.k, point.speedup.mean) for point in runtime_info(runs).measured}
    assert points == {
        "one": ("batched", 1, 1.0),
        "4×2": ("batched", 8, 4.0),
        "pipe": ("pipelined", 8, 6.0),
        "half": ("batched", 8, 2.0),
    }


def test_seeds_are_a_mean_with_an_interval_against_the_mean_of_the_runs_one_by_one():
    info = runtime_info({"one": [ONE, replace(ONE, seconds=240.0)], "4×2": [EIGHT, replace(EIGHT, seconds=60.0)]})
    assert info.measured[1].speedup.values == pytest.approx((6.0, 3.0))
    assert info.words.endswith("mean of 2 runs, 95% t-interval")


def test_given_numbers_replace_estimates():
    info = runtime_info(RUNS, {"workers": 16, "spread": 0.0})
    assert "W = 16" in info.given and info.slowest == ()
    assert info.model[7] == pytest.approx(batched_runtime(k=8, **{**NUMBERS, "workers": 16}).speedup)


def test_numbers_alone_are_enough_for_the_curve():
    info = runtime_info({}, NUMBERS, upto=64)
    assert (len(info.model), info.measured, info.empty) == (64, (), "")
    with pytest.raises(SetupError, match="without a run the model needs acceptance, rollout_s as numbers"):
        runtime_info({}, {name: NUMBERS[name] for name in ("validation", "workers", "step_s")})
    with pytest.raises(SetupError, match="the model has no latency; it has acceptance"):
        runtime_info({}, {**NUMBERS, "latency": 1.0})


def test_without_a_run_one_by_one_there_is_a_sentence(tmp_path):
    figure = runtime_figure({"4×2": [EIGHT]})
    assert figure.info.empty.startswith("No run had one proposal at a time")
    assert figure.plotly().layout.annotations[0].text == figure.info.empty
    assert figure.export(tmp_path / "empty.pdf").stat().st_size > 1_000


def test_a_run_one_by_one_that_validated_nothing_says_so():
    assert runtime_info({"one": [replace(ONE, validated=0)]}).empty.startswith("Nothing to estimate the model from yet")


def test_runs_that_cannot_be_placed_are_left_out_aloud():
    runs = {
        **RUNS,
        "steered": [replace(EIGHT, steady=False)],
        "new": [RuntimeSnapshot()],
        "mixed": [EIGHT, PIPE],
        "auto": [replace(PIPE, k=0)],
    }
    info = runtime_info(runs)
    assert info.left_out == {
        "steered": "its schedule or depth changed on the way",
        "new": "nothing measured after the seed yet",
        "mixed": "its runs have no k in common",
        "auto": "its schedule does not say how many proposals it has at once",
    }
    assert "without steered: its schedule or depth changed on the way" in info.words


def test_the_axis_says_when_k_is_in_flight():
    assert runtime_info(RUNS).x_label == "proposals at once, k (or in flight)"
    assert runtime_info({"one": [ONE], "4×2": [EIGHT]}).x_label == "proposals at once, k"


def test_plotly_draws_curves_and_a_trace_of_points_for_every_kind():
    drawn = {trace.name: trace for trace in runtime_plotly(runtime_info(RUNS)).data}
    assert list(drawn) == [
        "ideal: k times", "floor B·T_e/W", "model", "model, slowest of k", "measured, batched", "measured, pipelined"]  # fmt: skip
    assert (list(drawn["measured, batched"].x), list(drawn["measured, batched"].y)) == ([1, 8], [1.0, 4.0])
    assert len({trace.line.dash for trace in drawn.values() if trace.mode == "lines"}) == 4


def test_print_has_the_same_curves_points_and_units():
    page = printed(runtime_info(RUNS))
    axes = page.axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("proposals at once, k (or in flight)", "speed-up over k = 1")
    assert list(axes.lines[2].get_ydata()) == list(runtime_info(RUNS).model)
    assert [text.get_text() for text in page.legends[0].get_texts()][-2:] == ["measured, batched", "measured, pipelined"]
    assert "L_step = 3 s" in page._supxlabel.get_text()


def test_hostile_labels_are_shown_literally(tmp_path):
    figure = runtime_figure({**RUNS, EVIL: [replace(EIGHT, steady=False)], EVIL + "2": [replace(PIPE, schedule=EVIL)]})
    drawn = figure.plotly().to_json()
    assert "<img" not in drawn and "\\u003cimg" not in drawn and "$x$" not in drawn and "&lt;img" in drawn
    assert b"/FontFile2" in figure.export(tmp_path / "hostile.pdf").read_bytes()


def test_the_manifest_keeps_what_the_model_was_given():
    source = runtime_figure(RUNS, {"workers": 16}).source
    assert source.parameters["given"] == {"workers": 16} and source.parameters["model"].startswith("a = 0.25, V = 50, W = 16")
    assert runtime_figure(RUNS).info.note == "simulated model"
