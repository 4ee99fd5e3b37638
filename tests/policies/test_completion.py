"""Completion policies: when a partial result goes on, when a hopeless one stops, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flashevolve_lab as lab
from flashevolve_lab.errors import SetupError

ROLLOUT = lab.Partial("rollout", 2, 3, 0.5)
GATE = lab.Partial("gate", 1, 3, 0.0, reach=2 / 3, bar=2 / 3)
VALIDATION = lab.Partial(
    "validate", 25, 100, 0.4, reach=0.85, bar=0.5, parent=0.3, alone=60, prefix=25, prefix_wanted=25,
    parent_so_far=0.3, best_so_far=0.5,
)  # fmt: skip

SHARES = st.floats(0, 1)
PARTIALS = st.builds(
    lab.Partial, st.sampled_from(["rollout", "gate", "validate"]), st.integers(1, 50), st.integers(50, 100), SHARES, SHARES, SHARES,
    SHARES, st.integers(0, 5), st.integers(0, 20), st.integers(0, 20), SHARES, SHARES, st.booleans(), st.booleans(),
)  # fmt: skip


def test_complete_waits_for_everything_unless_told_otherwise() -> None:
    assert lab.Complete().whole
    assert lab.Complete().judge(GATE).action == "wait"
    assert not lab.Complete("front").whole


def test_a_rollout_is_released_after_its_share_unless_there_is_nothing_to_learn_from() -> None:
    policy = lab.Speculative(rollout=0.67)
    assert policy.judge(ROLLOUT).action == "release"
    assert policy.judge(replace(ROLLOUT, scored=1)).action == "wait"
    assert policy.judge(replace(ROLLOUT, flawless=True)).action == "wait"


@pytest.mark.parametrize(("above", "action"), [("parent", "insert"), ("best", "wait")])
def test_a_child_joins_early_when_its_whole_prefix_is_above_the_bar(above: str, action: str) -> None:
    ruling = lab.Speculative(above=above).judge(VALIDATION)  # type: ignore[arg-type]
    assert ruling.action == action
    assert action == "wait" or ("0.400" in ruling.reason and "0.300" in ruling.reason and ruling.rival == above)


@pytest.mark.parametrize(
    "less", [{"prefix": 24}, {"score": 0.3}, {"prefix_wanted": 0, "prefix": 0}, {"provisional": True}], ids=str
)
def test_a_child_does_not_join_early_otherwise(less: dict[str, object]) -> None:
    assert lab.Speculative().judge(replace(VALIDATION, **less)).action == "wait"  # type: ignore[arg-type]


def test_a_gate_that_cannot_pass_stops_and_the_reason_is_a_bound() -> None:
    ruling = lab.Complete("front").judge(GATE)
    assert ruling.action == "stop" and "0.667 at most" in ruling.reason
    assert lab.Complete("front").judge(replace(GATE, bar=0.6)).action == "wait"


def test_a_validation_stops_only_when_it_can_be_neither_best_nor_alone_on_an_example() -> None:
    hopeless = replace(VALIDATION, reach=0.5, bar=0.5, alone=0)
    policy = lab.Complete("front")
    assert policy.judge(hopeless).action == "stop"
    assert policy.judge(replace(hopeless, alone=1)).action == "wait"
    assert policy.judge(replace(hopeless, reach=0.51)).action == "wait"
    assert policy.judge(replace(hopeless, provisional=True)).action == "wait"


def test_the_parent_is_a_bar_that_one_may_choose() -> None:
    below = replace(VALIDATION, reach=0.3, parent=0.3)
    assert lab.Complete("parent").judge(below).action == "stop"
    assert lab.Complete("front").judge(below).action == "wait"


@given(PARTIALS, st.sampled_from(["", "front", "parent"]), st.sampled_from(["parent", "best"]))
def test_nothing_that_can_still_win_is_stopped(partial: lab.Partial, bar: str, above: str) -> None:
    for policy in (lab.Complete(bar), lab.Speculative(proven=bar, above=above)):  # type: ignore[arg-type]
        ruling = policy.judge(partial)
        if ruling.action == "stop":
            assert bar and partial.stage != "rollout" and not partial.provisional
            floor = max(partial.bar, partial.parent) if bar == "parent" else partial.bar
            assert partial.reach <= floor
        assert ruling.action in ("wait", "stop") or isinstance(policy, lab.Speculative)
        assert ruling.action == "wait" or ruling.reason


@pytest.mark.parametrize(
    "bad",
    [
        lambda: lab.Complete(proven="maybe"),  # type: ignore[arg-type]
        lambda: lab.Speculative(rollout=0),
        lambda: lab.Speculative(validation=1.5),
        lambda: lab.Speculative(validation=True),
        lambda: lab.Speculative(rounds=0),
        lambda: lab.Speculative(above="seed"),  # type: ignore[arg-type]
        lambda: lab.Speculative(proven="x"),  # type: ignore[arg-type]
    ],
)
def test_what_makes_no_sense_is_refused(bad: object) -> None:
    with pytest.raises(SetupError, match="expected"):
        bad()  # type: ignore[operator]
