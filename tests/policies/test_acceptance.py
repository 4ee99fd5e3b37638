"""When a child passes its gate: three rules, and what becomes of a fourth that fails."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashevolve_lab as lab
from flashevolve_lab.core import Acceptance, Gate
from flashevolve_lab.core import events as ev
from flashevolve_lab.core.gating import ROUNDS
from flashevolve_lab.errors import SetupError
from flashevolve_lab.policies import ACCEPTANCES, Repeated, Strict, Tolerant
from flashevolve_lab.testing import acceptance_contract

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=6).map(tuple)
NOISY = lab.UnitingRules(n_rules=12, noise=0.1)


def gate(*rounds: tuple[list[float], list[float]]) -> Gate:
    """A gate of (parent's scores, child's scores) for each round."""
    return Gate("p1", "proposal", tuple(tuple(p) for p, _ in rounds), tuple(tuple(c) for _, c in rounds))


@pytest.mark.parametrize("policy", [cls() for cls in ACCEPTANCES.values()] + [Tolerant(-1.5), Repeated(3, fresh=False, all=True)])
def test_a_built_in_rule_keeps_the_contract(policy: Any) -> None:
    acceptance_contract(policy)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(parent=SCORES, child=SCORES)
def test_strict_wants_more_and_a_tolerance_of_nothing_wants_as_much(parent: tuple[float, ...], child: tuple[float, ...]) -> None:
    tried = Gate("p1", "proposal", (parent,), (child,))
    assert Strict().judge(tried).passed == (tried.child_sum > tried.parent_sum)
    assert Tolerant(0.0).judge(tried).passed == (tried.child_sum >= tried.parent_sum)
    assert not Strict().judge(tried).passed or Tolerant(0.5).judge(tried).passed


def test_sums_are_exact() -> None:
    tried = gate(([0.3, 0.2, 0.1], [0.1, 0.2, 0.3]))
    assert sum([0.1, 0.2, 0.3]) > sum([0.3, 0.2, 0.1]) and not Strict().judge(tried).passed


@pytest.mark.parametrize(("margin", "child", "passed"), [(1, 1, True), (1, 0, False), (0, 2, True), (-1, 2, False), (-1, 3, True)])
def test_a_margin_lets_worse_children_through_or_asks_for_better_ones(margin: float, child: float, passed: bool) -> None:
    assert Tolerant(margin).judge(gate(([1, 1, 0], [child, 0, 0]))).passed == passed


def test_a_second_look_is_for_those_that_are_ahead_and_the_sums_decide() -> None:
    ahead, behind = ([0, 0, 1], [1, 1, 0]), ([1, 1, 0], [0, 0, 1])
    assert Repeated(2).judge(gate(ahead)).again
    assert Repeated(2).judge(gate(behind)) == Strict().judge(gate(behind))
    assert Repeated(2, all=True).judge(gate(behind)).again
    assert not Repeated(2).judge(gate(ahead, behind)).passed and Repeated(2).judge(gate(ahead, ahead)).passed


@pytest.mark.parametrize("make", [lambda: Tolerant(float("nan")), lambda: Tolerant("1"), lambda: Repeated(1), lambda: Repeated(9)])
def test_nonsense_is_refused(make: Any) -> None:
    with pytest.raises(SetupError, match="expected"):
        make()


# --- in a run -------------------------------------------------------------------------------------------------------------


def started(folder: Path, policy: Any = None, *, task: lab.Task | None = None, budget: int = 900, **more: Any) -> lab.Run:
    given: dict[str, Any] = {"llm": lab.Simulated(NOISY), "clock": lab.Virtual(), "schedule": lab.Pipelined(4), **more}
    task = task or lab.simulated_task(NOISY, 24, 12)
    return lab.start(task, acceptance=policy, budget=lab.Budget(metric_calls=budget), folder=folder, **given)


def of(run: lab.Run, kind: type) -> list[Any]:
    return [entry.event for entry in run.entries if isinstance(entry.event, kind)]


def samples_of_gates(run: lab.Run) -> dict[str, list[ev.SampleScored]]:
    """Item → the train samples its gate jobs scored."""
    gates = {e.job: e.item for e in of(run, ev.JobStarted) if e.stage == "gate"}
    found: dict[str, list[ev.SampleScored]] = {}
    for sample in of(run, ev.SampleScored):
        if sample.job in gates:
            found.setdefault(gates[sample.job], []).append(sample)
    return found


@pytest.mark.parametrize("policy", [Tolerant(0), Repeated(2), Repeated(3, fresh=False), Repeated(2, all=True)], ids=repr)
def test_a_run_keeps_its_budget_says_each_reason_and_ends(policy: Any, tmp_path: Path) -> None:
    run = started(tmp_path, policy)
    ended = run.wait(60)
    assert ended.kind in ("budget", "done") and ended.spent["metric_calls"] <= 900
    gated = of(run, ev.Gated)
    assert len(gated) > 10 and all(e.reason for e in gated) and any(e.passed for e in gated)
    assert of(run, ev.RunStarted)[0].settings["acceptance"]["name"] == type(policy).__name__
    assert len({e.item for e in gated if e.first}) == ended.proposals, "a proposal counts once, with its verdict"


def test_a_repeat_on_the_same_examples_really_runs_both_again(tmp_path: Path) -> None:
    run = started(tmp_path, Repeated(2, fresh=False))
    run.wait(60)
    made = {e.item: e.data for e in of(run, ev.ItemMade)}
    twice = [item for item, samples in samples_of_gates(run).items() if len(samples) == 9]
    assert twice, "some were ahead"
    for item in twice:
        samples = samples_of_gates(run)[item]
        assert {s.example for s in samples} == set(made[item]["minibatch"])
        assert [s.artifact for s in samples].count(made[item]["parent"]) == 3


def test_a_further_round_is_on_fresh_examples_of_which_none_is_run_twice(tmp_path: Path) -> None:
    run = started(tmp_path, Repeated(3))
    run.wait(60)
    made = {e.item: e.data for e in of(run, ev.ItemMade)}
    further = 0
    for item, samples in samples_of_gates(run).items():
        own = [s.example for s in samples if s.artifact != made[item]["parent"]]
        assert len(own) == len(set(own)) and len(own) <= 9
        further += len(own) > 3
    assert further
    train = [(s.artifact, s.example) for s in of(run, ev.SampleScored) if s.split == "train"]
    together = [pair for pair in train if train.count(pair) > 1]
    assert len(together) <= len(train) / 10, "only two items that ran the same parent at the same time"


def test_where_the_train_set_is_used_up_a_further_round_repeats_the_minibatch(tmp_path: Path) -> None:
    run = started(tmp_path, Repeated(4), task=lab.simulated_task(NOISY, 3, 12), schedule=lab.Sequential())
    assert run.wait(60).proposals > 3


def test_the_rule_changes_mid_run_and_is_in_the_log(tmp_path: Path) -> None:
    run = started(tmp_path, paused=True)
    run.set(acceptance=Repeated(2), why="it is noisy")
    run.resume()
    run.wait(60)
    changed = of(run, ev.SettingChanged)
    assert [(e.knob, e.old["name"], e.new["name"]) for e in changed] == [("acceptance", "Strict", "Repeated")]
    assert "over 2 rounds" in " ".join(e.reason for e in of(run, ev.Gated))


@dataclass(frozen=True)
class Mine:
    """A rule from a notebook cell."""

    least: float = 1.0

    def judge(self, gate: Gate) -> Acceptance:
        return Acceptance(gate.child_sum >= self.least, f"mine: {gate.child_sum:g}")


@dataclass(frozen=True)
class Endless:
    """A rule that never decides."""

    def judge(self, gate: Gate) -> Acceptance:
        return Acceptance(False, "hmm", again=True, fresh=False)


@dataclass(frozen=True)
class Broken:
    """A rule that fails."""

    def judge(self, gate: Gate) -> Acceptance:
        return 1 / 0  # type: ignore[return-value]


def test_a_rule_of_ones_own_decides_and_must_be_given_again_to_a_resume(tmp_path: Path) -> None:
    run = started(tmp_path, Mine())
    run.wait(60)
    assert all(e.reason.startswith("mine: ") and e.passed == (e.child_sum >= 1) for e in of(run, ev.Gated))
    again: dict[str, Any] = {"task": lab.simulated_task(NOISY, 24, 12), "llm": lab.Simulated(NOISY), "clock": lab.Virtual()}
    with pytest.raises(SetupError, match="not built in"):
        lab.resume(run.path, budget=lab.Budget(metric_calls=1_200), **again)
    more = lab.resume(run.path, budget=lab.Budget(metric_calls=1_200), acceptance=Mine(), **again)
    assert more.wait(60).proposals > len(of(run, ev.Gated)) / 2


def test_a_rule_that_fails_is_said_once_and_falls_back_to_strict(tmp_path: Path) -> None:
    run = started(tmp_path, Broken())
    run.wait(60)
    gated, warned = of(run, ev.Gated), [e for e in of(run, ev.Warned) if e.kind == "acceptance"]
    assert len(warned) == 1 and "ZeroDivisionError" in warned[0].message
    assert len(gated) > 10 and all(e.passed == (e.child_sum > e.parent_sum) for e in gated)


def test_a_rule_that_never_decides_is_decided_strictly(tmp_path: Path) -> None:
    run = started(tmp_path, Endless(), budget=400)
    run.wait(60)
    assert all(e.reason.startswith(f"decided after {ROUNDS} rounds") for e in of(run, ev.Gated)) and of(run, ev.Gated)
