"""How far a GEPA job has come, for a completion policy: partial scores, what is still reachable, and the speculative prefix.

Owns the facts, not the rulings (`policies.completion`). One rule a change must keep: ``reach`` is an upper bound whatever the
unscored examples turn out to be, missing ones included; a prefix is chosen from the pool alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, fsum, inf

from flashevolve_lab.core import Job, Partial, Population, RunState, is_strict
from flashevolve_lab.core.events import SampleScored


def prefix_of(pool: Population, n: int, perfect: float, share: float, rounds: int) -> tuple[int, ...]:
    """⌈share · n⌉ validation examples, those first that still tell artifacts apart.

    An example that the last ``rounds`` artifacts all passed rotates out (FlashEvolve's dynamic reordering, w = 3): it comes after
    the others. Order otherwise: by number.
    """
    recent = pool.order[-rounds:] if len(pool.order) >= rounds else []
    passed = {e for e in range(n) if recent and all(m.scores.get(e, -1.0) >= perfect for m in recent)}
    ordered = sorted(range(n), key=lambda e: (e in passed, e))
    return tuple(ordered[: max(1, ceil(share * n))])


def on_minibatch(state: RunState, job: Job, given: SampleScored, perfect: float) -> tuple[Partial, Mapping[int, float]]:
    """Of a rollout: which examples of the minibatch the parent has been scored on."""
    wanted = state.items[job.item].data["minibatch"]
    scores = _so_far(state, given, wanted)
    mean = fsum(scores.values()) / len(scores)
    flawless = all(score >= perfect for score in scores.values())
    return Partial("rollout", len(scores), len(wanted), mean, flawless=flawless), scores


def at_gate(state: RunState, job: Job, given: SampleScored, perfect: float) -> tuple[Partial, Mapping[int, float]] | None:
    """Of a gate: the child so far, against the parent's mean on the same examples; None while the parent is run there too."""
    item = state.items[job.item]
    if not is_strict(state) or item.data.get("round") or given.split != "train":  # then the parent's sum so far is not the bar
        return None
    if item.data.get("rebased") or item.data.get("seen") or given.artifact != item.data["child"]:
        return None
    parent, wanted = item.data["scores"], item.data["minibatch"]
    scores = _so_far(state, given, wanted)
    n, mean = len(wanted), fsum(scores.values()) / len(scores)
    reach = _reach(scores, n, _ceiling(perfect, parent, scores.values()))
    return Partial("gate", len(scores), n, mean, reach, fsum(parent) / n), scores


def in_validation(
    state: RunState, job: Job, given: SampleScored, n: int, perfect: float
) -> tuple[Partial, Mapping[int, float]] | None:
    """Of a validation: against its parent and the best, and how much of the speculative prefix is in."""
    item, best = state.items[job.item], state.pool.best()
    if item.kind == "seed" or best is None:
        return None
    scores = _so_far(state, given, range(n))
    parent = state.pool.members.get(item.data["parent"])
    ceiling = _ceiling(perfect, best.scores.values(), scores.values())
    alone = sum(1 for e in range(n) if scores.get(e, ceiling) > _top(state.pool, e))
    partial = Partial(
        stage="validate",
        scored=len(scores),
        wanted=n,
        score=fsum(scores.values()) / len(scores),
        reach=_reach(scores, n, ceiling),
        bar=best.mean,
        parent=parent.mean if parent and not parent.rival else -inf,
        alone=alone,
        prefix=sum(1 for e in job.first if e in scores),
        prefix_wanted=len(job.first),
        parent_so_far=_mean(parent.scores if parent else best.scores, scores),
        best_so_far=_mean(best.scores, scores),
        provisional=item.id in state.provisional,
    )
    return partial, scores


def _so_far(state: RunState, given: SampleScored, wanted: Iterable[int]) -> dict[int, float]:
    """Example → score, the given sample included (it is not applied yet)."""
    known = state.samples.get((state.artifacts[given.artifact].hash, given.split), {})
    scores = {e: known[e].score for e in wanted if e in known}
    scores[given.example] = given.score
    return scores


def _ceiling(perfect: float, *seen: Iterable[float]) -> float:
    """The most an example can still score: the task's perfect value, or no bound at all where that was exceeded before."""
    return inf if any(score > perfect for scores in seen for score in scores) else perfect


def _reach(scores: Mapping[int, float], n: int, ceiling: float) -> float:
    """The highest mean of n examples that these scores still allow."""
    return fsum([*scores.values(), *(ceiling for _ in range(n - len(scores)))]) / n


def _top(pool: Population, example: int) -> float:
    top = pool.top(example)
    return -inf if top is None else top


def _mean(scores: Mapping[int, float], examples: Iterable[int]) -> float:
    values = [scores[e] for e in examples if e in scores]
    return fsum(values) / len(values) if values else 0.0
