"""Contract suites: what every policy and every store must do, whoever wrote it. Call one from a test of your own.

Each is a plain function that raises `AssertionError` with a sentence saying which promise is broken.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from flashevolve_lab.core import (
    Acceptance,
    Accepting,
    Change,
    Entry,
    Gate,
    Load,
    Pace,
    Schedule,
    ServerLoad,
    StageLoad,
    StaleItem,
    Staleness,
    Starts,
    Verdict,
    Workers,
)
from flashevolve_lab.core.events import Paused, RunStopped, Warned
from flashevolve_lab.policies import Policies

REST = 1_000  # reviews after which slots stand still
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


def gates() -> list[Gate]:
    """A grid of gates: behind, level and ahead, after one to eight rounds."""
    scores: tuple[tuple[float, ...], ...] = ((0.0, 0.0, 0.0), (0.5, 0.0, 1.0), (1.0, 1.0, 1.0))
    return [
        Gate("p7", "proposal", (parent,) * rounds, (child,) * rounds)
        for parent, child, rounds in itertools.product(scores, scores, range(1, 9))
    ]


def acceptance_contract(policy: Accepting) -> None:
    """An acceptance policy answers every gate with a reason, the same each time, decides within eight rounds, and can be recorded."""
    for gate in gates():
        given = policy.judge(gate)
        assert isinstance(given, Acceptance), f"judge returns an Acceptance; got {given!r}"
        assert isinstance(given.reason, str) and given.reason.strip(), f"an acceptance has a reason in words; got {given!r}"
        assert policy.judge(gate) == given, f"the same gate gets the same answer; got {policy.judge(gate)} after {given}"
        assert not given.again or gate.rounds < 8, f"it decides within 8 rounds; got {given!r} after {gate.rounds}"
    _recordable(policy)


def schedule_contract(schedule: Schedule) -> None:
    """A schedule admits no more than its depth, nothing beyond it, something when nothing is in flight, and can be recorded.

    One with the depth "auto" admits up to its ``most``, and what it wants in a review stays within its bounds.
    """
    found: Any = schedule
    if schedule.depth == "auto":
        for load in loads():
            for change in found.review(load):
                assert isinstance(change, Change) and change.what == "depth", f"review changes the depth only; got {change!r}"
                assert found.least <= change.to <= found.most, f"the depth stays within its bounds; got {change!r}"
            assert list(found.review(load)) == list(found.review(load)), "the same load gets the same answer"
    depth = found.most if schedule.depth == "auto" else schedule.depth
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


def loads() -> list[Load]:
    """A grid of loads: servers idle to refusing, stages idle to crowded, few and many proposals in flight."""
    says: list[dict[str, Any]] = [{}, {"running": 60.0, "waiting": 0.0, "kv_cache": 0.2, "backlog": 500}]
    says.append({"running": 60.0, "waiting": 40.0, "kv_cache": 1.0})
    servers = [
        ServerLoad(busy=busy, lately=busy, calls=calls, ceiling=64, lowered=refused > 0, refused=refused, **told)
        for busy in (0.0, 0.5, 0.93, 0.965, 1.0)
        for calls, refused in ((1, 0), (64, 0), (64, 3))
        for told in says
    ]
    shapes = [
        (StageLoad("first", slots, slots * share, waiting, rate), StageLoad("last", slots, 0.0, 3.0, rate / 4, slots > 8))
        for slots, share, waiting, rate in ((1, 0.0, 0.0, 0.0), (1, 1.0, 5.0, 60.0), (16, 0.3, 0.0, 8.0), (70, 1.0, 90.0, 900.0))
    ]
    return [
        Load(5.0, stages, server, depth, depth * share, 10, 2, 5 if share == 1.0 else 0, 1_000)
        for stages, server, depth, share in itertools.product(shapes, servers, (1, 300), (0.5, 1.0))
    ]


def workers_contract(policy: Workers) -> None:
    """A worker policy answers every load with changes of known things to at least 1, each with a reason, the same each time.

    And its wishes lead somewhere: at a load that never changes, slots that follow them come to rest.
    """
    every_s = policy.every_s
    assert every_s is None or every_s > 0, f"every_s is a number of seconds above 0, or None; got {every_s!r}"
    for load in loads():
        changes = list(policy.judge(load))
        known = (*(stage.stage for stage in load.stages), "concurrency")
        for change in changes:
            assert isinstance(change, Change), f"judge returns Changes; got {change!r}"
            assert change.what in known, f"a change is of one of {known}; got {change!r}"
            assert isinstance(change.to, int) and change.to >= 1, f"at least 1; got {change!r}"
            assert isinstance(change.why, str) and change.why.strip(), f"a change has a reason in words; got {change!r}"
            assert change.after >= 1 and change.pause >= 0, f"it takes one review at least; got {change!r}"
        assert len({change.what for change in changes}) == len(changes), f"one change of each thing; got {changes}"
        assert list(policy.judge(load)) == changes, "the same load gets the same answer"
        _comes_to_rest(policy, load)
    _recordable(policy)


def _comes_to_rest(policy: Workers, load: Load) -> None:
    for _ in range(REST):
        wanted = {change.what: change.to for change in policy.judge(load) if change.what != "concurrency"}
        moved = tuple(replace(stage, slots=wanted.get(stage.stage, stage.slots)) for stage in load.stages)
        if moved == load.stages:
            return
        load = replace(load, stages=moved)
    raise AssertionError(f"slots come to rest at a load that does not change; after {REST} reviews they still move at {load}")


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
