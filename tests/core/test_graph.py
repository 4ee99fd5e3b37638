"""An algorithm's wiring is checked where it is written down."""

from __future__ import annotations

import pytest

from flashevolve_lab.core import Graph, Stage
from flashevolve_lab.errors import SetupError


def test_a_graph_knows_its_stages_in_order() -> None:
    graph = Graph((Stage("a", to=("b",)), Stage("b", judged=True)), "a")
    assert graph.names == ("a", "b")
    assert graph.stage("b").judged and not graph.stage("a").judged


def test_a_loop_back_is_allowed() -> None:
    Graph((Stage("a", to=("b",)), Stage("b", to=("a",))), "a")


@pytest.mark.parametrize(
    ("stages", "entry", "says"),
    [
        ((), "a", "at least one"),
        ((Stage("a"), Stage("a")), "a", r"distinct.*\['a', 'a'\]"),
        ((Stage("a"),), "b", r"entry 'b' is no stage.*\['a'\]"),
        ((Stage("a", to=("c",)),), "a", r"'a' leads to \['c'\]"),
        ((Stage("a"), Stage("b")), "a", r"nothing leads to \['b'\]"),
    ],
)
def test_a_graph_that_cannot_work_is_refused_and_says_where(stages: tuple[Stage, ...], entry: str, says: str) -> None:
    with pytest.raises(SetupError, match=says):
        Graph(stages, entry)
