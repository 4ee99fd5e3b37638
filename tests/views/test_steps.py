"""A step function of lab time: as short as it can be, and its changes add up to it."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.views import Steps

puts = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=40)


@settings(deadline=None)  # a busy machine is no failure
@given(puts)
def test_a_line_has_rising_times_and_no_repeated_value_and_its_changes_add_up_to_it(puts):
    steps, at, copy, last = Steps(), 0, ([], []), {}
    for wait, value, ask in puts:
        at += wait
        steps.put(at, value)
        last[at] = value
        if ask and (change := steps.change()):
            copy = [*copy[0][: change.start], *change.at], [*copy[1][: change.start], *change.value]
    if change := steps.change():
        copy = [*copy[0][: change.start], *change.at], [*copy[1][: change.start], *change.value]
    line = steps.line()
    assert all(a < b for a, b in pairwise(line.at)) and all(a != b for a, b in pairwise(line.value))
    assert copy == (list(line.at), list(line.value))
    for moment, value in last.items():
        assert [v for t, v in zip(line.at, line.value, strict=True) if t <= moment][-1] == value


def test_without_a_change_there_is_none_to_report():
    steps = Steps()
    steps.put(1.0, 2)
    assert steps.change() is not None
    steps.put(2.0, 2)
    assert steps.change() is None
