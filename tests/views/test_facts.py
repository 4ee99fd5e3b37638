"""Settings in words."""

import doctest

from flashevolve_lab.views import facts, worded


def test_a_policy_is_worded_as_the_call_that_makes_it():
    assert worded({"name": "Guarded", "max_gap": 8, "beyond": "discard"}) == "Guarded(max_gap=8, beyond='discard')"
    assert worded({"name": "Full"}) == "Full()"


def test_other_settings_are_worded_plainly():
    assert [worded(value) for value in (None, {}, 4, {"gate": 2})] == ["none", "none", "4", "gate=2"]


def test_the_examples_in_its_docstrings_hold():
    assert doctest.testmod(facts).failed == 0
