"""Speculative completion and proven rejection, whole runs on virtual time: nothing lost, every roll-back complete, bounds sound."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flashevolve_lab as lab
from flashevolve_lab.algorithms import partials
from flashevolve_lab.core import Artifact, Entry, Item, Job, Member, Population, RunState, Spend, apply, check
from flashevolve_lab.core import events as ev

LANDSCAPES = (lab.IndependentRules, lab.ConflictingRules, lab.UnitingRules)


def evolved(folder: Path, completion: Any, *, landscape: Any = None, calls: int = 1_200, seed: int = 0, **knobs: Any) -> lab.Run:
    """A finished run on a simulated server of 32 slots."""
    landscape = landscape or lab.UnitingRules(seed=seed)
    run = lab.start(
        lab.simulated_task(landscape, 40, 40),
        lab.GEPA(minibatch=3),
        llm=lab.Simulated(landscape, speed=lab.FixedLatency(slots=32)),
        completion=completion,
        schedule=knobs.pop("schedule", lab.Pipelined(8)),
        staleness=knobs.pop("staleness", lab.Full()),
        budget=lab.Budget(metric_calls=calls),
        limits=lab.Limits(concurrency=48),
        clock=lab.Virtual(),
        seed=seed,
        folder=folder,
        **knobs,
    )
    assert run.wait(60).kind in ("budget", "done")
    return run


def kinds(run: lab.Run) -> Counter[str]:
    """How often each kind of event happened."""
    return Counter(type(entry.event).__name__ for entry in run.entries)


def audited(entries: Sequence[Entry], n_val: int) -> RunState:
    """The state at the end; on the way every invariant of speculation is tested at every entry that could break it."""
    state = RunState()
    owed: dict[str, set[int]] = {}  # released job → examples still to come
    for entry, following in zip(entries, [*entries[1:], None], strict=True):
        event = entry.event
        match event:
            case ev.RolledBack(_, artifact, item):
                assert state.provisional[item] == artifact
            case ev.Proven(_, _, artifact, stage, scored, wanted, reach):
                assert scored < wanted and artifact not in state.pool.members
                if stage == "validate":
                    best = state.pool.best()
                    assert best is not None and reach <= best.mean + 1e-12
            case ev.ItemMade(_, _, _, _, _, data) if data.get("parent"):
                assert data["parent"] in state.pool.members  # nothing starts on what has been rolled back
            case ev.Released(job):
                minibatch = state.items[state.jobs[job].item].data["minibatch"]
                parent = state.items[state.jobs[job].item].data["parent"]
                owed[job] = {e for e in minibatch if state.sample(parent, "train", e) is None}
            case ev.SampleScored(job) | ev.SampleFailed(job) if job in owed:
                owed[job].discard(event.example)
            case ev.JobFinished(job) if job in owed:
                assert not owed.pop(job), "a released rollout ended without its late samples"
            case _:
                pass
        apply(state, entry)
        best = state.pool.best()
        assert best is None or not best.rival, "something provisional is the best"
        if following is None or following.at > entry.at:  # between turns
            check(state)
        if isinstance(event, ev.RolledBack):
            assert event.artifact not in state.pool.members and event.artifact not in state.pool.front()
        if isinstance(event, ev.Confirmed):
            assert len(event.scores) >= 0.95 * n_val
    assert not state.provisional and not owed
    return state


def test_all_of_it_happens_and_holds(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed, landscape in product(range(2), LANDSCAPES):
        run = evolved(tmp_path, lab.Speculative(), landscape=landscape(seed=seed, n_rules=8), seed=seed)
        audited(run.entries, 40)
        seen += kinds(run)
    assert all(seen[kind] for kind in ("Released", "Provisional", "Confirmed", "RolledBack")), seen


def test_without_speculation_nothing_of_it_is_in_the_log(tmp_path: Path) -> None:
    assert not {"Released", "Proven", "Provisional", "Confirmed", "RolledBack"} & set(kinds(evolved(tmp_path, lab.Complete())))


def test_a_proven_rejection_never_costs_a_winner(tmp_path: Path) -> None:
    """With the same seed and one proposal at a time, the best score and the solved examples are those of the full validation."""
    stopped = 0
    for seed in range(4):
        landscape = lab.UnitingRules(n_rules=4, seed=seed, p_improve=0.5)
        both = [
            evolved(tmp_path, lab.Complete(bar), landscape=landscape, seed=seed, schedule=lab.Sequential(), calls=2_000)  # type: ignore[arg-type]
            for bar in ("", "front")
        ]
        plain, proven = (run.state.pool for run in both)
        stopped += kinds(both[1])["Proven"]
        assert proven.best().mean >= plain.best().mean - 1e-9  # type: ignore[union-attr]
        assert all((proven.top(e) or 0) >= (plain.top(e) or 0) for e in range(40))
    assert stopped


@pytest.mark.parametrize("staleness", [lab.Full(), lab.Guarded(0), lab.Guarded(2), lab.Reflective()], ids=str)
def test_no_livelock_over_depth_gap_and_share(tmp_path: Path, staleness: Any) -> None:
    for depth, share in product((1, 4, 16), (0.34, 0.6)):
        policy = lab.Speculative(rollout=share, validation=share)
        run = evolved(tmp_path, policy, schedule=lab.Pipelined(depth), staleness=staleness, calls=700, seed=depth)
        state = audited(run.entries, 40)
        assert state.spent.metric_calls <= 700 and state.spent.proposals >= 5
        assert run.status.kind == "budget"


def test_the_same_seed_gives_the_same_log(tmp_path: Path) -> None:
    first, second = (
        [e.event for e in evolved(tmp_path / str(i), lab.Speculative(), seed=5).entries][1:] for i in range(2)
    )
    assert first == second


HANDLES: list[lab.Run] = []


@dataclass(frozen=True)
class StopsAtTheFirstInsertion:
    """Speculates, and has the run stopped right after something became provisional."""

    prefix: float = 0.25

    def judge(self, partial: lab.Partial) -> lab.Ruling:
        """As `Speculative`."""
        ruling = lab.Speculative().judge(partial)
        if ruling.action == "insert":
            HANDLES[0].stop()
        return ruling


def test_a_stop_rolls_back_and_a_resume_goes_on(tmp_path: Path) -> None:
    landscape = lab.UnitingRules(seed=1, n_rules=8)
    model = lab.Simulated(landscape, speed=lab.FixedLatency(slots=32))
    task = lab.simulated_task(landscape, 40, 40)
    run = lab.start(
        task, llm=model, completion=StopsAtTheFirstInsertion(), schedule=lab.Pipelined(8), staleness=lab.Full(),
        budget=lab.Budget(metric_calls=3_000), limits=lab.Limits(concurrency=48), clock=lab.Virtual(), folder=tmp_path, paused=True,
    )  # fmt: skip
    HANDLES[:] = [run]
    run.resume()
    run.wait(30)
    state = audited(run.entries, 40)
    gone = [e.event for e in run.entries if isinstance(e.event, ev.RolledBack)]
    assert len(gone) == 1 and "stopped" in gone[0].reason
    assert gone[0].item in state.items, "its item waits for the resume"
    resumed = lab.resume(run.path, task=task, llm=model, clock=lab.Virtual(), completion=lab.Speculative())
    assert resumed.wait(60).kind in ("budget", "done")
    audited(resumed.entries, 40)


def test_a_provisional_artifact_survives_a_kill_and_is_settled_by_the_resume(tmp_path: Path) -> None:
    """The log is cut right after an insertion, as a kill would leave it."""
    from flashevolve_lab.store import Writer

    landscape = lab.UnitingRules(seed=2, n_rules=8)
    run = evolved(tmp_path, lab.Speculative(), landscape=landscape, seed=2)
    cut = next(i for i, entry in enumerate(run.entries) if isinstance(entry.event, ev.Provisional)) + 1
    path = tmp_path / "killed.sqlite"
    writer = Writer(path, create=True)
    writer.append(run.entries[:cut])
    writer.close()
    killed = lab.open(path)
    assert killed.state.provisional and killed.best is not None and killed.best.artifact not in killed.state.provisional.values()
    model = lab.Simulated(landscape, speed=lab.FixedLatency(slots=32))
    resumed = lab.resume(path, task=lab.simulated_task(landscape, 40, 40), llm=model, clock=lab.Virtual())
    assert resumed.wait(60).kind == "budget"
    state = audited(resumed.entries, 40)
    settled = [e.event for e in resumed.entries[cut:] if isinstance(e.event, (ev.Confirmed, ev.RolledBack))]
    assert settled and settled[0].artifact == run.entries[cut - 1].event.artifact
    assert state.spent.metric_calls <= 1_200


@dataclass(frozen=True)
class Broken:
    """A completion policy that raises."""

    def judge(self, partial: lab.Partial) -> lab.Ruling:
        """Never works."""
        raise RuntimeError(f"no idea at {partial.stage}")


def test_a_policy_that_fails_is_said_once_and_everything_waits(tmp_path: Path) -> None:
    run = evolved(tmp_path, Broken(), calls=400)
    warned = [e.event for e in run.entries if isinstance(e.event, ev.Warned) and e.event.kind == "completion"]
    assert len(warned) == 1 and "no idea" in warned[0].message
    assert run.status.proposals > 3


def test_a_policy_changes_mid_run(tmp_path: Path) -> None:
    landscape = lab.UnitingRules(seed=3)
    run = lab.start(
        lab.simulated_task(landscape, 40, 40), llm=lab.Simulated(landscape), budget=lab.Budget(metric_calls=900), clock=lab.Virtual(),
        folder=tmp_path, paused=True,
    )  # fmt: skip
    run.set(completion=lab.Speculative(), why="faster")
    run.resume()
    run.wait(60)
    changes = [e.event for e in run.entries if isinstance(e.event, ev.SettingChanged)]
    assert [(c.knob, c.new["name"], c.why) for c in changes] == [("completion", "Speculative", "faster")]
    assert kinds(run)["Released"]


@dataclass(frozen=True)
class Restless:
    """A staleness policy that leaves nothing stale where it is."""

    action: str

    def judge(self, item: lab.StaleItem) -> lab.Verdict:
        """Updates or patches before validation, accepts after it."""
        return lab.Verdict(self.action if item.where == "dequeue" else "accept", "restless")  # type: ignore[arg-type]


@pytest.mark.parametrize("action", ["update", "patch"])
def test_a_provisional_artifact_whose_validation_is_tried_again_is_judged_at_its_commit_only(action: str, tmp_path: Path) -> None:
    """Its text is in the pool: no policy may send its item elsewhere before it is confirmed or rolled back."""
    landscape, again = lab.UnitingRules(seed=1), 0
    for seed in range(3):
        model = lab.Simulated(landscape, speed=lab.FixedLatency(slots=32), faults=lab.Faults(server_error=0.1), seed=seed)
        run = lab.start(
            lab.simulated_task(landscape, 40, 20), llm=model, completion=lab.Speculative(), staleness=Restless(action),
            schedule=lab.Pipelined(12), budget=lab.Budget(metric_calls=1_000), limits=lab.Limits(retries=0), clock=lab.Virtual(),
            seed=seed, folder=tmp_path,
        )  # fmt: skip
        assert run.wait(60).kind in ("budget", "done"), run.status.reason
        state = RunState()
        for entry in run.entries:
            event = entry.event
            if isinstance(event, ev.ItemQueued) and event.item in state.provisional:
                assert event.stage == "validate"
                again += event.retry
            if isinstance(event, ev.StalenessJudged) and event.item in state.provisional:
                assert event.where == "commit"
            apply(state, entry)
        check(state)
        assert not state.provisional
    assert again > 0, "no validation of a provisional artifact was tried again"


# --- the facts ------------------------------------------------------------------------------------------------------------

SCORES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, None]), min_size=2, max_size=12)


@given(SCORES, st.randoms(use_true_random=False))
def test_reach_is_never_below_what_comes_out(scores: list[float | None], order: random.Random) -> None:
    """Whatever the order, and whatever is missing at the end."""
    n, numbers = len(scores), list(range(len(scores)))
    order.shuffle(numbers)
    final = [s for s in scores if s is not None]
    if not final:
        return
    so_far: list[float] = []
    for example in numbers:
        if (score := scores[example]) is not None:
            so_far.append(score)
            reach = (sum(so_far) + (n - len(so_far)) * 1.0) / n
            assert reach >= sum(final) / len(final) - 1e-12


def member(id: str, version: int, scores: dict[int, float], rival: str = "") -> Member:
    """One for a pool."""
    return Member(id, version, version, ("a0",) if id != "a0" else (), "prompt", scores, sum(scores.values()) / max(1, len(scores)), 1.0, rival)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from("cpr"), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=6, max_size=6)), max_size=14))
def test_a_roll_back_leaves_the_pool_as_if_it_had_never_been(moves: list[tuple[str, list[float]]]) -> None:
    pool, plain = Population(), []
    early: dict[str, list[float]] = {}
    for i, (move, scores) in enumerate([("c", [0.0] * 6), *moves]):
        full = dict(enumerate(scores))
        if move == "c":
            pool.add(member(f"a{i}", pool.version + 1, full))
            plain.append(f"a{i}")
        elif move == "p":
            pool.add(member(f"a{i}", pool.version + 1, dict(list(full.items())[:3]), rival="a0"))
            early[f"a{i}"] = scores
        elif early:
            id, kept = early.popitem()
            if scores[0] < 1.0:
                pool.remove(id)
            else:
                old = pool.members[id]
                pool.confirm(member(id, old.version, dict(enumerate(kept))))
                plain.append(id)
    for id in list(early):
        pool.remove(id)
    again = Population()
    for m in pool.order:
        again.add(m)
    assert dict(pool.front()) == dict(again.front()) and set(pool.members) == set(plain)
    assert all(pool.wins(m.id) == again.wins(m.id) for m in pool.order)
    assert all(pool.top(e) == again.top(e) for e in range(6))


def situated(pool: Population, parent: str, first: tuple[int, float], n: int = 3) -> lab.Partial:
    """A validation of a child of ``parent`` after its first sample."""
    made = ev.ArtifactMade("c", {"prompt": "c"}, "hash of c", (parent,), "reflection", "prompt", "p1")
    sample = ev.SampleScored("j1", "c", "val", *first)
    state = RunState(pool=pool)
    state.items["p1"] = Item("p1", "proposal", 0, 1, {"parent": parent, "child": "c"}, "validate", 0.0)
    state.artifacts["c"] = Artifact("c", made.components, made.hash, (parent,))
    told = partials.in_validation(state, Job("j1", "validate", 0, "p1", 0, 0.0, Spend()), sample, n, 1.0)
    assert told is not None
    return told[0]


def test_nothing_is_proven_by_what_may_be_rolled_back() -> None:
    pool = Population()
    pool.add(member("a0", 0, {0: 1.0, 1: 1.0, 2: 0.0}))
    pool.add(member("a1", 1, {2: 1.0}, rival="a0"))
    told = situated(pool, "a1", (0, 0.0))
    assert told.alone == 1, "on example 2 it is ahead of everything that is there to stay"
    assert lab.Complete("front").judge(told).action == lab.Complete("parent").judge(told).action == "wait"
    pool.remove("a1")
    assert situated(pool, "a1", (0, 0.0)).alone == 1
    assert lab.Complete("front").judge(situated(pool, "a0", (2, 0.0))).action == "stop"


def test_a_task_whose_perfect_value_is_none_proves_nothing() -> None:
    pool = Population()
    pool.add(member("a0", 0, {0: 7.0, 1: 40.0, 2: 55.0}))
    told = situated(pool, "a0", (0, 5.0))
    assert lab.Complete("parent").judge(told).action == "wait"


def test_the_prefix_keeps_what_tells_artifacts_apart() -> None:
    pool = Population()
    assert partials.prefix_of(pool, 8, 1.0, 0.25, 3) == (0, 1)
    for i in range(3):
        pool.add(member(f"a{i}", i, {e: 1.0 if e < 2 else 0.0 for e in range(8)}))
    assert partials.prefix_of(pool, 8, 1.0, 0.25, 3) == (2, 3)
    assert partials.prefix_of(pool, 8, 1.0, 0.25, 4) == (0, 1), "four rounds have not been"
    assert partials.prefix_of(pool, 8, 1.0, 1.0, 3) == (2, 3, 4, 5, 6, 7, 0, 1)
