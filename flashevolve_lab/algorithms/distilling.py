"""Several stale items, one patch: which go together, and what becomes of each when the reply is there.

Owns the pure rules of GEPA's batches; the asking is `gepa_work`'s, the reply's format `patching`'s. One rule a change must keep:
every item of a batch gets its own `Patched`, and goes on or ends with an outcome and a reason of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flashevolve_lab.core import Item, Route, RunState, content_hash
from flashevolve_lab.core.events import ArtifactMade, ItemEnded, ItemQueued, Patched


def companions(state: RunState, item: Item) -> list[str]:
    """Waiting stale items that may be read together with this one: same component, to be patched onto the same kind of target.

    Those with the very same target come first, then the oldest. A merge, which has no minibatch, is read alone.
    """
    if "minibatch" not in item.data:
        return []
    alike = [state.items[one] for one in state.queues["patch"] if one != item.id and _key(state.items[one]) == _key(item)]
    alike.sort(key=lambda other: other.data["counterpart"] != item.data["counterpart"])
    return [other.id for other in alike]


def _key(item: Item) -> tuple[object, ...]:
    return item.data["component"], item.data.get("onto", "counterpart"), "minibatch" in item.data


def distilled(state: RunState, result: Mapping[str, Any]) -> Sequence[Route]:
    """What becomes of the items of one reply.

    The first item that was patched carries the new text on, to the gate on its own minibatch; the others that were end as
    distilled into it. (A gate on all their minibatches was measured: no better, with and without noise, and dearer.)
    """
    told, version, counterpart = result["items"], result["version"], result["counterpart"]
    together = tuple(one["item"] for one in told)
    said: list[Route] = []
    moves: list[Route] = []
    for one in told:
        item = state.items[one["item"]]
        child, decision, reason = item.data["child"], one["decision"], one["reason"]
        said.append(Patched(item.id, child, counterpart, decision, reason, tuple(one["ideas"]), version, together))
        if decision == "accept":
            moves.append(ItemQueued(item.id, "validate", base=version))
        elif decision == "discard":
            moves.append(ItemEnded(item.id, "discarded", f"by reflection: {reason}", child))
    merged = [state.items[one["item"]] for one in told if one["decision"] == "patch"]
    return [*said, *moves, *(_merged(state, merged, result) if merged else [])]


def _merged(state: RunState, items: Sequence[Item], result: Mapping[str, Any]) -> list[Route]:
    lead, *others = items
    component = lead.data["component"]
    current = state.artifacts[result["counterpart"]]
    components = {**current.components, component: result["text"]}
    hash = content_hash(components)
    if twin := state.by_hash.get(hash):
        return [ItemEnded(item.id, "refused", f"the patched text is that of {twin}", twin) for item in items]
    patched = state.next_id("a")
    parents = tuple(dict.fromkeys((current.id, *(item.data["child"] for item in items))))
    made = ArtifactMade(patched, components, hash, parents, "patch", component, lead.id)
    won = f"{state.pool.front().get(current.id, 0):x}"
    data = {"parent": current.id, "child": patched, "won": won, "rebased": True}
    ends = [
        ItemEnded(item.id, "distilled", f"distilled into {patched}, which {lead.id} carries on", item.data["child"])
        for item in others
    ]
    return [made, *ends, ItemQueued(lead.id, "gate", data, base=result["version"])]
