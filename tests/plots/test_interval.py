"""A mean over seeds and its interval."""

import pytest

from flashevolve_lab.plots.interval import estimate, seeds_note, t_975


def test_the_interval_is_students():
    got = estimate([1.0, 2.0, 3.0])
    assert (got.mean, got.low, got.high) == (2.0, pytest.approx(2 - 4.303 / 3**0.5), pytest.approx(2 + 4.303 / 3**0.5))


def test_one_run_has_no_interval():
    got = estimate([2.5])
    assert (got.low, got.mean, got.high, got.words) == (2.5, 2.5, 2.5, "2.5")


def test_a_rate_is_never_below_nothing():
    assert estimate([0.0, 10.0], least=0.0).low == 0.0


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.706), (30, 2.042), (31, 2.0395), (60, 2.0003), (10_000, 1.9602)])
def test_quantiles_of_t(freedom, quantile):
    assert t_975(freedom) == pytest.approx(quantile, abs=1e-3)


def test_the_note_says_how_many_runs():
    assert seeds_note([estimate([1.0])]) == seeds_note([]) == ""
    assert seeds_note([estimate([1.0, 2.0]), estimate([1.0, 2.0, 3.0])]) == "mean of 2 to 3 runs, 95% t-interval"
