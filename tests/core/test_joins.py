"""A join: one job on several items. None of them is ever lost, whatever becomes of the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashevolve_lab.core import Graph, Item, Job, Route, RunState, Spend, Stage, StaleItem, Verdict, decode, encode, inputs
from flashevolve_lab.core import events as ev
from flashevolve_lab.policies import Pipelined, Reflective
from flashevolve_lab.testing import PureRun, Toy

DECISIONS = ("accept", "patch", "discard")


@dataclass(frozen=True, slots=True)
class Joining(Toy):
    """`Toy` with a patch stage whose jobs take several items. A result is ``{"items": {item: decision}}``."""

    @property
    def graph(self) -> Graph:
        stages = (
            Stage("make", to=("test",)),
            Stage("patch", to=("test", "make")),
            Stage("test", to=("make", "patch"), judged=True),
        )
        return Graph(stages, "make")

    def companions(self, state: RunState, item: Item, stage: str) -> Sequence[str] | None:
        return [one for one in state.queues["patch"] if one != item.id] if stage == "patch" else None

    def route(self, state: RunState, item: Item, stage: str, result: Mapping[str, Any]) -> Sequence[Route]:
        if stage != "patch":
            return super(Joining, self).route(state, item, stage, result)
        told: dict[str, str] = result["items"]
        together, version = tuple(told), state.pool.version
        child = {one: state.items[one].data["child"] for one in told}
        moves: list[Route] = [
            ev.Patched(one, child[one], "a0", how, "told to", (), version, together) for one, how in told.items()
        ]
        moves += [ev.ItemQueued(one, "test", base=version) for one, how in told.items() if how == "accept"]
        moves += [ev.ItemEnded(one, "discarded", "told to") for one, how in told.items() if how == "discard"]
        merged = [one for one, how in told.items() if how == "patch"]
        if not merged:
            return moves
        new = state.next_id("a")
        moves.append(
            ev.ArtifactMade(
                new, {"text": new}, f"hash of {new}", tuple(child[one] for one in merged), "patch", "text", merged[0]
            )
        )
        moves += [ev.ItemEnded(one, "distilled", f"into {new}") for one in merged[1:]]
        return [*moves, ev.ItemQueued(merged[0], "test", {"child": new}, base=version)]


def stale(n: int, batch: int = 3, **options: Any) -> PureRun:
    """A run with a commit that n proposals have not seen, all of them made: they are stale and ordered to be patched."""
    policy = Reflective(batch=batch, untouched=False, queue=99)
    run = PureRun(Joining(), schedule=Pipelined(n + 1), staleness=policy, **options)
    run.finish("test", score=0.0)
    run.finish("make", text="first")
    run.finish("test", score=0.5)
    run.set(schedule=Pipelined(n))
    for i in range(n):
        run.turn(inputs.JobDone(run.job("make").id, {"text": f"stale {i}"}))
    return run


def patching(run: PureRun) -> list[tuple[str, ...]]:
    return [job.items for job in run.state.jobs.values() if job.stage == "patch"]


def told(job: Job, decision: str) -> inputs.JobDone:
    return inputs.JobDone(job.id, {"items": dict.fromkeys(job.items, decision)})


def test_the_first_stale_item_starts_at_once_and_a_full_batch_does_not_wait() -> None:
    run = stale(6)
    assert patching(run) == [("p2",), ("p3", "p4", "p5")]
    assert list(run.state.queues["patch"]) == ["p6", "p7"]


def test_those_that_wait_go_together_when_nothing_is_read_any_more() -> None:
    run = stale(6)
    first, second = (job for job in list(run.state.jobs.values()) if job.stage == "patch")
    run.turn(told(first, "accept"))
    assert list(run.state.queues["patch"]) == ["p6", "p7"]
    run.turn(told(second, "discard"))
    assert patching(run) == [("p6", "p7")]


def test_a_batch_of_one_starts_each_at_once() -> None:
    assert patching(stale(4, batch=1)) == [("p2",), ("p3",), ("p4",), ("p5",)]


def test_the_batch_can_change_while_the_run_goes_on() -> None:
    run = stale(6)
    run.set(staleness=Reflective(batch=2, untouched=False, queue=99))
    assert patching(run)[-1] == ("p6", "p7")


@dataclass(frozen=True)
class Odd:
    """A policy from a notebook cell whose ``batch`` is no number."""

    batch: Any

    def judge(self, item: StaleItem) -> Verdict:
        return Verdict("patch", "always")


@pytest.mark.parametrize("batch", ["many", None, -3])
def test_a_batch_that_is_no_number_takes_one_at_a_time(batch: Any) -> None:
    run = stale(3)
    run.set(staleness=Odd(batch))
    assert all(len(items) == 1 for items in patching(run))


def test_items_that_were_patched_go_on_as_one_and_the_others_end_as_distilled() -> None:
    run = stale(4)
    job = next(job for job in run.state.jobs.values() if job.also)
    run.turn(inputs.JobDone(job.id, {"items": {"p3": "discard", "p4": "patch", "p5": "patch"}}))
    ends = {e.item: e.outcome for e in run.of(ev.ItemEnded)}
    assert (ends["p3"], ends["p5"]) == ("discarded", "distilled") and "p4" in run.state.items
    assert run.state.artifacts[run.state.items["p4"].data["child"]].parents == ("a4", "a5")
    assert [e.item for e in run.of(ev.Patched)] == ["p3", "p4", "p5"]
    assert run.state.counts["distilled"] == 1


def test_a_failed_batch_is_parted_and_each_is_read_alone_before_anything_else_waits() -> None:
    run = stale(6)
    job = next(job for job in run.state.jobs.values() if job.also)
    run.turn(inputs.JobBroke(job.id, "truncated", "cut off"))
    assert patching(run) == [("p2",), ("p3",), ("p4",), ("p5",)]
    run.turn(inputs.JobBroke(next(j.id for j in run.state.jobs.values() if j.item == "p3"), "truncated", "cut off"))
    assert run.state.items["p3"].stage == "make", "one that fails alone too is updated, as ever"


def test_an_item_that_failed_in_a_batch_may_join_another_when_it_is_stale_again() -> None:
    run = stale(4)
    job = next(job for job in run.state.jobs.values() if job.also)
    run.turn(inputs.JobBroke(job.id, "error", "no"))
    assert run.state.items["p3"].data["alone"]
    alone = next(job for job in run.state.jobs.values() if job.item == "p3")
    run.turn(told(alone, "accept"))
    assert run.state.items["p3"].stage == "test"
    run.give(inputs.Resume("2026-01-01T00:00:00+00:00"))  # it waits for its test again
    run.state.items["p3"].base = 0
    run.plan()
    assert run.state.items["p3"].stage == "patch" and not run.state.items["p3"].data["alone"]


@pytest.mark.parametrize("ending", [inputs.Stop("user", "enough"), inputs.Resume("2026-01-01T00:00:00+00:00")])
def test_a_batch_that_is_cut_off_goes_back_in_front_of_its_queue_in_its_order(ending: inputs.Input) -> None:
    run = stale(6)
    run.give(ending)
    assert list(run.state.queues["patch"]) == ["p2", "p3", "p4", "p5", "p6", "p7"]
    if run.state.status == "stopped":
        run.turn(inputs.Resume("2026-01-01T00:00:00+00:00"))
    else:
        run.plan()
    assert patching(run) == [("p2", "p6", "p7"), ("p3", "p4", "p5")], "those that were together are together again"


def test_a_reply_on_one_alone_that_had_arrived_before_a_kill_serves_again() -> None:
    run = stale(6)
    job = run.job("patch")
    run.give(inputs.CallWanted(job.id, "patch", "patch#1", 1, Spend()))
    run.give(ev.CallFinished("c0", "ok", Spend(), text="a verdict"))
    run.give(inputs.Resume("2026-01-01T00:00:00+00:00"))
    run.plan()
    assert patching(run)[0] == ("p2",)


@pytest.mark.parametrize("item", ["p3", "p4"])
@pytest.mark.parametrize("action", ["accept", "discard"])
def test_one_of_a_batch_is_taken_out_by_hand_and_the_others_are_read_again(item: str, action: str) -> None:
    run = stale(4)
    run.give(inputs.JudgeByHand(item, action, "I know better"))  # type: ignore[arg-type]
    assert list(run.state.queues["patch"]) == [one for one in ("p3", "p4", "p5") if one != item]
    assert (item in run.state.items) == (action == "accept")


def test_a_batch_survives_json_and_a_log_without_it_reads_as_one_item() -> None:
    started = next(e for e in stale(4).of(ev.JobStarted) if e.also)
    kind, body = encode(started)
    assert decode(kind, {**body, "also": list(started.also)}) == started
    del body["also"]
    assert decode(kind, body) == replace(started, also=())


# --- every interleaving -----------------------------------------------------------------------------------------------------

STEPS = ("make", "test", "accept", "patch", "discard", "mixed", "fail", "fail make", "hand", "kill", "stop", "pause", "batch")


def step(run: PureRun, what: str, which: int) -> None:
    """One thing that happens; nothing when it cannot."""
    jobs = [
        job
        for job in run.state.jobs.values()
        if job.stage == {"make": "make", "fail make": "make", "test": "test"}.get(what, "patch")
    ]
    job = jobs[which % len(jobs)] if jobs else None
    items = [item.id for item in run.state.items.values() if item.kind != "seed"]
    match what:
        case "make" if job:
            run.turn(inputs.JobDone(job.id, {"text": f"{job.id}", "passed": which % 4 != 0}))
        case "test" if job:
            run.turn(inputs.JobDone(job.id, {"score": which / 100}))
        case "accept" | "patch" | "discard" if job:
            run.turn(told(job, what))
        case "mixed" if job:
            run.turn(inputs.JobDone(job.id, {"items": {one: DECISIONS[(which + i) % 3] for i, one in enumerate(job.items)}}))
        case "fail" | "fail make" if job:
            run.turn(inputs.JobBroke(job.id, "error", "told to fail", again=which % 2 == 0))
        case "hand" if items:
            run.turn(inputs.JudgeByHand(items[which % len(items)], "discard" if which % 2 else "accept", "by hand"))
        case "kill":
            run.turn(inputs.Resume("2026-01-01T00:00:00+00:00"))
        case "stop":
            run.turn(inputs.Stop("user", "enough"))
            run.turn(inputs.Resume("2026-01-01T00:00:00+00:00"))
        case "pause":
            run.turn(inputs.Continue() if run.state.status == "paused" else inputs.Pause())
        case "batch":
            run.set(staleness=Reflective(batch=1 + which % 4, untouched=False, queue=2 + which % 9))
        case _:
            pass


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 60)), max_size=60), st.integers(1, 4))
def test_no_item_is_lost_in_any_order_of_results_failures_kills_and_commands(steps: list[tuple[str, int]], batch: int) -> None:
    run = stale(5, batch=batch, settings={"max_failures": 10_000}, budget={"proposals": 12})
    for what, which in steps:
        step(run, what, which)  # every turn ends with `check`
    if run.state.status == "paused":
        run.turn(inputs.Continue())
    for _ in range(400):
        if not run.state.jobs:
            break
        step(run, ("make", "test", "mixed")[len(run.entries) % 3], 7)
        step(run, "test", 1)
        step(run, "mixed", 0)
        step(run, "make", 0)
    assert not run.state.items and run.state.status == "stopped", "the run comes to its end"
    ends = Counter(e.item for e in run.of(ev.ItemEnded))
    assert set(ends) == {e.item for e in run.of(ev.ItemMade)} and set(ends.values()) == {1}
    began = {e.job for e in run.of(ev.JobStarted)}
    assert began == {e.job for kind in (ev.JobFinished, ev.JobFailed, ev.JobAbandoned, ev.JobLost) for e in run.of(kind)}
