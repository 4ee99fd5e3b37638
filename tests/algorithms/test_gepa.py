"""GEPA's rules, on a run without a shell: the world scores a text by what is written in it.

A component's text is digits: "110|01" scores 1, 1, 0 on the train set and 0, 1 on the validation set. With several components the
score is the highest of theirs.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest

from flashevolve_lab.algorithms import GEPA, Brief, Draft, Trouble
from flashevolve_lab.algorithms.gepa import BoundGEPA
from flashevolve_lab.core import Event, Item, Sample, Spend, Trial, Verdict, draw, inputs, strictly
from flashevolve_lab.core import events as ev
from flashevolve_lab.core.events import (
    ArtifactMade,
    Committed,
    Gated,
    ItemEnded,
    ItemMade,
    ItemQueued,
    JobStarted,
    StalenessJudged,
    Warned,
)
from flashevolve_lab.core.step import MAX_IDLE
from flashevolve_lab.errors import BadReply, SetupError
from flashevolve_lab.policies import Batched, Full, Guarded, Pipelined, Sequential
from flashevolve_lab.tasks import Prompt, Task
from flashevolve_lab.testing import PureRun


def returned(work: Coroutine[Any, Any, Any]) -> Any:
    """What a coroutine returns that never really waits."""
    try:
        work.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the work waits for something")


def digit(components: Mapping[str, str], split: str, example: int) -> float:
    """The score of a text on an example."""
    parts = [text.split("|")[split == "val"] for text in components.values() if "|" in text]
    return max((float(part[example]) for part in parts if example < len(part)), default=0.0)


@dataclass
class Says:
    """A proposer that gives one text after the other."""

    texts: list[Any] = field(default_factory=list)
    briefs: list[Brief] = field(default_factory=list)

    async def propose(self, brief: Brief, llm: Any) -> Draft:
        self.briefs.append(brief)
        text = self.texts.pop(0)
        if isinstance(text, Exception):
            raise text
        return Draft(text, f"raw: {text}")

    def describe(self) -> dict[str, Any]:
        return {"name": "Says"}


class World:
    """GEPA on a task scored by `digit`, driven job by job; ``asked`` is every (text, split, example) that was really run."""

    first: Sequence[int] = ()
    also: Sequence[Item] = ()

    def __init__(
        self,
        *texts: Any,
        seed: str | Mapping[str, str] = "000000|0000",
        n_train: int = 6,
        n_val: int = 4,
        schedule: Any = None,
        staleness: Any = None,
        budget: Mapping[str, float] | None = None,
        settings: Mapping[str, Any] | None = None,
        **gepa: Any,
    ) -> None:
        self.proposer = Says(list(texts))
        program = Prompt(component=next(iter(seed))) if isinstance(seed, Mapping) else Prompt()
        examples = [{"input": str(i)} for i in range(max(n_train, n_val))]
        task = Task(examples[:n_train], examples[:n_val], seed, program, lambda example, output: 0.0)
        self.gepa: BoundGEPA = GEPA(**{"minibatch": 2, **gepa}, proposer=self.proposer).bind(task, 0)
        self.asked: list[tuple[str, str, int]] = []
        self.lost: set[tuple[str, int]] = set()
        self.item: Item
        options = {"schedule": schedule or Sequential(), "staleness": staleness or Full()}
        self.run = PureRun(self.gepa, **options, budget=budget, settings=settings)
        self.state = self.run.state
        self.do("validate")

    def do(self, stage: str, item: str | None = None) -> list[Event]:
        """Do the work of a running job of this stage (the oldest, or that of the item); then a turn."""
        jobs = [job for job in self.state.jobs.values() if job.stage == stage and item in (None, job.item)]
        assert jobs, f"nothing to {stage}; {self.state.jobs}"
        self.item = self.state.items[jobs[0].item]
        self.job = jobs[0].id
        try:
            result = returned(self.gepa.work(stage, self))
        except Trouble as trouble:
            given: Any = inputs.JobBroke(self.job, trouble.kind, str(trouble), trouble.raw, trouble.again)
        else:
            given = inputs.JobDone(self.job, result)
        return self.run.turn(given)

    def through(self, item: str, *stages: str) -> list[Event]:
        """Take an item through stages."""
        return [event for stage in stages for event in self.do(stage, item)]

    def commit(self, item: str) -> None:
        """Take an item from its rollout to its commit."""
        self.through(item, "rollout", "propose", "gate", "validate")
        assert self.end(item) == "committed"

    def end(self, item: str) -> str:
        """How an item ended, or ""."""
        return next((event.outcome for event in self.run.of(ItemEnded) if event.item == item), "")

    def data(self, item: str) -> Mapping[str, Any]:
        """What an item was made with."""
        return next(event.data for event in self.run.of(ItemMade) if event.item == item)

    # --- the bench of a job

    async def score(self, artifact: str, split: str, examples: Sequence[int]) -> dict[int, Sample]:
        samples = {}
        for example in examples:
            text = "/".join(self.state.artifacts[artifact].components.values())
            self.asked.append((text, split, example))
            if (split, example) in self.lost:
                self.run.give(ev.SampleFailed(self.job, artifact, split, example, "transient", "no answer"))
                continue
            score = digit(self.state.artifacts[artifact].components, split, example)
            self.run.give(ev.SampleScored(self.job, artifact, split, example, score, "out", "back"))
            samples[example] = Sample(score, "out", "back")
        return samples

    def asker(self, role: str, key: str) -> Any:
        return None

    def draw(self, use: str) -> Random:
        return draw(0, self.item.id, use)


def better(i: int, n_train: int = 6, n_val: int = 4) -> str:
    """Distinct texts that pass every gate and tie on validation with each other: 1 everywhere, with a number behind."""
    return "1" * n_train + "|" + "1" * n_val + f"#{i}"


def some(val: str, i: int = 0, train: str = "555555") -> str:
    """A text with these validation scores."""
    return f"{train}|{val}#{i}"


# --- one proposal ---------------------------------------------------------------------------------------------------------


def test_the_seed_is_validated_whole_and_becomes_version_zero() -> None:
    world = World(seed="000000|0110")
    assert world.run.of(Committed)[0].scores == {"0": 0.0, "1": 1.0, "2": 1.0, "3": 0.0}
    assert world.state.pool.version == 0


def test_a_proposal_goes_rollout_propose_gate_validate_commit() -> None:
    world = World(better(1))
    world.commit("p1")
    assert [event.stage for event in world.run.of(JobStarted)] == [
        "validate",
        "rollout",
        "propose",
        "gate",
        "validate",
        "rollout",
    ]
    committed = world.run.of(Committed)[1]
    assert (committed.version, committed.artifact, committed.item, committed.examples) == (1, "a1", "p1", 4)
    made = world.run.of(ArtifactMade)[1]
    assert (made.parents, made.origin, made.component, made.item) == (("a0",), "reflection", "prompt", "p1")


def test_the_proposer_reads_the_parents_rollouts_on_the_minibatch() -> None:
    world = World(better(1), seed="001000|0000")
    world.through("p1", "rollout", "propose")
    brief = world.proposer.briefs[0]
    assert (brief.current, brief.component) == ("001000|0000", "prompt")
    minibatch = world.data("p1")["minibatch"]
    assert [record.input for record in brief.records] == [f"input: {example}" for example in minibatch]
    assert [record.score for record in brief.records] == [float(example == 2) for example in minibatch]
    assert {(record.output, record.feedback) for record in brief.records} == {("out", "back")}


def test_child_and_parent_meet_on_the_same_minibatch() -> None:
    world = World(better(1))
    world.through("p1", "rollout", "propose", "gate")
    minibatch = world.data("p1")["minibatch"]
    train = [(text, example) for text, split, example in world.asked if split == "train"]
    assert train == [("000000|0000", e) for e in minibatch] + [(better(1), e) for e in minibatch]


@pytest.mark.parametrize(("child", "passed"), [("000000|9999", False), ("111111|0000#", False), ("222222|0000", True)])
def test_a_child_passes_when_its_sum_is_strictly_higher(child: str, passed: bool) -> None:
    world = World(child, seed="111111|0000", skip_perfect=False)
    world.through("p1", "rollout", "propose", "gate")
    gated = world.run.of(Gated)[0]
    assert (gated.passed, gated.first, gated.parent_sum) == (passed, True, 2.0)
    assert world.end("p1") == ("" if passed else "rejected")
    assert world.state.spent.proposals == 1


def test_equal_scores_in_another_order_are_no_improvement() -> None:
    world = World()
    item = Item("p1", "proposal", 0, 1, {"child": "a1", "parent": "a0", "minibatch": [0, 1, 2]}, "gate", 0.0)
    result = {"parent": [0.3, 0.2, 0.1], "child": [0.1, 0.2, 0.3]}
    assert sum(result["child"]) > sum(result["parent"]), "by rounding alone"
    trial = next(move for move in world.gepa.route(world.state, item, "gate", result) if isinstance(move, Trial))
    assert not strictly(trial.gate).passed


def test_a_perfect_minibatch_ends_the_proposal_before_it_costs_a_reflection() -> None:
    world = World(better(1), seed="111111|0000")
    world.do("rollout")
    assert world.end("p1") == "skipped"
    assert not world.proposer.briefs and world.state.spent.proposals == 0


def test_a_minibatch_with_one_imperfect_example_is_not_skipped() -> None:
    world = World(better(1), seed="100000|0000", n_train=2)
    world.do("rollout")
    assert world.state.items["p1"].stage == "propose"


def test_perfect_minibatches_are_not_skipped_when_told_so() -> None:
    world = World(better(1), seed="111111|0000", skip_perfect=False)
    world.do("rollout")
    assert world.state.items["p1"].stage == "propose"


def test_when_every_minibatch_is_perfect_the_run_stops_with_nothing_left_to_learn_at_no_further_cost() -> None:
    world = World(seed="111111|0000")
    for _ in range(MAX_IDLE):
        world.do("rollout")
    stop = world.state.stop
    assert stop is not None and stop.kind == "done" and "nothing left to learn" in stop.reason
    assert world.state.spent.metric_calls == 4 + 6, "each training example once"


@pytest.mark.parametrize(
    ("text", "kind"),
    [("  ", "empty"), (" 000000|0000\n", "unchanged"), (BadReply("two blocks", "raw!", "ambiguous"), "ambiguous")],
)
def test_a_text_that_cannot_be_used_is_refused_with_its_kind_and_never_becomes_an_artifact(text: Any, kind: str) -> None:
    world = World(text)
    happened = world.through("p1", "rollout", "propose")
    assert world.end("p1") == "refused"
    assert [event.kind for event in happened if hasattr(event, "raw")] == [kind]
    assert len(world.state.artifacts) == 1
    assert world.state.spent.proposals == 0


def test_a_text_that_exists_already_is_refused_whatever_became_of_it() -> None:
    rejected = "000000|9999"
    world = World(rejected, rejected, better(1), "000000|0000", skip_perfect=False)
    world.through("p1", "rollout", "propose", "gate")
    assert world.end("p1") == "rejected"
    world.through("p2", "rollout", "propose")
    world.commit("p3")
    world.through("p4", "rollout", "propose")
    refused = [event for event in world.run.of(ItemEnded) if event.outcome == "refused"]
    assert [(event.item, event.artifact) for event in refused] == [("p2", "a1"), ("p4", "a0")], "the twin is named"
    assert all("duplicate" in event.reason for event in refused)


# --- components -----------------------------------------------------------------------------------------------------------

THREE = {"a": "000000|0000", "b": "x", "c": "y"}


def test_components_are_rewritten_in_turn_for_each_parent() -> None:
    world = World(seed=THREE, schedule=Pipelined(5))
    assert [world.data(f"p{i}")["component"] for i in range(1, 6)] == ["a", "b", "c", "a", "b"]


def test_a_child_goes_on_with_the_component_after_the_one_that_made_it() -> None:
    world = World("z", "111111|1111", seed=THREE)
    world.through("p1", "rollout", "propose", "gate")
    assert world.end("p1") == "rejected"
    world.commit("p2")
    assert world.data("p2")["component"] == "b"
    assert (world.data("p3")["parent"], world.data("p3")["component"]) == ("a2", "c")


def test_in_a_batch_that_shares_a_parent_components_go_round_too() -> None:
    world = World(seed=THREE, schedule=Batched(1, 4))
    assert [world.data(f"p{i}")["component"] for i in range(1, 5)] == ["a", "b", "c", "a"]


def test_only_the_chosen_component_is_rewritten() -> None:
    world = World("new", seed=THREE)
    world.through("p1", "rollout", "propose")
    assert world.state.artifacts["a1"].components == {**THREE, "a": "new"}


# --- selection ------------------------------------------------------------------------------------------------------------


def test_parents_come_from_the_front_only_each_draw_keyed_by_the_seed_and_the_proposal() -> None:
    world = World(some("5500", 1), some("0099", 2, "666666"), skip_perfect=False)
    world.commit("p1")
    world.commit("p2")
    assert set(world.state.pool.front()) == {"a1", "a2"}

    def drawn(seed: int) -> str:
        new = replace(world.gepa, run_seed=seed).begin(world.state, (), None)
        assert new is not None
        return str(new.data["parent"])

    assert {drawn(seed) for seed in range(40)} == {"a1", "a2"}
    assert [drawn(seed) for seed in range(9)] == [drawn(seed) for seed in range(9)]


def test_minibatches_of_proposals_in_flight_do_not_overlap() -> None:
    for schedule in (Pipelined(3), Batched(3, 1), Batched(1, 3)):
        world = World(schedule=schedule)
        used = [example for item in world.state.items.values() for example in item.data["minibatch"]]
        assert sorted(used) == list(range(6))


def test_the_cursor_of_the_sampler_is_state_and_not_carried_by_the_items() -> None:
    world = World(schedule=Batched(2, 1))
    assert world.state.cursor == world.data("p2")["cursor"]
    assert all("cursor" not in item.data for item in world.state.items.values())


# --- money ----------------------------------------------------------------------------------------------------------------


def test_what_a_stage_needs_counts_only_what_is_not_in_the_cache() -> None:
    world = World("000000|9999", better(1), n_train=2)
    need = world.gepa.need
    item = world.state.items["p1"]
    assert need(world.state, item, "rollout") == Spend(metric_calls=2)
    world.through("p1", "rollout", "propose", "gate")
    item = world.state.items["p2"]
    assert need(world.state, item, "rollout") == Spend(metric_calls=0), "the parent's scores are known"
    asked = len(world.asked)
    world.through("p2", "rollout", "propose")
    assert len(world.asked) == asked
    item = world.state.items["p2"]
    assert need(world.state, item, "propose").metric_calls == 0
    assert need(world.state, item, "gate") == Spend(metric_calls=2)
    world.do("gate", "p2")
    assert need(world.state, world.state.items["p2"], "validate") == Spend(metric_calls=4)


def test_without_the_cache_every_rollout_is_run_again() -> None:
    world = World("000000|9999", n_train=2, cache=False)
    world.through("p1", "rollout", "propose", "gate")
    assert world.gepa.need(world.state, world.state.items["p2"], "rollout") == Spend(metric_calls=2)
    asked = len(world.asked)
    world.do("rollout", "p2")
    assert len(world.asked) == asked + 2


def test_the_cache_is_keyed_by_content_and_split() -> None:
    world = World("000000|9999", better(1), n_train=4, n_val=4)
    world.through("p1", "rollout")
    state = world.state
    seed = state.artifacts["a0"]
    assert set(state.samples[seed.hash, "train"]) == set(world.data("p1")["minibatch"])
    assert (seed.hash, "val") not in state.samples, "validation scores live in the pool once committed"
    assert all(state.sample("a0", "val", example) is None for example in range(4)), "training rollouts are no validation scores"


def test_nothing_is_ever_run_twice() -> None:
    texts = ["000000|9999", *(some(f"{i}0{9 - i}0", i, str(i) * 6) for i in range(1, 9))]
    world = World(*texts, schedule=Pipelined(2), staleness=Guarded(0, beyond="update"), skip_perfect=False)
    for _ in range(80):
        job = next(iter(world.state.jobs.values()), None)
        if job is None or (job.stage == "propose" and not world.proposer.texts):
            break
        world.do(job.stage, job.item)
    assert world.state.pool.version >= 3
    assert len(world.asked) == len(set(world.asked))


def test_a_proposal_is_begun_only_when_its_rollout_its_gate_and_a_validation_fit_the_budget() -> None:
    world = World("000000|9999", budget={"metric_calls": 4 + 8})
    world.through("p1", "rollout", "propose", "gate")
    assert world.state.spent.metric_calls == 8
    assert world.state.stop is not None and world.state.stop.kind == "budget"


def test_the_forecast_counts_the_seed_and_one_acceptance_in_five() -> None:
    task = World().gepa.task
    proposals, how = GEPA(minibatch=2).forecast(task, {"metric_calls": 4 + 48})
    assert proposals == pytest.approx(10.0)
    assert "4 for the seed, then 4 and in one of five cases 4 more" in how
    assert GEPA(minibatch=2).forecast(task, {"metric_calls": 3})[0] == 0.0
    assert GEPA(minibatch=2).forecast(task, {"metric_calls": 10**6, "proposals": 7})[0] == 7


# --- validation -----------------------------------------------------------------------------------------------------------


def test_samples_that_could_not_be_scored_are_tried_again_and_then_missing_not_zero() -> None:
    world = World(better(1), min_coverage=0.75)
    world.through("p1", "rollout", "propose", "gate")
    world.lost = {("val", 2)}
    world.do("validate", "p1")
    assert world.state.items["p1"].tries == 1, "a second try"
    asked = len(world.asked)
    world.do("validate", "p1")
    assert world.asked[asked:] == [(better(1), "val", 2)], "only what is missing is run again"
    assert world.run.of(Committed)[1].scores == {"0": 1.0, "1": 1.0, "3": 1.0}
    member = world.state.pool.members["a1"]
    assert (member.mean, member.coverage) == (1.0, 0.75)


def test_below_the_least_coverage_nothing_is_committed() -> None:
    world = World(better(1), min_coverage=0.9)
    world.through("p1", "rollout", "propose", "gate")
    world.lost = {("val", 2)}
    world.through("p1", "validate", "validate")
    assert world.end("p1") == "failed"
    assert world.state.pool.version == 0


def test_a_gate_with_a_lost_sample_is_tried_again_and_gives_no_verdict() -> None:
    world = World(better(1))
    world.through("p1", "rollout", "propose")
    world.lost = {("train", world.data("p1")["minibatch"][0])}
    world.through("p1", "gate", "gate")
    assert not world.run.of(Gated)
    assert world.end("p1") == "failed"


# --- staleness: situation -------------------------------------------------------------------------------------------------


def racing(*texts: Any, depth: int = 2, staleness: Any = None, **options: Any) -> World:
    """Proposals in flight side by side, all from the seed; nothing is committed yet."""
    return World(*texts, schedule=Pipelined(depth), staleness=staleness, n_train=6, **options)


def situation(world: World, item: str) -> Any:
    """Where an item stands."""
    return world.gepa.situation(world.state, world.state.items[item])


def test_nothing_has_changed_without_a_commit() -> None:
    world = racing("x", "y", seed="000000|5555")
    now = situation(world, "p2")
    assert (now.gap, now.touched, now.superseded, now.counterpart) == (0, False, False, "a0")


def test_a_committed_sibling_touches_but_does_not_supersede_while_the_parent_keeps_its_wins() -> None:
    world = racing(some("0000"), some("0000", 1), seed="000000|5555")
    world.commit("p1")
    now = situation(world, "p2")
    assert (now.gap, now.touched, now.superseded, now.counterpart) == (1, True, False, "a0")
    assert "siblings joined: a1" in now.why


def test_a_parent_that_left_the_front_supersedes_and_the_counterpart_wins_most_of_what_it_won() -> None:
    world = racing(some("9999"), some("0000", 1), seed="000000|5555")
    world.commit("p1")
    now = situation(world, "p2")
    assert (now.gap, now.touched, now.superseded, now.counterpart) == (1, True, True, "a1")
    assert "its parent a0 left the front" in now.why


def member(world: World, id: str, scores: str, *, parent: str = "a0", component: str = "prompt", batch: int = 99) -> None:
    """Commit a text straight into the pool, with these validation scores."""
    state = world.state
    components = {**state.artifacts["a0"].components, component: f"{scores} {id}"}
    made = ArtifactMade(id, components, f"hash {id}", (parent,), "reflection", component, "")
    given = {str(i): float(score) for i, score in enumerate(scores)}
    world.run._applied([made, Committed(state.pool.version + 1, id, "", batch, given, len(given))])


def test_a_parent_that_lost_wins_touches_whoever_took_them() -> None:
    world = racing(seed="000000|5555", depth=1)
    member(world, "a9", "9000", parent="")
    now = situation(world, "p1")
    assert (now.touched, now.superseded, now.counterpart) == (True, False, "a0")
    assert now.why == "its parent a0 lost 1 of 4 front wins"


def test_a_commit_elsewhere_is_a_gap_without_touch() -> None:
    world = racing(seed="000000|0555", depth=1)
    member(world, "a9", "9000")
    data = {"parent": "a9", "won": f"{world.state.pool.front()['a9']:x}", "component": "prompt"}
    item = Item("p9", "proposal", 1, 50, data, "validate", 0.0)
    member(world, "a8", "0900", parent="a0")
    now = world.gepa.situation(world.state, item)
    assert (now.gap, now.touched, now.superseded, now.counterpart) == (1, False, False, "a9")
    assert now.why == "nothing it was made from has changed"
    member(world, "a7", "0000", parent="a9")
    assert world.gepa.situation(world.state, item).touched, "a sibling joined"


def test_an_heir_that_changed_the_same_component_and_wins_all_the_parent_won_supersedes() -> None:
    """The parent stays on the front by an instance it did not win when the item was begun."""
    for component, superseded in (("a", True), ("b", False)):
        world = racing(seed={"a": "000000|5550", "b": "z"}, depth=1)
        assert world.data("p1")["component"] == "a"
        world.state.items["p1"].data["won"] = "3"  # it had won the first two
        member(world, "a9", "5500", component=component)
        assert list(world.state.pool.front()) == ["a0"], "a9 only ties"
        member(world, "a10", "6600", component=component)
        assert "a0" in world.state.pool.front()
        assert situation(world, "p1").superseded == superseded


def test_a_sibling_that_wins_only_some_of_what_the_parent_won_does_not_supersede() -> None:
    world = racing(seed="000000|5555", depth=1)
    member(world, "a9", "9990")
    assert situation(world, "p1").touched and not situation(world, "p1").superseded


def test_the_counterpart_is_not_the_best_by_mean_but_who_wins_the_parents_instances() -> None:
    world = racing(seed="000000|5550", depth=1)
    world.state.items["p1"].data["won"] = "7"
    member(world, "a9", "6660", parent="")
    member(world, "a8", "0009", parent="")
    assert "a0" not in world.state.pool.front()
    best = world.state.pool.best()
    assert best is not None and best.id == "a9"
    assert situation(world, "p1").counterpart == "a9"
    world.state.items["p1"].data["won"] = "8"
    assert situation(world, "p1").counterpart == "a8"


def test_of_equal_counterparts_the_lowest_id_is_taken_whenever_it_was_committed() -> None:
    world = racing(seed="000000|5500", depth=1)
    world.state.items["p1"].data["won"] = "3"
    member(world, "a10", "6000", parent="")
    member(world, "a9", "0600", parent="")
    assert list(world.state.pool.front()) == ["a10", "a9"], "each won one of the two"
    assert situation(world, "p1").counterpart == "a9"


def test_commits_of_siblings_of_the_same_batch_are_no_gap_and_touch_nothing() -> None:
    world = World(some("0000", 1), some("0000", 2), schedule=Batched(1, 2), seed="000000|5555")
    world.commit("p1")
    now = situation(world, "p2")
    assert (now.gap, now.touched, now.superseded) == (0, False, False)


def test_a_policy_sees_gap_touch_scores_and_where() -> None:
    seen: list[Any] = []

    class Spy:
        def judge(self, item: Any) -> Verdict:
            seen.append(item)
            return Verdict("accept", "seen")

    world = racing(some("9000"), some("0900", 2), seed="000000|1111", staleness=Spy())
    world.through("p2", "rollout", "propose", "gate")
    world.commit("p1")
    world.do("validate", "p2")
    [stale] = seen
    assert (stale.item, stale.kind, stale.where, stale.gap, stale.touched) == ("p2", "proposal", "commit", 1, True)
    assert (stale.gain, stale.parent_score, stale.best_score, stale.score) == (10.0, 1.0, 2.25, 2.25)
    assert (stale.base, stale.version, stale.updates) == (0, 1, 0)


# --- staleness: actions ---------------------------------------------------------------------------------------------------

TWO = {"a": "000000|5555", "b": "z"}


def test_an_update_grafts_the_changed_component_onto_the_counterpart_and_gates_both_on_the_same_minibatch() -> None:
    world = racing(
        "111111|6666", "222222|0000", seed=TWO, staleness=Guarded(0, beyond="update"), settings={"slots": {"validate": 1}}
    )
    assert [world.data(f"p{i}")["component"] for i in (1, 2)] == ["a", "b"]
    world.through("p1", "rollout", "propose", "gate")
    world.through("p2", "rollout", "propose", "gate")
    world.do("validate", "p1")
    assert [(j.item, j.action, j.counterpart) for j in world.run.of(StalenessJudged)] == [("p2", "update", "a1")]
    item = world.state.items["p2"]
    graft = world.state.artifacts[item.data["child"]]
    assert graft.components == {"a": "111111|6666", "b": "222222|0000"}
    assert (graft.parents, graft.origin, graft.component) == (("a1", "a2"), "update", "b")
    assert (item.stage, item.base, item.updates, item.data["parent"]) == ("gate", 1, 1, "a1")
    asked = len(world.asked)
    gates = [event for event in world.run.of(JobStarted) if (event.item, event.stage) == ("p2", "gate")]
    assert [gate.reserved.metric_calls for gate in gates] == [2, 4], "first the child's, then both"
    world.do("gate", "p2")
    minibatch = world.data("p2")["minibatch"]
    assert {example for _, _, example in world.asked[asked:]} == set(minibatch)
    gated = world.run.of(Gated)[-1]
    assert (gated.parent, gated.artifact, gated.passed, gated.first) == ("a1", graft.id, True, False)
    assert (gated.parent_sum, gated.child_sum) == (2.0, 4.0)
    assert world.state.spent.proposals == 2, "an update is no proposal"


def test_an_update_whose_parent_is_still_on_the_front_gates_the_same_text_at_no_cost() -> None:
    world = racing(
        some("9000"),
        some("0900", 2),
        seed="000000|5555",
        staleness=Guarded(0, beyond="update"),
        settings={"slots": {"validate": 1}},
    )
    world.through("p1", "rollout", "propose", "gate")
    world.through("p2", "rollout", "propose", "gate")
    asked = len(world.asked)
    world.do("validate", "p1")
    assert world.state.items["p2"].data["child"] == "a2"
    world.do("gate", "p2")
    assert {split for _, split, _ in world.asked[asked:]} == {"val"}, "all of the second gate was in the cache"
    world.do("validate", "p2")
    assert world.end("p2") == "committed"


def test_an_update_that_does_not_beat_the_counterpart_is_rejected() -> None:
    world = racing(
        "999999|9999",
        "222222|0000#x",
        seed="000000|5555",
        staleness=Guarded(0, beyond="update"),
        settings={"slots": {"validate": 1}},
    )
    world.through("p1", "rollout", "propose", "gate")
    world.through("p2", "rollout", "propose", "gate")
    world.do("validate", "p1")
    world.do("gate", "p2")
    assert world.end("p2") == "rejected"


def test_an_update_that_gives_an_existing_text_is_discarded() -> None:
    world = racing("111111|6666", "z2", seed=TWO, staleness=Guarded(0, beyond="update"), settings={"slots": {"validate": 1}})
    world.run.set(schedule=Pipelined(1))
    world.through("p1", "rollout", "propose", "gate")
    child = world.state.artifacts["a1"]
    item = Item("p2", "proposal", 0, 2, {**world.state.items["p2"].data, "child": "a1", "component": "a"}, "validate", 0.0)
    now = situation(world, "p2")
    grafted = {**world.state.artifacts["a0"].components, "a": child.components["a"]}
    assert grafted == child.components, "grafting a1's change onto a0 gives a1 itself"
    moves = world.gepa.update(world.state, item, now)
    assert isinstance(moves[0], ItemQueued) and moves[0].stage == "gate", "the same text needs no new artifact"
    item.data["component"] = "b"
    moves = world.gepa.update(world.state, item, now)
    assert isinstance(moves[0], ItemEnded) and moves[0].outcome == "discarded" and moves[0].artifact == "a0"


def test_discard_keeps_the_evidence() -> None:
    world = racing(some("9000"), some("0900", 2), seed="000000|5555", staleness=Guarded(0), settings={"slots": {"validate": 1}})
    world.through("p1", "rollout", "propose", "gate")
    world.through("p2", "rollout", "propose", "gate")
    world.do("validate", "p1")
    assert world.end("p2") == "discarded"
    assert "a2" in world.state.artifacts
    assert ItemEnded("p2", "discarded", "gap 1 is beyond 0", "a2") in world.run.of(ItemEnded)


# --- a person's text ------------------------------------------------------------------------------------------------------


def test_a_persons_text_takes_the_gate_and_does_not_count_as_a_proposal() -> None:
    world = World()
    world.run.turn(inputs.Inject("a0", {"prompt": better(7)}))
    made = world.run.of(ArtifactMade)[-1]
    assert (made.origin, made.parents) == ("human", ("a0",))
    world.do("gate")
    assert world.run.of(Gated)[0].passed and not world.run.of(Gated)[0].first
    world.do("validate", "p2")
    assert world.state.pool.version == 1
    assert world.state.spent.proposals == 0


@pytest.mark.parametrize("components", [{"prompt": "000000|0000"}, {"other": "x"}, {}])
def test_a_persons_text_that_is_in_the_pool_or_does_not_fit_is_not_taken_and_says_so(components: dict[str, str]) -> None:
    world = World()
    happened = world.run.turn(inputs.Inject("a0", components))
    assert [type(event) for event in happened] == [Warned]


def test_a_persons_text_enters_once_however_often_it_is_sent() -> None:
    world = World()
    text = {"prompt": better(7)}
    world.run.turn(inputs.Inject("a0", text))
    assert [type(event) for event in world.run.turn(inputs.Inject("a0", text))] == [Warned]


# --- settings -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"minibatch": 0}, "minibatch"),
        ({"minibatch": True}, "minibatch"),
        ({"minibatch": 2.5}, "minibatch"),
        ({"min_coverage": 0}, "min_coverage"),
        ({"min_coverage": 1.1}, "min_coverage"),
        ({"proposer": "a model"}, "proposer"),
    ],
)
def test_settings_that_cannot_work_are_refused_by_name(bad: dict[str, Any], says: str) -> None:
    with pytest.raises(SetupError, match=says):
        GEPA(**bad)


def test_a_minibatch_larger_than_the_train_set_is_refused() -> None:
    with pytest.raises(SetupError, match="larger than the train set of 6"):
        GEPA(minibatch=7).bind(World().gepa.task, 0)
