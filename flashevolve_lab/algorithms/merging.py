"""Merge (crossover): two artifacts of the front with a common ancestor become one, component by component, without a model call.

System-aware merge of GEPA (arXiv 2507.19457): of each component the text that changed since the ancestor; where both changed, that
of the parent with the higher mean. The child is scored on a few validation examples first, against the better of its parents
there; those samples count toward its validation. Owns when a merge is due and of what. One rule a change must keep: all of it is
a pure function of the state, and nothing that was run is run twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, fsum
from random import Random
from typing import Any

from flashevolve_lab.core import (
    Artifact,
    Item,
    Member,
    NewItem,
    Route,
    RunState,
    Situation,
    content_hash,
    draw,
)
from flashevolve_lab.core.events import Gated, ItemEnded, ItemQueued
from flashevolve_lab.errors import SetupError

ATTEMPTS = 100  # pairs of the front that one look for a merge considers


@dataclass(frozen=True, slots=True)
class Merge:
    """Crossover of front artifacts, for tasks of several components.

    One is due after each commit that is not itself a merge, as in gepa; it takes a proposal's place in flight, and is counted apart.

    Args:
        most: Merges begun in a run, ≥ 1.
        subsample: Validation examples on which a merged text must not be worse than the better of its parents there, ≥ 1.
    """

    most: int = 5
    subsample: int = 5

    def __post_init__(self) -> None:
        for name in ("most", "subsample"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SetupError(f"Merge({name}=…): expected an integer of at least 1; got {value!r}")

    def describe(self) -> dict[str, Any]:
        """Facts for the log."""
        return {"most": self.most, "subsample": self.subsample}


def check_components(components: Sequence[str]) -> None:
    """Raises `SetupError` for a task of one component: what could a merge of two texts be without a model?"""
    if len(components) < 2:
        raise SetupError(
            f"GEPA(merge=…): the task has the one component {components[0]!r}, and a merge takes each component whole from one of two "
            "parents: it would make nothing new. Leave merge out; staleness=lab.Reflective() unites texts by a model"
        )


def begun(state: RunState, merge: Merge | None, seed: int) -> NewItem | None:
    """The merge that should start now, with the artifact it makes; None when none is due or the front has no pair for one."""
    if merge is None or not _due(state, merge):
        return None
    id = state.next_id("p")
    random = draw(seed, id, "merge")
    pair = _pair(state, random)
    if pair is None:
        return None
    better, other, components = pair
    subsample = _subsample(state.pool.members[better], state.pool.members[other], merge.subsample, random)
    if not subsample:
        return None
    changed = [name for name, text in components.items() if text != state.artifacts[better].components[name]]
    component = changed[0] if len(changed) == 1 else ""
    child = Artifact(state.next_id("a"), components, content_hash(components), (better, other), "merge", component, id)
    data = {
        "parent": better,
        "other": other,
        "child": child.id,
        "component": component,
        "won": f"{state.pool.front()[better]:x}",
        "subsample": subsample,
    }
    return NewItem("merge", "gate", state.pool.version, data, child)


def after_gate(state: RunState, item: Item, result: Mapping[str, Any]) -> Sequence[Route]:
    """On to validation when it is not worse than the better of its parents on the subsample (gepa's rule), else out."""
    child, data = item.data["child"], item.data
    sums = {id: _sum(state.pool.members.get(id), data["subsample"]) for id in (data["parent"], data["other"])}
    rival = max(sums, key=lambda id: (sums[id], id == data["parent"]))
    own = fsum(result["child"])
    passed = own >= sums[rival]
    reason = f"{own:g} is {'not ' if passed else ''}below {sums[rival]:g} of {rival} on {len(data['subsample'])} validation examples"
    gated = Gated(item.id, child, rival, passed, False, sums[rival], own, reason=reason)
    return [gated, ItemQueued(item.id, "validate") if passed else ItemEnded(item.id, "rejected", reason, child)]


def updated(state: RunState, item: Item, situation: Situation) -> Sequence[Route]:
    """A stale merge meets the current counterpart on its subsample, which costs nothing: its samples are there."""
    counterpart = situation.counterpart
    data = {"parent": counterpart, "won": f"{state.pool.front().get(counterpart, 0):x}"}
    return [ItemQueued(item.id, "gate", data, base=state.pool.version)]


def _due(state: RunState, merge: Merge) -> bool:
    if len(state.merges) >= merge.most or len(state.pool.order) < 3:
        return False
    own = sum(1 for member in state.pool.order[1:] if state.artifacts[member.id].origin != "merge")
    return own > len(state.merges)


def _pair(state: RunState, random: Random) -> tuple[str, str, dict[str, str]] | None:
    """(better parent, other parent, the merged components), or None."""
    pool = state.pool
    ids = [id for id in pool.front() if not pool.members[id].rival]  # not on partial scores
    tried = set(state.merges)
    for _ in range(ATTEMPTS if len(ids) > 1 else 0):
        one, two = random.sample(ids, 2)
        if (one, two) in tried or (two, one) in tried:
            continue
        better, other = sorted((one, two), key=lambda id: (-pool.members[id].mean, pool.members[id].version))
        ancestor = _ancestor(state, better, other, random)
        if ancestor is None:
            continue
        components = united(*(state.artifacts[id].components for id in (ancestor, better, other)))
        if content_hash(components) not in state.by_hash:
            return better, other, components
    return None


def united(ancestor: Mapping[str, str], better: Mapping[str, str], other: Mapping[str, str]) -> dict[str, str]:
    """Each component as changed since the ancestor; of two changes, that of the better."""
    return {name: other[name] if better[name] == text else better[name] for name, text in ancestor.items()}


def _ancestor(state: RunState, one: str, two: str, random: Random) -> str | None:
    """A common ancestor of which the two differ usefully; the better ones more often. None when one descends from the other."""
    families = _ancestors(state.artifacts, one), _ancestors(state.artifacts, two)
    if two in families[0] or one in families[1]:
        return None
    pool, texts = state.pool, state.artifacts
    bar = min(pool.members[one].mean, pool.members[two].mean)
    common = sorted(id for id in families[0] & families[1] if id in pool.members and pool.members[id].mean <= bar)
    useful = [id for id in common if _complementary(*(texts[who].components for who in (id, one, two)))]
    weights = [pool.members[id].mean + 1e-9 for id in useful]  # all may have scored nothing
    return random.choices(useful, weights)[0] if useful else None


def _complementary(ancestor: Mapping[str, str], one: Mapping[str, str], two: Mapping[str, str]) -> bool:
    """Whether some component changed in one of the two only."""
    return any((text == one[name]) != (text == two[name]) for name, text in ancestor.items())


def _ancestors(artifacts: Mapping[str, Artifact], id: str) -> set[str]:
    found: set[str] = set()
    ahead = list(artifacts[id].parents)
    while ahead:
        one = ahead.pop()
        if one not in found:
            found.add(one)
            ahead += artifacts[one].parents
    return found


def _subsample(one: Member, two: Member, size: int, random: Random) -> list[int]:
    """Validation examples both were scored on: a third where one is better, a third where the other is, the rest any."""
    both = sorted(set(one.scores) & set(two.scores))
    groups = [[e for e in both if one.scores[e] > two.scores[e]], [e for e in both if one.scores[e] < two.scores[e]]]
    groups.append([e for e in both if one.scores[e] == two.scores[e]])
    chosen: list[int] = []
    for group in groups:
        chosen += random.sample(group, min(len(group), ceil(size / 3), size - len(chosen)))
    rest = [e for e in both if e not in chosen]
    return sorted(chosen + random.sample(rest, min(len(rest), size - len(chosen))))


def _sum(member: Member | None, examples: Iterable[int]) -> float:
    """A parent's sum on the subsample; one that was rolled back meanwhile is no rival any more."""
    return fsum(member.scores.get(e, 0.0) for e in examples) if member else float("-inf")
