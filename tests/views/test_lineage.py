"""The lineage: nodes in order of their version, edges from the pool's parents, the front and the best as the pool has them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.core import RunState
from flashevolve_lab.core import events as ev
from flashevolve_lab.views import Lineage


def family(log):
    view = Lineage()
    view.feed(log)
    return view.snapshot()


def commit(log, at, version, artifact, parent, scores):
    item = f"p{version}"
    log.proposal(at, item, batch=version, parent=parent)
    log(at, ev.ArtifactMade(artifact, {"prompt": artifact}, artifact, (parent,), "reflection", "prompt", item))
    return log(at, ev.Committed(version, artifact, item, version, scores, 2), ev.ItemEnded(item, "committed", "", artifact))


def test_an_empty_log_has_no_family():
    assert (family([]).nodes, family([]).front, family([]).best) == ((), {}, "")


def test_nodes_come_in_order_of_their_version_with_parent_and_mean(log):
    log.begin().seed()
    commit(log, 5.0, 1, "a1", "a0", {"0": 1.0, "1": 1.0})
    nodes = family(log).nodes
    assert [(n.artifact, n.version, n.parents, n.mean) for n in nodes] == [("a0", 0, (), 0.5), ("a1", 1, ("a0",), 1.0)]
    assert family(log).edges == (("a0", "a1"),)


def test_front_and_best_are_those_of_the_pool(log):
    log.begin().seed()
    commit(log, 5.0, 1, "a1", "a0", {"0": 1.0, "1": 0.0})
    commit(log, 6.0, 2, "a2", "a0", {"0": 0.5, "1": 1.0})
    pool = RunState().apply_all(log).pool
    found = family(log)
    assert found.front == {artifact: mask.bit_count() for artifact, mask in pool.front().items()}
    assert found.best == pool.best().id == "a2"


def test_an_artifact_that_was_not_committed_is_no_node(log):
    log.begin().seed().proposal(4.0, "p1")
    log(5.0, ev.ArtifactMade("a1", {"prompt": "x"}, "h1", ("a0",), "reflection", "prompt", "p1"))
    assert [node.artifact for node in family(log).nodes] == ["a0"]


@settings(deadline=None)  # a busy machine is no failure
@given(cuts=st.lists(st.integers(1, 60), max_size=12))
def test_the_deltas_of_any_pieces_add_up_to_the_whole(story, cuts):
    view, nodes, start = Lineage(), [], 0
    for cut in [*cuts, len(story)]:
        delta = view.feed(story[start : start + cut])
        assert delta.nodes_from == len(nodes)
        nodes += delta.nodes
        start += cut
    whole = family(story)
    assert (tuple(nodes), delta.front, delta.best) == (whole.nodes, whole.front, whole.best)
