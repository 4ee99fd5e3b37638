"""Merge: two front artifacts with a common ancestor become one, component by component; nothing is run twice, and it is counted apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashevolve_lab as lab
from flashevolve_lab.algorithms import merging
from flashevolve_lab.algorithms.merging import united
from flashevolve_lab.core import RunState, apply, check
from flashevolve_lab.core import events as ev
from flashevolve_lab.core.population import Member
from flashevolve_lab.errors import SetupError

WORLD = lab.ConflictingRules(n_rules=24, p_improve=0.7)
N_VAL = 24


async def both(components: Mapping[str, str], example: Mapping[str, Any], llm: Any) -> str:
    """A program whose two components together are the instruction."""
    reply = await llm.complete(example["input"], system="\n".join(components.values()), max_tokens=50)
    return str(reply.text)


@lab.quick
def metric(example: Mapping[str, Any], output: object) -> tuple[float, str]:
    return WORLD.metric(example, output)


def task(**more: Any) -> lab.Task:
    seed = {"rules": WORLD.seed_prompt, "manners": WORLD.seed_prompt + " Be brief."}
    parts: dict[str, Any] = {"train": WORLD.examples(24), "val": WORLD.examples(N_VAL, 24), "seed": seed, "program": both}
    return lab.Task(**{**parts, "metric": metric, "name": "two", **more})


def started(folder: Path, merge: lab.Merge | None, *, budget: Any = 3_000, **more: Any) -> lab.Run:
    wanted: dict[str, Any] = {"schedule": lab.Pipelined(4), "staleness": lab.Full(), "clock": lab.Virtual(), **more}
    return lab.start(
        task(), lab.GEPA(merge=merge), llm=lab.Simulated(WORLD), budget=lab.Budget(metric_calls=budget), folder=folder, **wanted
    )


def ended(folder: Path, merge: lab.Merge | None, **more: Any) -> lab.Run:
    run = started(folder, merge, **more)
    run.wait(60)
    return run


def of(run: lab.Run, kind: type) -> list[Any]:
    return [entry.event for entry in run.entries if isinstance(entry.event, kind)]


def merges(run: lab.Run) -> list[ev.ItemMade]:
    return [e for e in of(run, ev.ItemMade) if e.kind == "merge"]


# --- of what --------------------------------------------------------------------------------------------------------------

TEXTS = st.sampled_from("abc")
PROGRAMS = st.lists(st.tuples(TEXTS, TEXTS, TEXTS), min_size=1, max_size=5)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(PROGRAMS)
def test_each_component_is_taken_as_gepa_takes_it(rows: list[tuple[str, str, str]]) -> None:
    gepa_merge = pytest.importorskip("gepa.proposer.merge", reason="compares with the public package")
    ancestor, better, other = ({f"c{i}": row[who] for i, row in enumerate(rows)} for who in range(3))
    theirs = gepa_merge.sample_and_attempt_merge_programs_by_common_predictors(
        [0.1, 0.9, 0.5], Random(0), [1, 2], ([], []), [ancestor, better, other], [[None], [0], [0]]
    )
    useful = merging._complementary(ancestor, better, other)
    assert useful == (theirs is not None)
    if theirs is not None:
        assert united(ancestor, better, other) == theirs[0]


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=20), st.integers(1, 9), st.integers(0, 99))
def test_the_subsample_is_of_examples_both_know_and_as_large_as_there_are(
    scores: list[tuple[bool, bool]], size: int, seed: int
) -> None:
    one, two = (
        Member(f"a{who}", who, 0, (), "", {e: float(row[who]) for e, row in enumerate(scores)}, 0.0, 1.0) for who in (0, 1)
    )
    chosen = merging._subsample(one, two, size, Random(seed))
    assert len(chosen) == len(set(chosen)) == min(size, len(scores)) and set(chosen) <= set(range(len(scores)))
    ahead = [e for e, row in enumerate(scores) if row[0] > row[1]]
    assert not ahead or set(chosen) & set(ahead), "one on which the first is better is among them"


# --- in a run -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [lab.Sequential(), lab.Batched(2, 2), lab.Pipelined(6)], ids=repr)
def test_merges_happen_are_bounded_and_are_no_proposals(schedule: Any, tmp_path: Path) -> None:
    run = ended(tmp_path, lab.Merge(most=4), schedule=schedule)
    made = merges(run)
    assert 1 <= len(made) <= 4
    first = {e.item for e in of(run, ev.Gated) if e.first}
    assert run.status.proposals == len(first) and not first & {e.item for e in made}
    assert Counter(e.origin for e in of(run, ev.ArtifactMade))["merge"] == len(made)


def test_under_a_sequential_schedule_a_merge_takes_its_turn_alone(tmp_path: Path) -> None:
    run = ended(tmp_path, lab.Merge(), schedule=lab.Sequential())
    state, most = RunState(), 0
    for entry in run.entries:
        apply(state, entry)
        check(state) if isinstance(entry.event, ev.ItemEnded) else None
        most = max(most, len(state.items))
    assert merges(run) and most == 1


def test_a_merged_text_has_two_parents_a_common_ancestor_and_a_text_of_its_own(tmp_path: Path) -> None:
    run = ended(tmp_path, lab.Merge(most=8))
    artifacts = {e.artifact: e for e in of(run, ev.ArtifactMade)}
    made = [e for e in artifacts.values() if e.origin == "merge"]
    hashes = [e.hash for e in artifacts.values()]
    assert made and len({frozenset(e.parents) for e in made}) == len(made)
    for text in made:
        one, two = (artifacts[id].components for id in text.parents)
        assert hashes.count(text.hash) == 1
        assert all(part in (one[name], two[name]) for name, part in text.components.items())
        assert text.components not in (one, two)
    nodes = {e.artifact for e in of(run, ev.Committed)} & {e.artifact for e in made}
    assert nodes, "some are committed"


def test_the_subsample_counts_toward_the_validation_and_nothing_is_run_twice(tmp_path: Path) -> None:
    run = ended(tmp_path, lab.Merge(most=8, subsample=6))
    scored = [(e.artifact, e.example) for e in of(run, ev.SampleScored) if e.split == "val"]
    assert len(scored) == len(set(scored))
    gates = {e.item: e for e in of(run, ev.Gated)}
    passed = 0
    for made in merges(run):
        on_gate = [e for e in made.data["subsample"] if (made.data["child"], e) in scored]
        assert len(on_gate) == 6
        child = [example for artifact, example in scored if artifact == made.data["child"]]
        verdict = gates[made.item]
        assert verdict.passed == (verdict.child_sum >= verdict.parent_sum) and "validation examples" in verdict.reason
        assert len(child) in ((N_VAL, 6) if verdict.passed else (6,))
        passed += verdict.passed
    assert passed


def test_the_same_seed_gives_the_same_merges_and_a_resume_goes_on_with_them(tmp_path: Path) -> None:
    whole = ended(tmp_path / "a", lab.Merge(most=5))
    run = started(tmp_path / "b", lab.Merge(most=5), budget=500)
    run.wait(60)
    assert [e.data for e in merges(run)] == [e.data for e in merges(whole)][: len(merges(run))]
    more = lab.resume(run.path, task=task(), llm=lab.Simulated(WORLD), clock=lab.Virtual(), budget=lab.Budget(metric_calls=3_000))
    more.wait(60)
    assert 1 <= len(merges(more)) <= 5 and more.status.spent["metric_calls"] <= 3_000


@pytest.mark.parametrize("staleness", [lab.Guarded(0, beyond="update"), lab.Guarded(0), lab.Reflective(min_gap=1)], ids=repr)
def test_a_stale_merge_is_judged_like_any_other(staleness: Any, tmp_path: Path) -> None:
    run = ended(tmp_path, lab.Merge(most=8), staleness=staleness, schedule=lab.Pipelined(8))
    state = RunState()
    for entry in run.entries:
        apply(state, entry)
    check(state)
    assert merges(run) and not state.items


def test_without_merge_nothing_is_said_of_it(tmp_path: Path) -> None:
    run = ended(tmp_path, None)
    assert not merges(run) and "merge" not in of(run, ev.RunStarted)[0].algorithm


def test_a_task_of_one_component_is_told_what_else_there_is() -> None:
    with pytest.raises(SetupError, match="one component 'prompt'.*Reflective"):
        lab.GEPA(merge=lab.Merge()).bind(lab.simulated_task(WORLD, 12, 6), 0)


@pytest.mark.parametrize("nonsense", [lambda: lab.Merge(most=0), lambda: lab.Merge(subsample=True), lambda: lab.GEPA(merge=5)])
def test_nonsense_is_refused(nonsense: Any) -> None:
    with pytest.raises(SetupError, match="expected"):
        nonsense()
