"""A join: one job that works on several waiting items at once (a batch of stale texts, distilled into one patch).

Owns which waiting items a job takes along, and where they go when it does not end well. What becomes of each when it does is the
algorithm's answer (`Algorithm.route`). One rule a change must keep: a job answers for all its items; each of them goes on, goes
back to its queue, or ends with an outcome of its own.
"""

from __future__ import annotations

from typing import Any

from flashevolve_lab.core import events as ev
from flashevolve_lab.core.artifacts import Item, Job, Situation, Verdict
from flashevolve_lab.core.graph import Rules
from flashevolve_lab.core.state import RunState


def taken_along(state: RunState, item: Item, stage: str, rules: Rules) -> tuple[str, ...] | None:
    """The items that a job on this one takes along, as many as the staleness policy's ``batch`` allows; None: it waits for more.

    Nobody waits while the stage is idle: the first stale item starts at once, and those that come while it is read go together
    when it is done, or sooner when a batch is full (as small packets do under Nagle's rule: no timer, and never a deadlock).
    """
    most = _most(state, rules)
    waiting = rules.algorithm.companions(state, item, stage) if not item.data.get("alone") else None
    if waiting is None:
        return ()
    before = item.data.get("along") or ()
    if before and set(before) <= set(waiting):
        return tuple(before)
    if (item.id, stage) in state.answers:  # a reply on this one alone had arrived before a kill or a stop
        return ()
    spoken_for = _spoken_for(state, item, stage)
    also = tuple(one for one in waiting if one not in spoken_for)[: most - 1]
    return None if len(also) < most - 1 and state.slots[stage] else also


def _spoken_for(state: RunState, item: Item, stage: str) -> set[str]:
    """Those that another job is to take: what went together before a kill or a stop, and those that are read alone."""
    found: set[str] = set()
    for one in state.queues[stage]:
        data = state.items[one].data
        if one != item.id and (data.get("alone") or data.get("along")):
            found |= {one, *(data.get("along") or ())}
    return found


def _most(state: RunState, rules: Rules) -> int:
    """Items of one job; 1 where a policy from a notebook cell says nothing usable."""
    try:
        return max(1, int(getattr(rules.staleness(state), "batch", 1)))
    except Exception:
        return 1


def put_back(job: Job, but: str = "") -> list[ev.ItemQueued]:
    """The items of a job that ended early, in front of their queue and in their order (``but``: except this one).

    They are taken together again: the request is the same then, and a reply that had arrived is not paid twice.
    """
    first, *rest = [item for item in job.items if item != but] or [""]
    queued = [ev.ItemQueued(item, job.stage, front=True) for item in reversed(rest)]
    lead = [ev.ItemQueued(first, job.stage, {"along": rest} if rest else {}, front=True)] if first else []
    return queued + lead


def parted(job: Job) -> list[ev.Event]:
    """A joint job failed: each of its items is worked on alone, as it would have been without the join.

    Whatever was wrong (a reply cut off, a text that cannot be used, a provider) may have lain in the joining; one that fails
    alone too ends like any other.
    """
    return [ev.ItemQueued(item, job.stage, {"alone": True}, front=True) for item in reversed(job.items)]


def target(situation: Situation, verdict: Verdict) -> str:
    """What a patch is to be written for ("" when none was ordered)."""
    if verdict.action != "patch":
        return ""
    return situation.best if verdict.onto == "best" and situation.best else situation.counterpart


def asked(item: Item, situation: Situation, verdict: Verdict) -> dict[str, Any]:
    """What an item tells the patch stage; marks of an earlier patch are taken back."""
    data: dict[str, Any] = {"counterpart": target(situation, verdict)}
    if verdict.onto != item.data.get("onto", "counterpart"):
        data["onto"] = verdict.onto
    return data | {mark: unset for mark, unset in (("alone", False), ("along", [])) if item.data.get(mark)}
