"""What to do with a stale item."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashevolve_lab.core import StaleItem, Staleness, Verdict
from flashevolve_lab.errors import SetupError
from flashevolve_lab.policies import STALENESS, Full, Guarded, Policies, Reflective, describe
from flashevolve_lab.testing import staleness_contract
from flashevolve_lab.testing.contracts import stale_items

ITEM = StaleItem(
    item="p1", kind="proposal", where="dequeue", gap=3, touched=True, superseded=False, updates=0, gain=1.0, parent_score=0.4,
    best_score=0.5, score=None, base=2, version=5,
)  # fmt: skip


@pytest.mark.parametrize(
    "policy", [Full(), Guarded(), Guarded(0), Guarded(0, beyond="update"), Guarded(2, paper=True), Reflective(), Reflective(onto="best", busy=0.5)],
)
def test_every_built_in_policy_keeps_the_contract(policy: Staleness) -> None:
    staleness_contract(policy)


def test_every_built_in_policy_is_listed_beside_its_class() -> None:
    assert {"Full": Full, "Guarded": Guarded}.items() <= STALENESS.items()
    assert all(cls.__name__ == name for name, cls in STALENESS.items())


def test_full_accepts_everything() -> None:
    assert {Full().judge(item).action for item in stale_items()} == {"accept"}


@pytest.mark.parametrize(("gap", "action"), [(1, "accept"), (8, "accept"), (9, "discard"), (100, "discard")])
def test_guarded_accepts_up_to_its_gap_and_discards_beyond(gap: int, action: str) -> None:
    assert Guarded(8).judge(replace(ITEM, gap=gap)).action == action


def test_guarded_updates_beyond_its_gap_when_told_so() -> None:
    assert Guarded(2, beyond="update").judge(ITEM) == Verdict("update", "gap 3 is beyond 2")


@pytest.mark.parametrize(
    ("paper", "superseded", "action"), [(False, False, "accept"), (False, True, "discard"), (True, False, "discard")]
)
def test_guarded_at_commit_discards_only_the_superseded_or_by_the_papers_rule(
    paper: bool, superseded: bool, action: str
) -> None:
    item = replace(ITEM, where="commit", score=0.6, superseded=superseded)
    assert Guarded(2, paper=paper).judge(item).action == action
    assert Guarded(2, beyond="update", paper=paper).judge(item).action == action
    assert Guarded(3, paper=paper).judge(item).action == "accept"


def test_guarded_names_the_gap_and_its_limit_in_the_reason() -> None:
    for item in stale_items():
        reason = Guarded(8).judge(item).reason
        assert f"gap {item.gap}" in reason and "8" in reason


@pytest.mark.parametrize("bad", [-1, 1.5, True, "8", None])
def test_a_gap_that_is_no_integer_of_at_least_zero_is_refused(bad: Any) -> None:
    with pytest.raises(SetupError, match=r"Guarded\(max_gap=…\).*at least 0"):
        Guarded(bad)


def test_an_unknown_way_beyond_the_gap_is_refused() -> None:
    with pytest.raises(SetupError, match="'discard' or 'update'"):
        Guarded(beyond="ignore")  # type: ignore[arg-type]


def test_the_contract_catches_a_policy_without_a_reason_and_one_of_moods() -> None:
    class Silent:
        def judge(self, item: StaleItem) -> Verdict:
            return Verdict("accept", " ")

    class Moody:
        said = 0

        def judge(self, item: StaleItem) -> Verdict:
            Moody.said += 1
            return Verdict("accept" if Moody.said % 2 else "discard", "a mood")

    with pytest.raises(AssertionError, match="reason in words"):
        staleness_contract(Silent())
    with pytest.raises(AssertionError, match="same verdict"):
        staleness_contract(Moody())


def test_reflective_onto_the_best_spares_only_what_was_made_from_the_best() -> None:
    item, policy = replace(ITEM, parent="a1", best="a7", touched=False), Reflective(onto="best")
    assert policy.judge(item) == Verdict("patch", "gap 3: a model reads it against the best, a7, and what was committed since", "best")
    assert policy.judge(replace(item, parent="a7", touched=True)).action == "accept"
    assert Reflective(onto="counterpart").judge(item).action == "accept", "its own counterpart has not changed"
    assert Reflective(onto="best", untouched=False).judge(replace(item, parent="a7")).action == "patch"


@pytest.mark.parametrize(("load", "action"), [(0.89, "patch"), (0.95, "discard"), (1.0, "discard")])
def test_reflective_prefers_something_cheaper_when_the_server_is_saturated_and_says_the_load(load: float, action: str) -> None:
    verdict = Reflective(busy=0.9, saturated="discard").judge(replace(ITEM, load=load))
    assert verdict.action == action
    assert (f"{load:.0%} of the calls it is given are in flight" in verdict.reason) == (action == "discard")


def test_reflective_patches_at_any_load_by_default() -> None:
    assert Reflective().judge(replace(ITEM, load=1.0)).action == "patch"


@pytest.mark.parametrize("bad", [{"batch": 0}, {"batch": 2.5}, {"busy": 0}, {"busy": 1.5}, {"busy": True}, {"onto": "front"}])
def test_a_reflective_with_a_field_out_of_range_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match=rf"Reflective\({next(iter(bad))}=…\): expected"):
        Reflective(**bad)


def test_a_log_from_before_batches_means_one_at_a_time_for_the_counterpart() -> None:
    old = {"name": "Reflective", "min_gap": 1, "untouched": True, "saturated": "update", "queue": 8}
    assert Policies()(old) == Reflective(onto="counterpart", batch=1, queue=8)
    assert Policies()(describe(Reflective(batch=2))) == Reflective(batch=2)
