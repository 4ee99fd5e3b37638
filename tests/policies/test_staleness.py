"""What to do with a stale item."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flashevolve_lab.core import StaleItem, Staleness, Verdict
from flashevolve_lab.errors import SetupError
from flashevolve_lab.policies import STALENESS, Full, Guarded
from flashevolve_lab.testing import staleness_contract
from flashevolve_lab.testing.contracts import stale_items

ITEM = StaleItem(
    item="p1", kind="proposal", where="dequeue", gap=3, touched=True, superseded=False, updates=0, gain=1.0, parent_score=0.4,
    best_score=0.5, score=None, base=2, version=5,
)  # fmt: skip


@pytest.mark.parametrize("policy", [Full(), Guarded(), Guarded(0), Guarded(0, beyond="update"), Guarded(2, paper=True)])
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
