"""Partial results: what a completion policy's ruling means, and what a roll-back takes with it.

Owns the events of speculative stage completion and of proven rejection (FlashEvolve, arXiv 2605.08520 §4). Owns no rule of when:
that is the policy's. One rule a change must keep: a bound is never recorded as a score, and nothing provisional is ever final.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flashevolve_lab.core import events as ev
from flashevolve_lab.core.artifacts import Item, Job, Partial, Ruling
from flashevolve_lab.core.events import Event
from flashevolve_lab.core.graph import Commit, Completion, Rules
from flashevolve_lab.core.state import RunState

RULINGS = ("wait", "release", "insert", "stop")
LISTED = 100  # of what was made from a rolled-back artifact, the event names at most this many


def prefix_of(state: RunState, item: Item, stage: str, rules: Rules) -> tuple[int, ...]:
    """The examples a job is to score first; () without speculation."""
    policy = rules.completion(state)
    share = 1.0 if policy is None else getattr(policy, "prefix", 1.0)
    if policy is None or share >= 1.0:
        return ()
    return tuple(rules.algorithm.prefix(state, item, stage, share, getattr(policy, "rounds", 3)))


def ruled(state: RunState, given: ev.SampleScored, rules: Rules) -> tuple[Job, Ruling, Partial, Mapping[int, float]] | None:
    """What the policy orders after a further sample; None when it is to wait."""
    policy, job = rules.completion(state), state.jobs[given.job]
    if policy is None or job.released:
        return None
    facts = rules.algorithm.partial(state, job, given)
    if facts is None:
        return None
    ruling = _ruling(policy, facts[0])
    return None if ruling.action == "wait" else (job, ruling, *facts)


def _ruling(policy: Completion, partial: Partial) -> Ruling:
    """The policy's order; "wait" for what it cannot have at this stage."""
    ruling = policy.judge(partial)
    if not isinstance(ruling, Ruling) or ruling.action not in RULINGS:
        raise TypeError(f"expected a Ruling with an action of {RULINGS}, got {ruling!r}")
    able = {
        "release": partial.stage == "rollout" and partial.scored < partial.wanted,
        "insert": partial.stage == "validate" and not partial.provisional and partial.scored < partial.wanted,
        "stop": partial.stage != "rollout" and partial.scored < partial.wanted,
    }
    return ruling if able.get(ruling.action, False) else Ruling("wait")


def inserted(state: RunState, item: Item, ruling: Ruling, scores: Mapping[int, float], partial: Partial) -> ev.Provisional:
    """The artifact joins the pool before its time."""
    best = state.pool.best()
    assert best is not None
    parent = item.data.get("parent", "")
    rival = parent if ruling.rival == "parent" and parent in state.pool.members else best.id
    told = {str(example): score for example, score in sorted(scores.items())}
    child = item.data["child"]
    return ev.Provisional(
        state.pool.version + 1, child, item.id, item.batch, told, partial.wanted, rival, ruling.reason
    )


def settled(state: RunState, item: Item, commit: Commit) -> list[Event]:
    """A provisional artifact is fully scored: it stays when its mean exceeds its rival's on the examples both have, else it goes."""
    member = state.pool.members[commit.artifact]
    rival = state.pool.members.get(member.rival)
    scores = {str(example): score for example, score in commit.scores.items()}
    common = [e for e in commit.scores if rival is not None and e in rival.scores]
    if rival is not None and common:
        own, bar = (sum(of[e] for e in common) / len(common) for of in (commit.scores, rival.scores))
        if own <= bar:
            why = f"its prefix promised more: {own:.3f} in all is not above the {bar:.3f} of {rival.id}"
            ended = ev.ItemEnded(item.id, "rolled_back", why, commit.artifact)
            return [roll_back(state, item.id, why), ended]
    confirmed = ev.Confirmed(commit.artifact, item.id, scores, commit.examples)
    return [confirmed, ev.ItemEnded(item.id, "committed", f"version {member.version}, confirmed", commit.artifact)]


def roll_back(state: RunState, item: str, why: str, later: int = 0) -> ev.RolledBack:
    """The provisional artifact of an item leaves the pool; ``later``: roll-backs decided before it in the same turn."""
    artifact = state.provisional[item]
    return ev.RolledBack(state.pool.version + 1 + later, artifact, item, why, _derived(state, artifact))


def with_roll_backs(state: RunState, events: Sequence[Event]) -> list[Event]:
    """An item that ends otherwise than confirmed takes its provisional artifact with it."""
    if not state.provisional:
        return list(events)
    gone = {e.item for e in events if isinstance(e, (ev.RolledBack, ev.Confirmed))}
    told: list[Event] = []
    later = 0
    for event in events:
        if isinstance(event, ev.ItemEnded) and event.item in state.provisional and event.item not in gone:
            told.append(roll_back(state, event.item, f"{event.outcome}: {event.reason}", later))
            later += 1
        told.append(event)
    return told


def all_rolled_back(state: RunState, why: str) -> list[Event]:
    """At a stop nothing provisional stays."""
    return [roll_back(state, item, why, later) for later, item in enumerate(state.provisional)]


def _derived(state: RunState, artifact: str) -> tuple[str, ...]:
    """Items in flight and artifacts that were made from it, directly or not: what is in flight is judged again as superseded."""
    family = {artifact}
    for made in state.artifacts.values():  # in the order they were made: parents first
        if family.intersection(made.parents):
            family.add(made.id)
    items = [item.id for item in state.items.values() if item.data.get("parent") in family]
    return (*items, *sorted(family - {artifact}, key=lambda id: int(id[1:])))[:LISTED]



def proven(job: Job, item: Item, partial: Partial, ruling: Ruling) -> ev.Proven:
    """That a job was ended because nothing it could still find would let it win."""
    child = item.data.get("child", "")
    return ev.Proven(
        job.id, item.id, child, job.stage, partial.scored, partial.wanted, partial.reach, ruling.reason
    )
