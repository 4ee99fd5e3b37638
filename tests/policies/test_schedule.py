"""When a new proposal may start."""

from __future__ import annotations

from typing import Any

import pytest

from flashevolve_lab.core import Pace, Schedule, Starts
from flashevolve_lab.errors import SetupError
from flashevolve_lab.policies import SCHEDULES, Batched, Pipelined, Sequential
from flashevolve_lab.testing import schedule_contract


@pytest.mark.parametrize(
    "schedule", [Sequential(), Batched(), Batched(1, 1), Batched(8, 2), Pipelined(1), Pipelined(), Pipelined(500)]
)
def test_every_built_in_schedule_keeps_the_contract(schedule: Schedule) -> None:
    schedule_contract(schedule)


def test_every_built_in_schedule_is_tested_above_and_listed_beside_its_class() -> None:
    assert {name: cls.__name__ for name, cls in SCHEDULES.items()} == {n: n for n in ("Sequential", "Batched", "Pipelined")}


def test_sequential_starts_one_when_nothing_is_in_flight() -> None:
    assert [Sequential().admits(Pace(n, 3)).count for n in (0, 1, 2)] == [1, 0, 0]


def test_batched_starts_p_times_n_together_each_parent_n_times_only_when_all_have_settled() -> None:
    assert Batched(3, 4).admits(Pace(0, 3)) == Starts(12, per_parent=4, together=True)
    assert Batched(3, 4).admits(Pace(1, 3)).count == 0


def test_pipelined_starts_as_many_as_are_missing_and_never_a_negative_number() -> None:
    assert [Pipelined(4).admits(Pace(n, 3)).count for n in (0, 3, 4, 9)] == [4, 1, 0, 0]


@pytest.mark.parametrize("bad", [0, -1, 1.5, "4", True, None])
@pytest.mark.parametrize("make", [Pipelined, lambda v: Batched(p=v), lambda v: Batched(n=v)])
def test_a_depth_that_is_no_positive_integer_is_refused(make: Any, bad: Any) -> None:
    with pytest.raises(SetupError, match="integer of at least 1"):
        make(bad)


def test_the_contract_catches_a_schedule_that_admits_more_than_its_depth() -> None:
    class Greedy:
        depth = 2

        def admits(self, pace: Pace) -> Starts:
            return Starts(2)

    with pytest.raises(AssertionError, match="at most 1 may start"):
        schedule_contract(Greedy())


def test_the_contract_catches_a_schedule_that_never_starts() -> None:
    class Lazy:
        depth = 2

        def admits(self, pace: Pace) -> Starts:
            return Starts(0)

    with pytest.raises(AssertionError, match="never goes on"):
        schedule_contract(Lazy())
