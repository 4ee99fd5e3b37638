"""Text in figures: hostile input is shown literally; what is not the real thing says so."""

from flashevolve_lab.plots.words import escaped, plain, seconds_label, subtitle
from flashevolve_lab.views import RunFacts

REAL = RunFacts(run="r", algorithm="GEPA", task="reviews")
SIMULATED = RunFacts(run="s", algorithm="GEPA", task="rules", clock="virtual", simulated=True)


def test_markup_and_latex_are_shown_as_they_are_written():
    assert escaped("<b>&x</b>") == "&lt;b&gt;&amp;x&lt;/b&gt;"
    assert "$" not in escaped("$x^2$ and $y$")


def test_odd_unicode_becomes_one_valid_line():
    assert plain("a\nb\x00c\u202ed\ud800e") == "a b c d?e"


def test_long_texts_are_cut_before_they_are_escaped():
    assert escaped("<" * 10, limit=4) == "&lt;&lt;&lt;…"


def test_a_simulated_model_is_always_mentioned():
    assert subtitle([SIMULATED]) == "GEPA · rules · simulated model"
    assert subtitle([REAL, SIMULATED]) == "GEPA · simulated model in 1 of 2 runs"
    assert "simulated" not in subtitle([REAL])


def test_seconds_are_plain_only_on_the_wall_clock():
    assert seconds_label([REAL]) == "seconds"
    assert seconds_label([SIMULATED]) == "lab seconds (virtual)"
    assert seconds_label([REAL, RunFacts(clock="scaled")]) == "lab seconds (scaled)"
