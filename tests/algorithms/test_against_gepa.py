"""Our GEPA under `Sequential` and `Batched` against the public package `gepa`: same front, same probabilities, same decisions, same counts.

A scripted world answers both (pure functions of the request). gepa runs first, by its own random numbers; its draws (parents and
minibatches) are recorded and forced on ours; then every step must agree. Where we differ on purpose, a test says so.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from random import Random
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.algorithms.gepa import BoundGEPA
from flashevolve_lab.core import Item, NewItem, RunState, apply, content_hash
from flashevolve_lab.core import events as ev
from flashevolve_lab.core.population import Member, Population
from flashevolve_lab.tasks import Task

gepa = pytest.importorskip("gepa", reason="compares with the public package: pip install gepa==0.1.4")

from gepa.core.adapter import EvaluationBatch  # noqa: E402
from gepa.core.state import GEPAState, ValsetEvaluation  # noqa: E402
from gepa.gepa_utils import remove_dominated_programs, select_program_candidate_from_pareto_front  # noqa: E402
from gepa.strategies.proposal_sampling import PxNSampling, SingleMutationSampling  # noqa: E402

N_TRAIN, N_VAL, MINIBATCH = 60, 12, 3
Texts = tuple[tuple[str, str], ...]  # an artifact's components, sorted


def texts(components: Mapping[str, str]) -> Texts:
    return tuple(sorted(components.items()))


# --- the front, on pools of random scores ---------------------------------------------------------------------------------


def random_scores(random: Random) -> list[list[float]]:
    """A pool: program → scores by instance. Few levels and permuted rows give many ties, between scores and between means."""
    programs, instances, levels = random.randint(1, 14), random.randint(1, 12), random.randint(1, 4)
    pool = [[random.randint(0, levels) / levels for _ in range(instances)] for _ in range(programs)]
    for row in pool[1:]:
        if random.random() < 0.3:
            row[:] = random.sample(pool[0], instances)
    return pool


def population(pool: Sequence[Sequence[float]]) -> Population:
    ours = Population()
    for version, row in enumerate(pool):
        member = Member(f"a{version}", version, version, (), "", dict(enumerate(row)), sum(row) / len(row), 1.0)
        ours.add(member)
    return ours


def gepa_state(pool: Sequence[Sequence[float]]) -> Any:
    first, *others = [ValsetEvaluation({}, dict(enumerate(row)), None) for row in pool]
    state = GEPAState({"prompt": "0"}, first)
    state.total_num_evals = 0
    for i, evaluation in enumerate(others, 1):
        state.update_state_with_new_program([0], {"prompt": str(i)}, evaluation, None, 0)
    return state


class Caught(Random):
    """Catches the list that gepa draws from."""

    def choice(self, seq: Any) -> Any:
        self.drawn_from = list(seq)
        return seq[0]


def gepa_frequencies(front: Mapping[Any, Any], means: list[float]) -> dict[str, int]:
    """Front member → how often it is in the list that gepa draws a parent from."""
    caught = Caught()
    select_program_candidate_from_pareto_front(front, means, caught)
    return {f"a{program}": count for program, count in Counter(caught.drawn_from).items()}


def ascending(front: Mapping[Any, Any]) -> dict[Any, list[int]]:
    """A front in which gepa meets the members of an instance in the order of their joining, instead of that of a Python set."""
    return {instance: sorted(programs) for instance, programs in front.items()}


def our_frequencies(pool: Population) -> dict[str, int]:
    return {id: mask.bit_count() for id, mask in pool.front().items()}


def ambiguous(front: Mapping[Any, Any], means: Sequence[float]) -> bool:
    """Whether gepa's pruning order hangs on the iteration order of a Python set: equal means, first seen on the same instance."""
    first: dict[int, Any] = {}
    for instance, programs in front.items():
        for program in programs:
            first.setdefault(program, instance)
    seen = Counter((means[program], instance) for program, instance in first.items())
    return max(seen.values()) > 1


@pytest.mark.parametrize("block", range(4))
def test_who_wins_each_instance_is_the_same(block: int):
    for seed in range(150 * block, 150 * (block + 1)):
        pool = random_scores(Random(seed))
        ours, theirs = population(pool), gepa_state(pool).get_pareto_front_mapping()
        wins = {i: {p for p in range(len(pool)) if ours.wins(f"a{p}") >> i & 1} for i in range(len(pool[0]))}
        assert wins == theirs, f"seed {seed}"


@pytest.mark.parametrize("block", range(4))
def test_the_front_and_the_chances_to_be_chosen_are_the_same(block: int):
    """gepa keeps the members of an instance in a set, so among equal means its order is that of the set; given in ascending order
    (as small sets happen to be), the frequency lists are identical, ties included."""
    for seed in range(150 * block, 150 * (block + 1)):
        pool = random_scores(Random(seed))
        state = gepa_state(pool)
        front = ascending(state.get_pareto_front_mapping())
        assert our_frequencies(population(pool)) == gepa_frequencies(front, state.per_program_tracked_scores), f"seed {seed}"


def test_with_gepas_own_sets_the_chances_are_the_same_wherever_they_are_defined():
    """Where the order of a set decides, both fronts are still right: they cover every instance, and no member can be spared."""
    undefined = 0
    for seed in range(600):
        pool = random_scores(Random(seed))
        state, ours = gepa_state(pool), our_frequencies(population(pool))
        front, means = state.get_pareto_front_mapping(), state.per_program_tracked_scores
        if ours != gepa_frequencies(front, means):
            undefined += 1
            assert ambiguous(front, means), f"seed {seed}"
        for kept in ({int(id[1:]) for id in ours}, set().union(*remove_dominated_programs(front, scores=means).values())):
            assert all(programs & kept for programs in front.values())
            assert not any(all(programs & (kept - {one}) for programs in front.values() if one in programs) for one in kept)
    assert undefined < 30


def test_parents_are_drawn_in_proportion_to_the_instances_they_win():
    pool = population([[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 1]])
    drawn = Counter(pool.choose(Random(i)) for i in range(6000))
    assert {id: round(count / 1000) for id, count in drawn.items()} == {"a0": 3, "a1": 2, "a2": 1}


# --- a scripted world -----------------------------------------------------------------------------------------------------


def level(text: str) -> int:
    found = re.search(r"level (\d+)", text)
    return int(found[1]) if found else 0


def answered(components: Mapping[str, str], example: Mapping[str, str]) -> str:
    """The task model: a score in quarters (exact in binary), likelier high the higher the levels of the texts."""
    draw = Random(f"{texts(components)}|{example['input']}")
    skill = sum(map(level, components.values())) / len(components)
    return str(min(4, int(3 * draw.random() + skill / 5)) / 4)


def reflected(prompt: str) -> str:
    """The reflection model: reads the current text (the first fenced block) and which questions came, in order."""
    current, questions = prompt.split("```")[1].strip(), re.findall(r"Question \d+", prompt)
    draw = Random(f"{current}|{questions}")
    new = max(0, level(current) + draw.choice((-1, 0, 0, 1)))
    return f"Here it is.\n```\n{current.split(':')[0]}: level {new}, variant {draw.getrandbits(40):x}\n```"


def questions(n: int, start: int = 0) -> list[dict[str, str]]:
    return [{"input": f"Question {i}"} for i in range(start, start + n)]


@dataclass(frozen=True)
class World:
    """Seed texts, and what the reflection model says."""

    seed: Mapping[str, str] = field(default_factory=lambda: {"prompt": "prompt: level 0"})
    reflect: Callable[[str], str] = reflected
    answer: Callable[[Mapping[str, str], Mapping[str, str]], str] = answered
    skip_perfect: bool = True


@dataclass(frozen=True)
class Outcome:
    """What became of one proposal: ``child`` is the new text, with the sums on the minibatch; "" when it was skipped."""

    parent: Texts
    minibatch: tuple[int, ...]
    child: str = ""
    before: float = 0.0
    after: float = 0.0
    accepted: bool = False


@dataclass
class Step:
    """One iteration (a batch): its proposals, and how things stand after it."""

    outcomes: list[Outcome] = field(default_factory=list)
    metric_calls: int = 0
    pool: dict[Texts, tuple[float, ...]] = field(default_factory=dict)  # in order of joining → validation scores
    front: dict[Texts, int] = field(default_factory=dict)  # → instances won


# --- gepa, recorded -------------------------------------------------------------------------------------------------------


class Adapter:
    """The world, as gepa sees it."""

    propose_new_texts = None

    def __init__(self, world: World) -> None:
        self.world = world

    def evaluate(self, batch: Any, candidate: Any, capture_traces: bool = False) -> Any:
        outputs = [self.world.answer(candidate, example) for example in batch]
        return EvaluationBatch(
            outputs=outputs, scores=[float(o) for o in outputs], trajectories=list(zip(batch, outputs, strict=True))
        )

    def make_reflective_dataset(self, candidate: Any, eval_batch: Any, components: Any) -> Any:
        rows = [{"Inputs": example["input"], "Generated Outputs": output} for example, output in eval_batch.trajectories]
        return dict.fromkeys(components, rows)


class Recorder:
    """gepa's callbacks → one `Step` an iteration, and the components it chose."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.components: list[str] = []
        self._new: list[dict[str, str]] = []

    def on_iteration_start(self, event: Any) -> None:
        self._new = []

    def on_proposal_start(self, event: Any) -> None:
        self.components += event["components"]

    def on_proposal_end(self, event: Any) -> None:
        self._new.append(event["new_instructions"])

    def on_iteration_end(self, event: Any) -> None:
        state = event["state"]
        scores = [tuple(state.prog_candidate_val_subscores[i].values()) for i in range(len(state.program_candidates))]
        pool = [texts(candidate) for candidate in state.program_candidates]
        counts = gepa_frequencies(ascending(state.get_pareto_front_mapping()), state.per_program_tracked_scores)
        front = {pool[int(id[1:])]: count for id, count in counts.items()}
        step = Step(list(self._outcomes(state, pool)), state.total_num_evals, dict(zip(pool, scores, strict=True)), front)
        self.steps.append(step)

    def _outcomes(self, state: Any, pool: Sequence[Texts]) -> Iterator[Outcome]:
        new = iter(self._new)
        for task in state.full_program_trace[-1]["tasks"]:
            parent = state.program_candidates[task["parent_idx"]]
            drawn = (texts(parent), tuple(task["subsample_ids"]))
            if "new_subsample_scores" not in task:
                yield Outcome(*drawn)
                continue
            changed = next(new)
            sums = (sum(task["subsample_scores"]), sum(task["new_subsample_scores"]))
            yield Outcome(*drawn, *changed.values(), *sums, texts({**parent, **changed}) in pool)


class Silent:
    def log(self, message: str) -> None:
        """Nothing."""


class Fresh:
    """A sampler for gepa that never repeats a minibatch, in which its own one would (see the differences, below)."""

    def __init__(self, seed: int) -> None:
        self.seed, self.drawn = seed, 0

    def next_minibatch_ids(self, loader: Any, state: Any) -> list[int]:
        per_epoch = N_TRAIN // MINIBATCH
        order = Random(f"{self.seed} {self.drawn // per_epoch}").sample(range(N_TRAIN), N_TRAIN)
        at = self.drawn % per_epoch * MINIBATCH
        self.drawn += 1
        return order[at : at + MINIBATCH]


def run_gepa(world: World, seed: int, metric_calls: int, strategy: Any = None, sampler: Any = None) -> tuple[Recorder, Any]:
    recorder = Recorder()
    result = gepa.optimize(
        seed_candidate=dict(world.seed),
        trainset=questions(N_TRAIN),
        valset=questions(N_VAL, N_TRAIN),
        adapter=Adapter(world),
        reflection_lm=lambda prompt: world.reflect(prompt),
        batch_sampler=sampler or "epoch_shuffled",
        reflection_minibatch_size=None if sampler else MINIBATCH,
        max_metric_calls=metric_calls,
        skip_perfect_score=world.skip_perfect,
        sampling_strategy=strategy or SingleMutationSampling(),
        cache_evaluation=False,
        callbacks=[recorder],
        logger=Silent(),
        seed=seed,
    )
    return recorder, result


# --- ours, on the same draws ----------------------------------------------------------------------------------------------


class Forced(BoundGEPA):
    """Our GEPA with parents and minibatches taken from a list; everything else is its own."""

    draws: Sequence[tuple[Texts, tuple[int, ...]]] = ()

    def begin(self, state: RunState, drawn: Sequence[Item], parent: str | None) -> NewItem | None:
        number = int(state.next_id("p", len(drawn))[1:]) - 1  # p0 is the seed
        if number >= len(self.draws):
            return None
        components, minibatch = self.draws[number]
        forced = state.by_hash[content_hash(dict(components))]
        assert parent in (None, forced), "the proposals of one parent in a batch follow each other"
        new = super().begin(state, drawn, forced)
        assert new is not None
        return NewItem(new.kind, new.stage, new.base, {**new.data, "minibatch": list(minibatch)})


class ForcedGEPA(lab.GEPA):
    """The plan that binds `Forced`."""

    draws: Sequence[tuple[Texts, tuple[int, ...]]] = ()

    def bind(self, task: Task, seed: int) -> BoundGEPA:
        bound = Forced(self, task, seed)
        object.__setattr__(bound, "draws", self.draws)
        return bound


class Model:
    """The world, as our engine sees it. ``jitter``: calls take from 1 to 1 + jitter seconds of virtual time."""

    def __init__(self, world: World, jitter: float) -> None:
        self.world, self.jitter = world, jitter

    async def complete(self, request: lab.Request) -> lab.Reply:
        said = request.messages[-1]["content"]
        await asyncio.sleep(1 + self.jitter * Random(said).random())
        return lab.Reply(self.world.reflect(said), "stop", 1, 1)

    async def check(self) -> None:
        """Always there."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "scripted", "simulated": True, "in_process": True}


def our_task(world: World) -> lab.Task:
    async def program(components: Mapping[str, str], example: Mapping[str, str], llm: Any) -> str:
        await asyncio.sleep(0.1 + 0.1 * Random(f"{components}{example}").random())
        return world.answer(components, example)

    metric = lab.quick(lambda example, output: float(output))
    return lab.Task(questions(N_TRAIN), questions(N_VAL, N_TRAIN), dict(world.seed), program, metric)


def run_ours(
    world: World, draws: Sequence[Any], folder: Any, schedule: Any = None, *, jitter: float = 0.0, budget: int = 10**6
) -> Any:
    algorithm = ForcedGEPA(minibatch=MINIBATCH, cache=False, skip_perfect=world.skip_perfect)
    object.__setattr__(algorithm, "draws", tuple(draws))
    run = lab.start(
        our_task(world),
        algorithm,
        llm=Model(world, jitter),
        schedule=schedule or lab.Sequential(),
        budget=lab.Budget(metric_calls=budget),
        clock=lab.Virtual(),
        folder=folder,
    )
    run.wait(60)
    return run


def our_steps(run: Any) -> list[Step]:
    """The log as steps."""
    state, steps = RunState(), {}
    for entry in run.entries:
        event = entry.event
        item = state.items.get(getattr(event, "item", ""))
        apply(state, entry)
        if isinstance(event, ev.Gated) and item is not None:
            item.data["gated"] = event
        if isinstance(event, ev.ItemEnded) and item is not None and item.kind != "seed":
            step = steps.setdefault(item.batch, Step())
            step.outcomes.append(our_outcome(state, item, event))
            stand(step, state)
    for step in steps.values():
        step.outcomes.sort(key=lambda outcome: order_of(run, outcome))
    return list(steps.values())


def our_outcome(state: RunState, item: Item, ended: ev.ItemEnded) -> Outcome:
    drawn = (texts(state.artifacts[item.data["parent"]].components), tuple(item.data["minibatch"]))
    gated = item.data.get("gated")
    if gated is None:
        assert ended.outcome == "skipped", f"{ended.outcome}: {ended.reason}"
        return Outcome(*drawn)
    child = state.artifacts[gated.artifact].components[item.data["component"]]
    assert gated.passed == (ended.outcome == "committed")
    return Outcome(*drawn, child, gated.parent_sum, gated.child_sum, gated.passed)


def order_of(run: Any, outcome: Outcome) -> int:
    """Where a proposal stands in the order of drawing (a minibatch is drawn once a batch)."""
    made = [e.event.data.get("minibatch") for e in run.entries if isinstance(e.event, ev.ItemMade)]
    return made.index(list(outcome.minibatch))


def stand(step: Step, state: RunState) -> None:
    """How things stand now."""
    members = state.pool.order
    components = {member.id: texts(state.artifacts[member.id].components) for member in members}
    step.metric_calls = state.spent.metric_calls
    step.pool = {components[m.id]: tuple(m.scores[i] for i in range(N_VAL)) for m in members}
    step.front = {components[id]: mask.bit_count() for id, mask in state.pool.front().items()}


def draws_of(recorder: Recorder) -> list[tuple[Texts, tuple[int, ...]]]:
    return [(outcome.parent, outcome.minibatch) for step in recorder.steps for outcome in step.outcomes]


def same_steps(ours: Sequence[Step], theirs: Sequence[Step]) -> None:
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True), 1):
        assert our.outcomes == their.outcomes, f"step {number}"
        assert our.metric_calls == their.metric_calls, f"step {number}"
        assert our.pool == their.pool, f"step {number}"
        assert our.front == their.front, f"step {number}"


# --- the same decisions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_sequential_decides_and_counts_as_gepa_at_every_step(seed: int, tmp_path: Any):
    theirs, _ = run_gepa(World(), seed, 700)
    steps = our_steps(run_ours(World(), draws_of(theirs), tmp_path))
    same_steps(steps, theirs.steps)
    assert [list(s.pool) for s in steps] == [list(s.pool) for s in theirs.steps]  # in the same order, too
    kinds = Counter((bool(o.child), o.accepted) for s in steps for o in s.outcomes)
    assert kinds[True, True] > 4 and kinds[True, False] > 10


def test_the_scripts_reach_skipped_minibatches_too(tmp_path: Any):
    world = World(seed={"prompt": "prompt: level 13"})
    theirs, _ = run_gepa(world, 0, 500)
    steps = our_steps(run_ours(world, draws_of(theirs), tmp_path))
    same_steps(steps, theirs.steps)
    assert sum(not o.child for s in steps for o in s.outcomes) > 5


def test_perfect_minibatches_are_used_when_skipping_is_off(tmp_path: Any):
    world = World(seed={"prompt": "prompt: level 13"}, skip_perfect=False)
    theirs, _ = run_gepa(world, 0, 500)
    steps = our_steps(run_ours(world, draws_of(theirs), tmp_path))
    same_steps(steps, theirs.steps)
    assert all(o.child for s in steps for o in s.outcomes)


@pytest.mark.parametrize(("p", "n"), [(2, 2), (1, 4), (4, 1), (3, 2), (8, 2)])
@pytest.mark.parametrize("seed", range(2))
def test_batched_decides_and_counts_as_gepas_pxn_at_every_step(p: int, n: int, seed: int, tmp_path: Any):
    theirs, _ = run_gepa(World(), seed, 900, PxNSampling(p, n), Fresh(seed))
    steps = our_steps(run_ours(World(), draws_of(theirs), tmp_path, lab.Batched(p, n)))
    same_steps(steps, theirs.steps)
    assert sum(o.accepted for s in steps for o in s.outcomes) > 2


def test_the_order_of_completion_inside_a_batch_changes_no_decision(tmp_path: Any):
    """Inside a batch we commit in the order of completion, gepa in the order of drawing; only the numbering can differ."""
    theirs, _ = run_gepa(World(), 0, 900, PxNSampling(3, 2), Fresh(0))
    steps = our_steps(run_ours(World(), draws_of(theirs), tmp_path, lab.Batched(3, 2), jitter=9.0))
    for our, their in zip(steps, theirs.steps, strict=True):
        assert (our.outcomes, our.metric_calls, our.pool) == (their.outcomes, their.metric_calls, their.pool)


def components_of(run: Any) -> list[str]:
    """The component of every proposal that was not skipped, in order of drawing (gepa chooses none for the others)."""
    skipped = {e.event.item for e in run.entries if isinstance(e.event, ev.ItemEnded) and e.event.outcome == "skipped"}
    made = [e.event for e in run.entries if isinstance(e.event, ev.ItemMade) and e.event.kind != "seed"]
    return [event.data["component"] for event in made if event.item not in skipped]


def three(start: int) -> dict[str, str]:
    return {name: f"{name}: level {start}" for name in ("b", "a", "c")}


@pytest.mark.parametrize("seed", range(3))
def test_components_are_taken_in_turn_as_in_gepa(seed: int, tmp_path: Any):
    world = World(seed=three(0), skip_perfect=False)
    theirs, _ = run_gepa(world, seed, 500)
    run = run_ours(world, draws_of(theirs), tmp_path)
    same_steps(our_steps(run), theirs.steps)
    assert components_of(run) == theirs.components


def test_a_skipped_proposal_does_not_move_the_turn_of_components(tmp_path: Any):
    world = World(seed=three(12))
    theirs, _ = run_gepa(world, 0, 500)
    run = run_ours(world, draws_of(theirs), tmp_path)
    assert components_of(run) == theirs.components


def test_a_child_goes_on_from_where_its_parent_stands_when_it_is_committed(tmp_path: Any):
    world = World(seed=three(0), skip_perfect=False)
    theirs, _ = run_gepa(world, 0, 500, PxNSampling(2, 2), Fresh(0))
    run = run_ours(world, draws_of(theirs), tmp_path, lab.Batched(2, 2))
    assert components_of(run) == theirs.components


# --- where we differ on purpose -------------------------------------------------------------------------------------------


def test_difference_the_budget_is_never_exceeded(tmp_path: Any):
    """gepa looks at its budget between iterations and goes beyond it; we reserve, and start nothing that may not fit."""
    theirs, result = run_gepa(World(), 0, 200)
    run = run_ours(World(), draws_of(theirs), tmp_path, budget=200)
    assert result.total_metric_calls > 200 >= run.status.spent["metric_calls"]
    same_steps(our_steps(run), theirs.steps[: len(our_steps(run))])


def test_difference_a_text_that_exists_is_refused_before_it_costs_a_rollout(tmp_path: Any):
    """gepa gates it again, and may take the same text into its pool twice; with us a duplicate ends after the reflection."""
    world = World(reflect=lambda prompt: "```\nprompt: level 4, always the same\n```")
    theirs, result = run_gepa(world, 0, 300)
    draws = [draw for draw in draws_of(theirs) if draw[0] == texts(world.seed)]
    run = run_ours(world, draws, tmp_path)
    candidates = [texts(candidate) for candidate in result.candidates]
    assert len(candidates) > len(set(candidates)) == 2
    assert run.status.proposals == 1 and run.status.outcomes["refused"] == len(draws) - 1 > 0
    assert run.status.spent["metric_calls"] == N_VAL * (1 + run.status.accepted) + MINIBATCH * (len(draws) + 1)


def test_difference_rounding_wins_no_gate(tmp_path: Any):
    """gepa compares float sums, so that the same scores in another order may "improve"; we compare exact sums."""

    def answer(components: Mapping[str, str], example: Mapping[str, str]) -> str:
        place = int(example["input"].split()[1]) % 3
        return ("0.1", "0.2", "0.3")[place if level(components["prompt"]) else 2 - place]

    world = World(answer=answer, reflect=lambda prompt: reflected(prompt).replace("level 0", "level 1"))
    theirs, _ = run_gepa(world, 0, 600)
    outcomes = [outcome for step in theirs.steps for outcome in step.outcomes if outcome.parent == texts(world.seed)]
    ours = our_steps(run_ours(world, [(o.parent, o.minibatch) for o in outcomes], tmp_path))
    rounded = [o.accepted and isclose(o.before, o.after) for o in outcomes]
    assert any(rounded)
    accepted = [o.accepted and not by_rounding for o, by_rounding in zip(outcomes, rounded, strict=True)]
    assert [step.outcomes[0].accepted for step in ours] == accepted


def test_difference_minibatches_of_following_batches_do_not_overlap(tmp_path: Any):
    """gepa's sampler moves on by one minibatch an iteration, though a P×N iteration used P·N; ours goes on after the last used."""
    theirs, _ = run_gepa(World(), 0, 250, PxNSampling(2, 2))
    first, second = (step.outcomes for step in theirs.steps[:2])
    assert [o.minibatch for o in first[1:]] == [o.minibatch for o in second[:-1]]
    run = lab.start(
        our_task(World()),
        lab.GEPA(minibatch=MINIBATCH, cache=False),
        llm=Model(World(), 0.0),
        schedule=lab.Batched(2, 2),
        budget=lab.Budget(proposals=16),
        clock=lab.Virtual(),
        folder=tmp_path,
    )
    run.wait(60)
    made = [e.event.data["minibatch"] for e in run.entries if isinstance(e.event, ev.ItemMade) and "minibatch" in e.event.data]
    epoch = [example for minibatch in made[: N_TRAIN // MINIBATCH] for example in minibatch]
    assert len(epoch) == len(set(epoch)) >= 16 * MINIBATCH
