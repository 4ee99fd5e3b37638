"""The figures of a run, from its log as it is at the call."""

from flashevolve_lab.core import Entry, Spend
from flashevolve_lab.core import events as ev
from flashevolve_lab.plots import Figures


def log():
    facts = {"algorithm": {"name": "GEPA"}, "task": {"name": "reviews"}, "llm": {"task": {"simulated": True}}}
    started = ev.RunStarted("demo", "", 0, "virtual", stages=("validate",), settings={}, budget={}, **facts)
    told = [
        (0.0, started),
        (0.0, ev.ArtifactMade("a0", {"prompt": "Be good."}, "h0", (), "seed", "", "p0")),
        (0.0, ev.ItemMade("p0", "seed", "validate", 0, 0, {"child": "a0"})),
        (0.0, ev.JobStarted("j0", "validate", 0, "p0", -1, Spend(metric_calls=1))),
        (3.0, ev.SampleScored("j0", "a0", "val", 0, 0.5)),
        (3.0, ev.JobFinished("j0")),
        (3.0, ev.Committed(0, "a0", "p0", 0, {"0": 0.5}, 1)),
        (3.0, ev.ItemEnded("p0", "committed", "version 0", "a0")),
    ]
    return [Entry(seq, at, event) for seq, (at, event) in enumerate(told, start=1)]


def test_figures_are_made_from_the_log_as_it_is_at_the_call():
    entries = log()
    figures = Figures(lambda: entries[:4], "demo")
    assert figures.score().info.empty
    figures = Figures(lambda: entries, "demo")
    assert figures.score("metric_calls").info.lines[0].dot_xs == (1.0,)
    assert [bar.span.job for bar in figures.gantt().info.bars] == ["j0"]


def test_a_figure_knows_up_to_which_entry_it_goes():
    figures = Figures(log, "demo")
    assert figures.score().source.runs == figures.gantt(0, 2).source.runs == (("demo", 8),)


def test_an_empty_log_gives_figures_with_a_sentence(tmp_path):
    figures = Figures(list, "new")
    for figure in (figures.score(), figures.gantt()):
        assert figure.info.empty and figure.export(tmp_path / "figure.svg").stat().st_size > 500


def test_simulated_runs_say_so_in_both_figures():
    figures = Figures(log, "demo")
    for figure in (figures.score(), figures.gantt()):
        assert figure.info.note == "GEPA · reviews · simulated model" and figure.info.x_label == "lab seconds (virtual)"
