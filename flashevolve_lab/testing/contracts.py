"""Contract suites: what every policy and every store must do, whoever wrote it. Call one from a test of your own.

Each is a plain function that raises `AssertionError` with a sentence saying which promise is broken.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from flashevolve_lab.core import Entry, Pace, Schedule, StaleItem, Staleness, Starts, Verdict
from flashevolve_lab.core.events import Paused, RunStopped, Warned
from flashevolve_lab.policies import Policies

ACTIONS = ("accept", "update", "patch", "discard")
HARD_TEXTS = (
    "",
    "plain",
    "\x00blob:0123456789abcdef",
    "\x00blob:" + "x" * 5000,
    "lone \ud800 surrogate",
    "\u202eright to left\u2066 and \u2028 line \u2029 ends \x85",
    "</script><b>&amp;",
    "😀" * 2000,
    "control \x00\x01\x1b[31m\r\n\t",
)
"""Texts that a store must give back exactly."""


def stale_items() -> list[StaleItem]:
    """A grid of stale items: small and large gaps, at dequeue and at commit, touched or not, updated or not."""
    grid = itertools.product((1, 2, 8, 9, 1000), ("dequeue", "commit"), (False, True), (False, True), (0, 1))
    items = []
    for gap, where, touched, superseded, updates in grid:
        items.append(
            StaleItem(
                item="p7",
                kind="proposal",
                where="commit" if where == "commit" else "dequeue",
                gap=gap,
                touched=touched or superseded,
                superseded=superseded,
                updates=updates,
                gain=1.0,
                parent_score=0.25,
                best_score=0.5,
                score=0.5 if where == "commit" else None,
                base=3,
                version=3 + gap,
            )
        )
    return items


def staleness_contract(policy: Staleness) -> None:
    """A staleness policy answers every stale item with an action and a reason, the same each time, and can be recorded."""
    for item in stale_items():
        verdict = policy.judge(item)
        assert isinstance(verdict, Verdict), f"judge returns a Verdict; got {verdict!r}"
        assert verdict.action in ACTIONS, f"the action is one of {ACTIONS}; got {verdict.action!r}"
        assert isinstance(verdict.reason, str) and verdict.reason.strip(), f"a verdict has a reason in words; got {verdict!r}"
        assert policy.judge(item) == verdict, f"the same item gets the same verdict; got {policy.judge(item)} after {verdict}"
    _recordable(policy)


def schedule_contract(schedule: Schedule) -> None:
    """A schedule admits no more than its depth, nothing beyond it, something when nothing is in flight, and can be recorded."""
    depth = schedule.depth
    assert isinstance(depth, int) and depth >= 1, f"depth is an integer of at least 1; got {depth!r}"
    for in_flight in (*range(min(depth, 64) + 1), depth, depth + 1, 10 * depth):
        starts = schedule.admits(Pace(in_flight, 0))
        assert isinstance(starts, Starts), f"admits returns Starts; got {starts!r}"
        assert starts.per_parent >= 1, f"at least one proposal shares a parent; got {starts!r}"
        most = max(0, depth - in_flight)
        assert 0 <= starts.count <= most, f"at most {most} may start with {in_flight} in flight; got {starts!r}"
        assert schedule.admits(Pace(in_flight, 0)) == starts, "the same pace gets the same answer"
    assert schedule.admits(Pace(0, 0)).count >= 1, "something starts when nothing is in flight, or the run never goes on"
    _recordable(schedule)


def _recordable(policy: Any) -> None:
    policies = Policies()
    described = policies.live(policy)
    assert policies(described) is policy, f"its description {described} leads back to it"
    assert policies(dict(described)) == policy, f"an equal description {described} leads back to it"


class _Log(Protocol):
    def append(self, entries: Sequence[Entry]) -> None: ...

    def close(self) -> None: ...


class _Looking(Protocol):
    def entries(self, after: int = 0) -> list[Entry]: ...

    def close(self) -> None: ...


def log_contract(writer: Callable[[], _Log], reader: Callable[[], _Looking]) -> None:
    """A store gives back exactly what was appended, in order, after any cursor, to readers that were open before.

    Args:
        writer: Makes the one writer of a new, empty log; called once.
        reader: Opens that log for reading; called several times while it grows.
    """
    log = writer()
    early = reader()
    assert early.entries() == [], "a new log is empty"
    told = [Entry(i, i / 8, Warned("hard", text)) for i, text in enumerate(HARD_TEXTS, 1)]
    log.append(told[:4])
    assert early.entries() == told[:4], "an open reader sees what was appended"
    log.append([])
    log.append(told[4:])
    log.append([Entry(len(told) + 1, 2.0, Paused()), Entry(len(told) + 2, 2.0, RunStopped("user", "enough"))])
    late = reader()
    everything = late.entries()
    assert everything[: len(told)] == told, "hostile texts come back exactly as they were"
    assert [entry.seq for entry in everything] == list(range(1, len(told) + 3)), "entries come in order"
    for cursor in range(len(everything) + 2):
        assert early.entries(after=cursor) == everything[cursor:], f"after {cursor} come exactly the later ones"
    log.close()
    assert late.entries() == everything, "closing the writer changes nothing"
    early.close()
    late.close()
