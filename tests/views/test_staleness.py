"""The staleness feed: every verdict as recorded, and counts by action and gap."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.errors import InvariantError
from flashevolve_lab.views import StalenessFeed


def seen(entries):
    feed = StalenessFeed()
    feed.feed(entries)
    return feed.snapshot()


def test_every_verdict_is_a_row_with_all_it_was_based_on(story):
    update, discard = seen(story).rows
    assert (update.at, update.item, update.artifact, update.stage, update.where) == (13.0, "p2", "a2", "validate", "dequeue")
    assert (update.base, update.version, update.gap, update.touched, update.superseded) == (0, 1, 1, True, False)
    assert (update.counterpart, update.action, update.policy) == ("a1", "update", "Guarded")
    assert (update.reason, update.why) == ("gap 1 is beyond 0", "siblings joined: a1")
    assert (discard.action, discard.gap) == ("discard", 3)


def test_verdicts_are_counted_by_action_and_by_gap(story):
    snapshot = seen(story)
    assert snapshot.actions == {"update": 1, "discard": 1}
    assert snapshot.gaps == {"update": {1: 1}, "discard": {3: 1}}


def test_a_run_without_verdicts_has_an_empty_feed(log):
    snapshot = seen(log.begin())
    assert (snapshot.rows, snapshot.actions, snapshot.gaps) == ((), {}, {})


def test_a_missing_entry_is_an_error_not_a_wrong_count(story):
    with pytest.raises(InvariantError, match="entry 5 came after 3"):
        StalenessFeed().feed([*story[:3], story[4]])


@settings(deadline=None)  # a busy machine is no failure
@given(cuts=st.lists(st.integers(0, 200), max_size=12))
def test_a_feed_fed_in_any_chunking_gives_the_same_snapshot_and_deltas_that_add_up_to_it(story, cuts):
    feed, rows = StalenessFeed(), []
    for start, end in pairwise([0, *sorted(cuts), len(story)]):
        delta = feed.feed(story[start:end])
        assert delta.rows_from == len(rows)
        rows += delta.rows
    assert feed.snapshot() == seen(story)
    assert tuple(rows) == seen(story).rows and delta.actions == seen(story).actions
