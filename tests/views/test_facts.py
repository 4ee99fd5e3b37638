"""Settings in words."""

import doctest

from flashevolve_lab.core import events as ev
from flashevolve_lab.views import RunFacts, facts, worded


def test_a_policy_is_worded_as_the_call_that_makes_it():
    assert worded({"name": "Guarded", "max_gap": 8, "beyond": "discard"}) == "Guarded(max_gap=8, beyond='discard')"
    assert worded({"name": "Full"}) == "Full()"


def test_other_settings_are_worded_plainly():
    assert [worded(value) for value in (None, {}, 4, {"gate": 2})] == ["none", "none", "4", "gate=2"]


def test_what_a_proposer_says_about_itself_is_a_fact():
    def proposer(algorithm):
        return RunFacts.of(ev.RunStarted("r", "", 0, "wall", algorithm, (), {}, {}, {}, {})).proposer

    assert proposer({"name": "GEPA", "proposer": {"name": "InstructionBank", "label": "from a shipped bank"}}) == "from a shipped bank"
    assert [proposer({}), proposer({"proposer": "Reflect"}), proposer({"proposer": {"name": "Reflect"}})] == ["", "", ""]


def test_the_examples_in_its_docstrings_hold():
    assert doctest.testmod(facts).failed == 0
