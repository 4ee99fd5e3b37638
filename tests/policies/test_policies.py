"""How a policy is written into a log, and read back."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from flashevolve_lab.core import StaleItem, Verdict
from flashevolve_lab.errors import SetupError
from flashevolve_lab.policies import BUILT_IN, Batched, Full, Guarded, Pipelined, Policies, Sequential, describe

BUILT = [Sequential(), Batched(2, 4), Pipelined(7), Full(), Guarded(3, beyond="update", paper=True)]


@dataclass(frozen=True)
class Mine:
    """A user's own."""

    limit: int = 3

    def judge(self, item: StaleItem) -> Verdict:
        return Verdict("accept" if item.gap < self.limit else "discard", "mine")


@pytest.mark.parametrize("policy", BUILT, ids=repr)
def test_a_built_in_policy_comes_back_from_its_description_alone(policy: object) -> None:
    described = json.loads(json.dumps(describe(policy)))
    assert Policies()(described) == policy


def test_every_built_in_policy_can_be_described_and_read_back_with_its_defaults() -> None:
    for cls in BUILT_IN.values():
        assert Policies()(describe(cls())) == cls()


def test_a_policy_of_the_users_own_needs_to_be_given_again_after_a_restart() -> None:
    policies = Policies()
    described = policies.live(Mine(5))
    assert policies(json.loads(json.dumps(described))) == Mine(5)
    with pytest.raises(SetupError, match="not built in.*pass the object itself again"):
        Policies()(described)


def cell(body: str) -> object:
    """A policy as a notebook cell defines it."""
    names: dict[str, Any] = {}
    exec(f"class Cell:\n    def judge(self, item):\n        return {body}\n    @property\n    def depth(self): return 3", names)
    return names["Cell"]()


@pytest.mark.parametrize("body", ["item.gap > 3", "item.touched", "[x for x in item.why if x]", "item.kind in {'a', 'b', 'c'}"])
def test_the_same_cell_run_again_is_the_same_policy(body: str) -> None:
    assert describe(cell(body)) == describe(cell(body))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("item.gap > 3", "item.gap > 4"),
        ("item.touched", "item.superseded"),
        ("item.gap > 3", "item.gap < 3"),
        ("[x for x in item.why if x]", "[x for x in item.why if not x]"),
    ],
)
def test_an_edited_policy_has_another_description(before: str, after: str) -> None:
    assert describe(cell(before)) != describe(cell(after))


def test_the_description_of_a_cells_policy_is_the_same_in_every_process() -> None:
    program = (
        "from flashevolve_lab.policies import describe\n"
        "class Cell:\n"
        "    def judge(self, item): return [x for x in item.why if x in {'a', 'b', 'c', 'd'}]\n"
        "print(describe(Cell())['code'])"
    )
    codes = {
        subprocess.run([sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True).stdout
        for seed in ("1", "2")
    }
    assert len(codes) == 1 and "" not in codes


def test_two_settings_of_one_policy_have_two_descriptions() -> None:
    policies = Policies()
    three, five = policies.live(Mine(3)), policies.live(Mine(5))
    assert three != five
    assert (policies(three), policies(five)) == (Mine(3), Mine(5))


@dataclass(frozen=True)
class Fitted:
    """A user's own, with a field that JSON does not have."""

    what: Any

    def judge(self, item: StaleItem) -> Verdict:
        return Verdict("accept", str(self.what))


class Plain:
    """A user's own that is no dataclass."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def judge(self, item: StaleItem) -> Verdict:
        return Verdict("accept", str(self.limit))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Fitted((1, 2)), Fitted((1, 3))),
        (Fitted([0.5] * 1000), Fitted([0.5] * 999 + [0.6])),
        (Fitted({"a": 1}), Fitted({"a": 2})),
        (Fitted(frozenset("ab")), Fitted(frozenset("ac"))),
        (Fitted(lambda gap: gap > 3), Fitted(lambda gap: gap > 4)),
        (Fitted(Guarded(3)), Fitted(Guarded(4))),
        (Plain(3), Plain(4)),
    ],
)
def test_two_policies_that_differ_in_any_field_have_two_descriptions_that_the_log_can_hold(one: Any, other: Any) -> None:
    policies = Policies()
    first, second = policies.live(one), policies.live(other)
    assert first != second
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    assert (policies(first), policies(second)) == (one, other)
    assert len(json.dumps(first)) < 2000


def test_equal_fields_have_equal_descriptions_whatever_the_order_of_a_set() -> None:
    assert describe(Fitted({"a", "b", "c", "d"})) == describe(Fitted({"d", "c", "b", "a"}))
    assert describe(Fitted(lambda gap: gap > 3)) == describe(Fitted(lambda gap: gap > 3))


def test_asking_many_times_gives_the_same_object() -> None:
    policies = Policies()
    described = describe(Guarded(2))
    assert policies(described) is policies(described)
    assert policies(dict(described)) is policies(described)


def test_a_schedule_of_ones_own_is_recorded_with_its_depth() -> None:
    class Mine:
        @property
        def depth(self) -> int:
            return 32

    assert describe(Mine())["depth"] == 32
