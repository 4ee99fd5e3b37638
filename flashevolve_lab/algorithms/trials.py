"""The gate of GEPA: what a round of it runs, and the question that the acceptance policy is asked.

Owns the rounds: the first on the item's minibatch, a further one on fresh examples or once more on the same. Owns no verdict
(`policies.acceptance`). One rule a change must keep: child and parent meet on the same examples in every round, and in a further
round on the same examples neither is taken from the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flashevolve_lab.core import Gate, Item, Trial, draw

SETTLED: Mapping[str, Any] = {"rounds": [], "round": {}, "tested": []}


def tried(item: Item, result: Mapping[str, Any], *, seed: int, n_train: int) -> Trial:
    """The gate so far, this round's scores included, and what another round would run."""
    rounds = [*item.data.get("rounds", ()), [list(result["parent"]), list(result["child"])]]
    parent, child = (tuple(tuple(scores[i]) for scores in rounds) for i in (0, 1))
    minibatch = item.data["minibatch"]
    tested = [*minibatch, *item.data.get("tested", ())]
    unseen = sorted(set(range(n_train)).difference(tested))
    examples = draw(seed, item.id, "gate", len(rounds)).sample(unseen, min(len(minibatch), len(unseen)))
    same = {"rounds": rounds, "round": {"examples": list(minibatch), "fresh": False}}
    fresh = {"rounds": rounds, "round": {"examples": examples, "fresh": True}, "tested": tested[len(minibatch) :] + examples}
    return Trial(
        gate=Gate(item.id, item.kind, parent, child),
        artifact=item.data["child"],
        parent=item.data["parent"],
        to="validate",
        fresh=fresh if examples else same,  # the train set is used up
        same=same,
        settled=SETTLED if len(rounds) > 1 else {},
    )
