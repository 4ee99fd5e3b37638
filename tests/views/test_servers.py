"""Servers: what each told last, its speed over the last looks, the same from any chunking."""

from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.core import Entry
from flashevolve_lab.core import events as ev
from flashevolve_lab.views import ServerRow, Servers, Tables


def look(at, name="a", running=1.0, waiting=0.0, cache=None, **facts):
    return at, ev.ServerSeen(name, running, waiting, cache, facts)


LOG = [
    Entry(i, at, event)
    for i, (at, event) in enumerate(
        [
            look(0.0, generation_tokens=100.0, prefix_cache_queries=1000.0, prefix_cache_hits=0.0),
            (1.0, ev.Warned("time", "passes")),
            look(2.0, "b", running=7.0),
            look(4.0, running=3.0, waiting=2.0, cache=0.5, generation_tokens=300.0, prefix_cache_queries=2000.0, prefix_cache_hits=750.0),
        ],
        1,
    )
]  # fmt: skip


def servers(entries):
    view = Servers()
    view.feed(entries)
    return view.snapshot()


def test_a_server_is_shown_as_it_told_last_with_its_speed_over_the_last_looks():
    first, second = servers(LOG)
    assert first == ServerRow("a", 4.0, 3.0, 2.0, 0.5, 50.0, 0.75)
    assert second == ServerRow("b", 2.0, 7.0, 0.0)


def test_a_server_that_was_started_again_has_no_speed_until_it_is_known():
    fell = Entry(5, 6.0, ev.ServerSeen("a", 0.0, 0.0, None, {"generation_tokens": 5.0}))
    assert servers([*LOG, fell])[0].tokens_per_s is None


def test_a_resume_forgets_them_and_a_run_without_looks_has_none():
    assert servers([*LOG, Entry(5, 5.0, ev.RunResumed("later"))]) == ()
    assert servers([LOG[1]]) == ()


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(0, len(LOG)), max_size=4))
def test_fed_in_any_pieces_it_shows_the_same(cuts):
    view, done = Servers(), 0
    for cut in sorted(cuts):
        view.feed(LOG[done:cut])
        view.feed(LOG[: done // 2])  # seen before
        done = cut
    view.feed(LOG[done:])
    assert view.snapshot() == servers(LOG)


def test_every_look_is_a_row_of_the_table(story):
    tables = Tables()
    tables.feed(story)
    columns = tables.columns("servers")
    assert [columns[name] for name in ("at", "endpoint", "running", "waiting", "kv_cache")] == [
        [16.0], ["http://s/v1"], [3.0], [1.0], [0.25],
    ]  # fmt: skip
    assert columns["facts"] == [{"n": 2.0}]
