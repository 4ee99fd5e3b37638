"""Minibatches: every example once an epoch, no overlap between those in flight, keyed by the seed."""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.algorithms.sampling import next_minibatch

SIZES = st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(SIZES, st.integers(0, 99))
def test_every_example_comes_once_an_epoch(sizes: tuple[int, int], seed: int) -> None:
    n, size = sizes
    used: Counter[int] = Counter(dict.fromkeys(range(n), 0))
    cursor: Any = None
    for _ in range(3 * n):
        minibatch, cursor = next_minibatch(cursor, seed, n, size, set())
        assert len(minibatch) == len(set(minibatch)) == size
        used.update(minibatch)
        assert max(used.values()) - min(used.values()) <= 1, "nobody comes again before everybody has come"


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(st.integers(4, 20), st.integers(1, 3), st.integers(1, 6), st.integers(0, 99))
def test_minibatches_in_flight_do_not_overlap_while_enough_examples_are_free(n: int, size: int, depth: int, seed: int) -> None:
    random, cursor = Random(seed), None
    in_flight: list[list[int]] = []
    used: Counter[int] = Counter()
    for _ in range(60):
        busy = {example for minibatch in in_flight for example in minibatch}
        minibatch, cursor = next_minibatch(cursor, seed, n, size, busy)
        assert len(set(minibatch)) == size
        if n - len(busy) >= size:
            assert not busy & set(minibatch)
        used.update(minibatch)
        in_flight.append(minibatch)
        while len(in_flight) >= depth:
            in_flight.pop(random.randrange(len(in_flight)))
    assert len(used) == n or 60 * size < 2 * n + size * depth, "every example gets its turn"


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(SIZES, st.integers(0, 99), st.data())
def test_examples_put_off_while_busy_come_first_as_soon_as_they_are_free(
    sizes: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    n, size = sizes
    busy = data.draw(st.sets(st.integers(0, n - 1), max_size=n - size))
    _, cursor = next_minibatch(None, seed, n, size, busy)
    put_off = cursor["owed"]
    assert set(put_off) <= busy
    following, _ = next_minibatch(cursor, seed, n, size, set())
    assert following[: len(put_off)] == put_off[:size]


def test_each_epoch_has_an_order_of_its_own_fixed_by_the_seed() -> None:
    def epochs(seed: int) -> list[list[int]]:
        cursor, orders = None, []
        for _ in range(3):
            minibatch, cursor = next_minibatch(cursor, seed, 20, 20, set())
            orders.append(minibatch)
        return orders

    assert epochs(1) == epochs(1)
    assert epochs(1) != epochs(2)
    assert len({tuple(order) for order in epochs(1)}) == 3


def test_the_cursor_is_plain_json_and_the_old_one_is_left_as_it_was() -> None:
    _, cursor = next_minibatch(None, 0, 7, 3, {0, 1})
    before = json.dumps(cursor)
    assert next_minibatch(json.loads(before), 0, 7, 3, {2}) == next_minibatch(cursor, 0, 7, 3, {2})
    assert json.dumps(cursor) == before


def test_with_too_few_free_examples_a_full_minibatch_still_comes() -> None:
    minibatch, _ = next_minibatch(None, 0, 4, 3, {0, 1, 2, 3})
    assert len(set(minibatch)) == 3
