"""Comparing runs: labels, seeds, a table and figures, from real runs on virtual time."""

import pytest

import flashevolve_lab as lab

LANDSCAPE = lab.IndependentRules(n_rules=12, p_improve=0.6)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")

    def run(name, schedule, seed=0):
        made = lab.start(
            lab.simulated_task(LANDSCAPE, n_train=30, n_val=20), llm=lab.Simulated(LANDSCAPE, seed=seed), schedule=schedule,
            staleness=lab.Full(), budget=lab.Budget(metric_calls=500), clock=lab.Virtual(), seed=seed, name=name, folder=folder,
        )  # fmt: skip
        made.wait()
        return made

    return {
        "one by one": [run(f"one-{seed}", lab.Sequential(), seed) for seed in (0, 1)],
        "2×2": run("batched", lab.Batched(2, 2)),
        "8 in flight": run("pipelined", lab.Pipelined(8)),
    }


def test_runs_of_one_label_are_its_seeds(runs):
    comparison = lab.compare(runs)
    assert list(comparison.runs) == ["one by one #1", "one by one #2", "2×2", "8 in flight"]
    assert list(comparison.table().index) == list(comparison.runs)
    assert [len(group) for group in comparison.groups.values()] == [2, 1, 1]


@pytest.mark.parametrize("wrong", [{}, {"a": 1}, {"a": []}, {"a": "run"}, [1], None])
def test_anything_but_runs_under_labels_is_refused(wrong):
    with pytest.raises(lab.SetupError, match="label → run"):
        lab.compare(wrong)


def test_rates_are_those_of_the_table(runs):
    comparison = lab.compare(runs)
    bars = {bar.label: bar.rate for bar in comparison.rates().info.bars}
    table = comparison.table()["accepted/min"]
    assert bars["8 in flight"].mean == pytest.approx(table["8 in flight"], abs=0.01)
    assert list(bars["one by one"].values) == pytest.approx([table["one by one #1"], table["one by one #2"]], abs=0.01)


def test_gaps_of_every_verdict_are_drawn_and_one_by_one_nothing_is_stale(runs):
    info = lab.compare(runs).gaps().info
    alone, _, pipelined = info.panels
    assert alone.note == "No work went stale in 2 runs"
    assert pipelined.total == len(runs["8 in flight"].frame("staleness")) > 0
    assert runs["8 in flight"].figures.gaps().info.panels[0].total == pipelined.total
    assert runs["one by one"][0].figures.gaps().info.empty.startswith("No work went stale")


def test_timelines_stand_one_above_the_other(runs, tmp_path):
    figure = lab.compare({"sync": runs["one by one"][0], "async": runs["8 in flight"]}).gantt(end=20)
    assert [panel.label for panel in figure.info.panels] == ["sync", "async"]
    jobs = [{bar.span.job for bar in panel.gantt.bars} for panel in figure.info.panels]
    assert len(jobs[1]) > 2 * len(jobs[0]) > 0
    assert figure.export(tmp_path / "pair.pdf", width="page").stat().st_size > 5_000


def test_runtime_is_estimated_from_the_runs_one_by_one(runs):
    figure = lab.compare(runs).runtime(workers=32)
    assert "V = 20, W = 32" in figure.info.given and not figure.info.empty
    measured = {point.label: point.speedup.mean for point in figure.info.measured}
    assert measured["one by one"] == pytest.approx(1.0, rel=0.2)
    assert 1.2 < measured["2×2"] < 4 < measured["8 in flight"]
