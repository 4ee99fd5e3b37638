"""The pool: GEPA's front, its odds, gaps, and the cost of keeping them."""

from __future__ import annotations

from collections import Counter
from collections.abc import ItemsView, Mapping
from random import Random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from flashevolve_lab.core import Member, Population

Pool = list[dict[int, float]]


def member(version: int, scores: Mapping[int, float], *, batch: int | None = None, parents: tuple[str, ...] = ()) -> Member:
    """A member named after its version."""
    mean = sum(scores.values()) / len(scores) if scores else 0.0
    return Member(f"a{version}", version, version if batch is None else batch, parents, "prompt", scores, mean, 1.0)


def pool_of(*rows: Mapping[int, float]) -> Population:
    """A pool with these members, in order."""
    pool = Population()
    for version, scores in enumerate(rows):
        pool.add(member(version, scores))
    return pool


def slow_front(rows: Pool) -> dict[str, set[int]]:
    """GEPA's rule, literally: who is best where, then prune by repeated search for somebody whom the others cover.

    Candidates are looked at from the weakest mean; equals in the order in which they turn up when the instances are gone
    through one by one. After each removal the search starts again.
    """
    instances = sorted({example for scores in rows for example in scores})
    best = {i: max(scores[i] for scores in rows if i in scores) for i in instances}
    fronts = {i: [v for v, scores in enumerate(rows) if scores.get(i) == best[i]] for i in instances}
    seen = list(dict.fromkeys(v for i in instances for v in fronts[i]))
    seen.sort(key=lambda v: sum(rows[v].values()) / len(rows[v]))
    gone: set[int] = set()
    searching = True
    while searching:
        searching = False
        for v in seen:
            others = set(seen) - gone - {v}
            if v not in gone and all(others & set(front) for front in fronts.values() if v in front):
                gone.add(v)
                searching = True
                break
    kept = [v for v in sorted(seen) if v not in gone]
    return {f"a{v}": {i for i in instances if v in fronts[i]} for v in kept}


def bits(mask: int) -> set[int]:
    """The instances of a mask."""
    return {i for i in range(mask.bit_length()) if mask >> i & 1}


SCORES = st.sampled_from([0.0, 0.25, 0.5, 1.0])  # few values: many ties
ROWS = st.integers(1, 7).flatmap(
    lambda n: st.lists(st.dictionaries(st.integers(0, n - 1), SCORES, min_size=1), min_size=1, max_size=9)
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(ROWS)
@example(
    [{0: 0.0, 1: 1.0, 2: 1.0}, {0: 1.0, 1: 0.0, 2: 1.0}, {0: 1.0, 1: 1.0, 2: 0.5}]
)  # equal means: who is pruned first matters
def test_the_front_is_what_gepas_pruning_leaves(rows: Pool) -> None:
    front = pool_of(*rows).front()
    assert {id: bits(mask) for id, mask in front.items()} == slow_front(rows)


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(ROWS)
def test_the_front_covers_every_instance_and_asking_between_commits_changes_nothing(rows: Pool) -> None:
    asked = Population()
    for version, scores in enumerate(rows):
        asked.add(member(version, scores))
        asked.front()
    assert asked.front() == pool_of(*rows).front()
    assert set().union(*map(bits, asked.front().values())) == {example for scores in rows for example in scores}


def test_selection_is_proportional_to_the_instances_won() -> None:
    pool = pool_of({0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0}, {0: 0.0, 1: 1.0, 2: 1.0, 3: 1.0}, {0: 0.5, 1: 0.5, 2: 0.5, 3: 0.5})
    weights: list[Any] = []

    class Spy(Random):
        def choices(self, population: Any, weights_: Any = None, *, cum_weights: Any = None, k: int = 1) -> list[Any]:
            weights.append(dict(zip(population, weights_, strict=True)))
            return super().choices(population, weights_, cum_weights=cum_weights, k=k)

    pool.choose(Spy(0))
    assert weights == [{"a0": 1, "a1": 3}]
    drawn = Counter(pool.choose(Random(i)) for i in range(2000))
    assert drawn["a2"] == 0
    assert 0.70 < drawn["a1"] / 2000 < 0.80


def test_a_tie_is_won_by_all_who_hold_it() -> None:
    pool = pool_of({0: 1.0, 1: 1.0}, {0: 1.0, 2: 1.0})
    assert bits(pool.wins("a0")) == {0, 1}
    assert bits(pool.wins("a1")) == {0, 2}


def test_missing_is_not_zero() -> None:
    pool = pool_of({0: 0.0, 1: 1.0}, {1: 0.5})
    assert bits(pool.wins("a0")) == {0, 1}, "a score of zero wins an instance that nobody else was scored on"
    partial = pool_of({0: 0.5, 1: 0.5}, {0: 0.6})
    best = partial.best()
    assert best is not None and best.id == "a1", "the mean is over what was scored"
    negative = pool_of({0: -1.0}, {1: -1.0})
    assert set(negative.front()) == {"a0", "a1"}, "an instance that was not scored does not count as zero"


def test_who_loses_every_instance_leaves_the_front_and_stays_in_the_pool() -> None:
    pool = pool_of({0: 0.1, 1: 0.1}, {0: 0.2, 1: 0.2})
    assert list(pool.front()) == ["a1"]
    assert "a0" in pool.members


def test_the_best_is_the_earliest_of_equals() -> None:
    best = pool_of({0: 0.5}, {0: 0.7}, {0: 0.7}).best()
    assert best is not None and best.id == "a1"
    assert Population().best() is None


def test_the_version_is_the_number_of_commits_after_the_seed() -> None:
    pool = Population()
    assert pool.version == -1
    pool.add(member(0, {0: 0.0}))
    assert pool.version == 0
    pool.add(member(1, {0: 0.0}))
    assert pool.version == 1


def test_the_gap_counts_commits_since_the_base_but_not_those_of_the_own_batch() -> None:
    pool = Population()
    for version, batch in enumerate((0, 1, 1, 2, 3)):
        pool.add(member(version, {0: 0.0}, batch=batch))
    assert pool.gap(0, batch=9) == 4
    assert pool.gap(0, batch=1) == 2
    assert pool.gap(3, batch=9) == 1
    assert pool.gap(4, batch=9) == 0


def test_children_since_are_those_of_other_batches_committed_after_the_version() -> None:
    pool = pool_of({0: 0.0})
    for version, batch, parent in ((1, 1, "a0"), (2, 2, "a0"), (3, 3, "a1")):
        pool.add(member(version, {0: 0.0}, batch=batch, parents=(parent,)))
    assert [m.id for m in pool.children_since("a0", 0, batch=1)] == ["a2"]
    assert [m.id for m in pool.children_since("a0", 0, batch=9)] == ["a1", "a2"]
    assert [m.id for m in pool.children_since("a0", 1, batch=9)] == ["a2"]


class Counted(dict[int, float]):
    """Scores that count how often they are gone through."""

    reads = 0

    def items(self) -> ItemsView[int, float]:
        Counted.reads += 1
        return super().items()

    def get(self, key: int, default: Any = None) -> Any:
        raise AssertionError("scores are read once, when they are committed")

    __getitem__ = get


def test_a_thousand_artifacts_on_three_hundred_instances_stay_incremental() -> None:
    random = Random(0)
    prunings = 0

    class Spied(Population):
        def _prune(self) -> dict[str, int]:
            nonlocal prunings
            prunings += 1
            return super()._prune()

    pool = Spied()
    Counted.reads = 0
    for version in range(1000):
        scores = Counted({i: random.choice((0.0, 0.5, 1.0)) + version * 1e-6 for i in range(300)})
        pool.add(Member(f"a{version}", version, version, (), "prompt", scores, random.random(), 1.0))
        for _ in range(3):
            pool.choose(random)
            pool.front()
    assert Counted.reads == 1000, "a commit reads its own scores once, and nobody else's"
    assert prunings == 1000, "the front is worked out once a version, however often it is asked for"
