"""GEPA: reflective Pareto evolution of prompts, as a declared graph (arXiv 2507.19457).

select → rollout(parent, minibatch) → propose → gate(child, same minibatch) → [staleness] → validate → commit; a stale child goes
by policy on as it is, back to the gate grafted onto the current version, through the patch stage, or out. The same graph is
synchronous, batched or pipelined: that is the schedule's business. Owns GEPA's settings and rules. One rule a change must keep:
everything here is pure; whatever waits is in `gepa_work`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flashevolve_lab.algorithms import merging, partials, trials
from flashevolve_lab.algorithms.bench import Bench
from flashevolve_lab.algorithms.combining import Joiner, MapReduce
from flashevolve_lab.algorithms.distilling import companions, distilled
from flashevolve_lab.algorithms.forecast import tokens_of_a_call
from flashevolve_lab.algorithms.from_gepa import from_gepa
from flashevolve_lab.algorithms.gepa_work import GEPAWork, not_cached
from flashevolve_lab.algorithms.merging import Merge
from flashevolve_lab.algorithms.patching import Distiller, Patcher, Reconcile
from flashevolve_lab.algorithms.proposing import Proposer
from flashevolve_lab.algorithms.reflecting import Reflect
from flashevolve_lab.algorithms.sampling import next_minibatch
from flashevolve_lab.core import (
    Artifact,
    Commit,
    Graph,
    Item,
    Job,
    NewItem,
    Partial,
    Route,
    RunState,
    Situation,
    Spend,
    Stage,
    StaleItem,
    content_hash,
    draw,
)
from flashevolve_lab.core.events import (
    ArtifactMade,
    Event,
    Gated,
    ItemEnded,
    ItemMade,
    ItemQueued,
    Patched,
    SampleScored,
    Warned,
)
from flashevolve_lab.errors import SetupError
from flashevolve_lab.tasks import Task

GRAPH = Graph(
    stages=(
        Stage("rollout", to=("propose",)),
        Stage("propose", to=("gate",)),
        Stage("patch", to=("gate", "validate")),
        Stage("gate", to=("validate",)),
        Stage("validate", to=("gate", "patch"), judged=True),
    ),
    entry="rollout",
)


@dataclass(frozen=True, slots=True)
class GEPA:
    """GEPA's settings.

    Args:
        minibatch: Examples of the train set a proposal is made from and gated on, ≥ 1.
        proposer: Rewrites a component; the default `Reflect` asks the reflection model; `MapReduce` joins several reflections.
        patcher: Rewrites a stale text for the current version when a policy orders ``patch``; the default is `Reconcile`.
        cache: Never run the same text twice on the same example of the same split.
        skip_perfect: A minibatch the parent already solves ends the proposal before it costs a reflection.
        min_coverage: Smallest share of the validation set that must have been scored for a commit, in (0, 1]. What could not be
            scored (a provider's failure, after retries) is missing, not zero.
        merge: Crossover of front artifacts (tasks of several components), or None.
        remember: Rejected texts that a reflection is told of, so that it does not propose them again; 0 (GEPA as published): none.
    """

    minibatch: int = 3
    proposer: Proposer | Joiner = field(default_factory=Reflect)
    patcher: Patcher = field(default_factory=Reconcile)
    cache: bool = True
    skip_perfect: bool = True
    min_coverage: float = 0.95
    merge: Merge | None = None
    remember: int = 0

    from_gepa = classmethod(from_gepa)

    def __post_init__(self) -> None:
        if not isinstance(self.minibatch, int) or isinstance(self.minibatch, bool) or self.minibatch < 1:
            raise SetupError(f"GEPA(minibatch=…): expected an integer of at least 1; got {self.minibatch!r}")
        if not 0 < self.min_coverage <= 1:
            raise SetupError(f"GEPA(min_coverage=…): expected a share in (0, 1]; got {self.min_coverage!r}")
        if not isinstance(self.remember, int) or isinstance(self.remember, bool) or self.remember < 0:
            raise SetupError(f"GEPA(remember=…): expected an integer of at least 0; got {self.remember!r}")
        if self.merge is not None and not isinstance(self.merge, Merge):
            raise SetupError(f"GEPA(merge=…): expected lab.Merge(most, subsample) or None; got {self.merge!r}")
        if not hasattr(self.proposer, "propose") and not isinstance(self.proposer, Joiner):
            raise SetupError(f"GEPA(proposer=…): expected an object with propose(brief, llm); got {self.proposer!r}")

    def bind(self, task: Task, seed: int) -> BoundGEPA:
        """The algorithm for this task."""
        if self.minibatch > len(task.train):
            raise SetupError(f"GEPA(minibatch={self.minibatch}) is larger than the train set of {len(task.train)} examples")
        if self.merge is not None:
            merging.check_components(list(task.components))
        return BoundGEPA(self, task, seed)

    def describe(self) -> dict[str, Any]:
        """Facts for the log."""
        return {
            "name": "GEPA",
            "minibatch": self.minibatch,
            "cache": self.cache,
            "skip_perfect": self.skip_perfect,
            "min_coverage": self.min_coverage,
            "proposer": _described(self.proposer),
            "patcher": _described(self.patcher),
            **({"merge": self.merge.describe()} if self.merge else {}),  # not in logs of runs without: they stay resumable
            **({"remember": self.remember} if self.remember else {}),
        }

    def forecast(self, task: Task, budget: Mapping[str, float]) -> tuple[float, str]:
        """Proposals the budget allows, if one in five is accepted and each metric call is one model call.

        Of tokens only the inputs are known; none are allowed when a single call could not even be reserved.
        """
        per_proposal = 2 * self.minibatch + 0.2 * len(task.val)
        limits = {name: budget[name] - len(task.val) for name in ("metric_calls", "llm_calls") if name in budget}
        counts = [limits[name] / (per_proposal + (name == "llm_calls")) for name in limits]
        counts += [budget["proposals"]] if "proposals" in budget else []
        how = f"{len(task.val)} for the seed, then {2 * self.minibatch} and in one of five cases {len(task.val)} more each"
        if "tokens" in budget:
            call, largest = tokens_of_a_call(task)
            if budget["tokens"] < largest:
                return 0.0, f"{budget['tokens']:,.0f} tokens, and one call alone may need {largest:,}"
            counts.append(max(1.0, (budget["tokens"] / call - len(task.val)) / (per_proposal + 1)))
            how += f"; about {call:,.0f} tokens of input a call, and answers come on top"
        return max(0.0, min(counts, default=float("inf"))), how


def _described(part: Any) -> dict[str, Any]:
    """What a proposer or patcher says of itself; one from a notebook cell need not say anything."""
    facts: dict[str, Any] = part.describe() if hasattr(part, "describe") else {"name": type(part).__name__}
    return facts


@dataclass(frozen=True, slots=True)
class BoundGEPA:
    """GEPA on one task."""

    settings: GEPA
    task: Task
    run_seed: int

    @property
    def graph(self) -> Graph:
        """Rollout, propose, patch, gate, validate."""
        return GRAPH

    def seed(self) -> tuple[ArtifactMade, NewItem]:
        """The task's seed, sent straight to validation."""
        components = dict(self.task.components)
        made = ArtifactMade("a0", components, content_hash(components), (), "seed", "", "p0")
        return made, NewItem("seed", "validate", 0, {"child": "a0"})

    def begin(self, state: RunState, drawn: Sequence[Item], parent: str | None) -> NewItem | None:
        """A parent from the front, its next component, and a minibatch no proposal in flight is using."""
        merge = merging.begun(state, self.settings.merge, self.run_seed) if parent is None and not drawn else None
        if merge is not None:
            return merge
        id = state.next_id("p", len(drawn))
        if parent is None:
            parent = state.pool.choose(draw(self.run_seed, id, "parent"))
        cursor = drawn[-1].data["cursor"] if drawn else state.cursor
        others = [*state.items.values(), *drawn]
        busy = {example for item in others for example in item.data.get("minibatch", ())}
        minibatch, cursor = next_minibatch(cursor, self.run_seed, len(self.task.train), self.settings.minibatch, busy)
        data = {
            "parent": parent,
            "won": f"{state.pool.front().get(parent, 0):x}",
            "component": self._component(state, drawn, parent),
            "minibatch": minibatch,
            "cursor": cursor,
        }
        return NewItem("proposal", "rollout", state.pool.version, data)

    def _component(self, state: RunState, drawn: Sequence[Item], parent: str) -> str:
        """Round robin: each proposal on an artifact takes a turn, and a child goes on where its parent stands."""
        names = list(self.task.components)
        turns: int = state.starts[parent] + sum(1 for item in drawn if item.data["parent"] == parent)
        return names[turns % len(names)]

    def need(self, state: RunState, item: Item, stage: str) -> Spend:
        """Metric calls that are not in the cache."""
        match stage:
            case "rollout":
                wanted = [(item.data["parent"], "train", item.data["minibatch"])]
            case "gate" if item.kind == "merge":
                wanted = [(item.data["child"], "val", item.data["subsample"])]
            case "gate" if round := item.data.get("round"):
                if not round["fresh"]:
                    return Spend(metric_calls=2 * len(round["examples"]))
                wanted = [(item.data[who], "train", round["examples"]) for who in ("parent", "child")]
            case "gate":
                wanted = [(item.data["child"], "train", item.data["minibatch"])]
                if item.data.get("rebased"):
                    wanted.append((item.data["parent"], "train", item.data["minibatch"]))
            case "validate":
                wanted = [(item.data["child"], "val", range(len(self.task.val)))]
            case _:
                return Spend(llm_calls=0)
        return Spend(metric_calls=sum(len(self._missing(state, *what)) for what in wanted))

    def _missing(self, state: RunState, artifact: str, split: str, examples: Sequence[int]) -> list[int]:
        return not_cached(state, artifact, split, examples, cache=self.settings.cache)

    def proposal_need(self, state: RunState) -> Spend:
        """Rollout, gate and one full validation, a call to reflect, and what those in flight are still expected to need.

        Without the last part the end of a budget would be spent on children that can no longer be validated.
        """
        waiting = sum(1 for item in state.items.values() if item.data.get("gain", 0) > 0 and not self._validating(state, item))
        undecided = sum(1 for item in state.items.values() if item.kind == "proposal" and not item.gated)
        passed, failed = state.counts["gate passed"], state.counts["gate failed"]
        validated = state.counts["committed"] + state.counts["outdone"] + state.counts["rolled_back"]
        spared = state.counts["distilled"] + state.counts["discarded"]  # passed their gate, and cost no validation of their own
        expected = (waiting + undecided * (passed + 1) / (passed + failed + 5)) * (validated + 2) / (validated + spared + 2)
        own = 2 * self.settings.minibatch + len(self.task.val)
        calls = self.settings.proposer.calls(self.settings.minibatch) if isinstance(self.settings.proposer, MapReduce) else 1
        return Spend(metric_calls=own + int(expected * len(self.task.val)), llm_calls=calls)

    @staticmethod
    def _validating(state: RunState, item: Item) -> bool:
        """Whether its validation has started, so that what it needs is reserved already."""
        return item.stage == "validate" and item.id not in state.queues["validate"]

    def route(self, state: RunState, item: Item, stage: str, result: Mapping[str, Any]) -> Sequence[Route]:
        """Where an item goes after each stage."""
        match stage:
            case "rollout" if "seen" in result:
                return self._after_part_of_rollout(item, result)
            case "rollout":
                return self._after_rollout(item, result["scores"])
            case "propose":
                return self._after_propose(state, item, result["text"])
            case "gate":
                return self._after_gate(state, item, result)
            case "patch" if "items" in result:
                return distilled(state, result)
            case "patch":
                return self._after_patch(state, item, result)
            case _:
                return self._after_validate(state, item)

    def _after_rollout(self, item: Item, scores: Sequence[float]) -> Sequence[Route]:
        if self.settings.skip_perfect and all(score >= self.task.perfect for score in scores):
            return [ItemEnded(item.id, "skipped", "its parent is perfect on this minibatch: no child can do better")]
        return [ItemQueued(item.id, "propose", {"scores": list(scores)})]

    def _after_part_of_rollout(self, item: Item, result: Mapping[str, Any]) -> Sequence[Route]:
        """The proposal starts from the examples ``seen``; the gate later takes all that the parent has been scored on by then."""
        return [ItemQueued(item.id, "propose", {"scores": list(result["scores"]), "seen": list(result["seen"])})]

    def _after_propose(self, state: RunState, item: Item, text: str) -> Sequence[Route]:
        parent = state.artifacts[item.data["parent"]]
        components = {**parent.components, item.data["component"]: text}
        hash = content_hash(components)
        if twin := state.by_hash.get(hash):
            return [ItemEnded(item.id, "refused", f"duplicate: the same text as {twin}", twin)]
        child = state.next_id("a")
        made = ArtifactMade(child, components, hash, (parent.id,), "reflection", item.data["component"], item.id)
        return [made, ItemQueued(item.id, "gate", {"child": child})]

    def _after_gate(self, state: RunState, item: Item, result: Mapping[str, Any]) -> Sequence[Route]:
        if item.kind == "merge":
            return merging.after_gate(state, item, result)
        return [trials.tried(item, result, seed=self.run_seed, n_train=len(self.task.train))]

    def _after_patch(self, state: RunState, item: Item, result: Mapping[str, Any]) -> Sequence[Route]:
        """The reflection's verdict: on to validation as it is, to the gate as a new text for the counterpart, or out."""
        decision, reason, version = result["decision"], result["reason"], result["version"]
        child = state.artifacts[item.data["child"]]
        said = Patched(item.id, child.id, result["counterpart"], decision, reason, tuple(result["ideas"]), version)
        if decision == "accept":
            return [said, ItemQueued(item.id, "validate", base=version)]
        if decision == "discard":
            return [said, ItemEnded(item.id, "discarded", f"by reflection: {reason}", child.id)]
        counterpart = state.artifacts[result["counterpart"]]
        components = {**counterpart.components, item.data["component"]: result["text"]}
        hash = content_hash(components)
        if twin := state.by_hash.get(hash):
            return [said, ItemEnded(item.id, "refused", f"the patched text is that of {twin}", twin)]
        patched = state.next_id("a")
        parents = (counterpart.id, child.id)
        made = ArtifactMade(patched, components, hash, parents, "patch", item.data["component"], item.id)
        won = f"{state.pool.front().get(counterpart.id, 0):x}"
        data = {"parent": counterpart.id, "child": patched, "won": won, "rebased": True}
        return [said, made, ItemQueued(item.id, "gate", data, base=version)]

    def _after_validate(self, state: RunState, item: Item) -> Sequence[Route]:
        child, n = item.data["child"], len(self.task.val)
        samples = {e: s for e in range(n) if (s := state.sample(child, "val", e)) is not None}
        if len(samples) < self.settings.min_coverage * n:
            reason = (
                f"only {len(samples)} of {n} validation samples could be scored (min_coverage {self.settings.min_coverage:g})"
            )
            return [ItemEnded(item.id, "failed", reason, child)]
        return [Commit(item.id, child, {e: sample.score for e, sample in samples.items()}, n)]

    def prefix(self, state: RunState, item: Item, stage: str, share: float, rounds: int) -> Sequence[int]:
        """The validation examples scored first; the seed has no prefix."""
        if stage != "validate" or item.kind == "seed":
            return ()
        return partials.prefix_of(state.pool, len(self.task.val), self.task.perfect, share, rounds)

    def partial(self, state: RunState, job: Job, given: SampleScored) -> tuple[Partial, Mapping[int, float]] | None:
        """How far a rollout, a gate or a validation has come."""
        match job.stage:
            case "rollout":
                return partials.on_minibatch(state, job, given, self.task.perfect)
            case "gate":
                return partials.at_gate(state, job, given, self.task.perfect)
            case "validate":
                return partials.in_validation(state, job, given, len(self.task.val), self.task.perfect)
            case _:
                return None

    def outdone(self, state: RunState, item: Item, stage: str, partial: Partial, why: str) -> Sequence[Route]:
        """A child that cannot pass its gate is rejected; one that cannot win on the validation set is outdone."""
        child = item.data["child"]
        if stage != "gate":
            return [ItemEnded(item.id, "outdone", why, child)]
        first = item.kind == "proposal" and not item.gated
        n = partial.wanted
        gated = Gated(item.id, child, item.data["parent"], False, first, n * partial.bar, n * partial.reach, bound=True)
        return [gated, ItemEnded(item.id, "rejected", why, child)]

    def situation(self, state: RunState, item: Item) -> Situation:
        """Gap, touched, superseded and the counterpart, as the front stands now."""
        if item.kind == "seed":
            return Situation(0, False, False, "the seed", "")
        pool, parent, won = state.pool, str(item.data["parent"]), int(item.data["won"], 16)
        front = pool.front()
        siblings = pool.children_since(parent, item.base, item.batch)
        lost = won & ~front.get(parent, 0)
        heirs = [m for m in siblings if m.component == item.data["component"] and won and not won & ~front.get(m.id, 0)]
        facts = [f"its parent {parent} lost {lost.bit_count()} of {won.bit_count()} front wins"] if lost else []
        facts += [f"siblings joined: {', '.join(m.id for m in siblings)}"] if siblings else []
        facts += [f"its parent {parent} left the front"] if parent not in front and parent in pool.members else []
        facts += [f"its parent {parent} was rolled back"] if parent not in pool.members else []
        facts += [f"{heirs[0].id} changed the same component and wins all its parent won"] if heirs else []
        return Situation(
            gap=pool.gap(item.base, item.batch),
            touched=bool(lost or siblings),
            superseded=parent not in front or bool(heirs),
            why="; ".join(facts) or "nothing it was made from has changed",
            counterpart=self._counterpart(front, parent, won),
            best=best.id if (best := pool.best()) else "",
        )

    @staticmethod
    def _counterpart(front: Mapping[str, int], parent: str, won: int) -> str:
        if parent in front:
            return parent
        return max(front, key=lambda id: ((front[id] & won).bit_count(), -int(id[1:])))  # ties go to the lowest id

    def stale_item(self, state: RunState, item: Item, situation: Situation, commit: Commit | None) -> StaleItem:
        """What a staleness policy gets to see of an item."""
        best, parent = state.pool.best(), state.pool.members.get(item.data["parent"])
        assert best is not None
        return StaleItem(
            item=item.id,
            kind=item.kind,
            where="commit" if commit else "dequeue",
            gap=situation.gap,
            touched=situation.touched,
            superseded=situation.superseded,
            updates=item.updates,
            gain=float(item.data.get("gain", 0.0)),
            parent_score=parent.mean if parent else 0.0,  # rolled back
            best_score=best.mean,
            score=sum(commit.scores.values()) / len(commit.scores) if commit and commit.scores else None,
            base=item.base,
            version=state.pool.version,
            load=len(state.calls) / max(1, int(state.settings.get("concurrency") or 1)),
            patching=len(state.queues["patch"]) + sum(len(state.jobs[job].items) for job in state.slots["patch"].values()),
            parent=str(item.data["parent"]),
            best=best.id,
        )

    def companions(self, state: RunState, item: Item, stage: str) -> Sequence[str] | None:
        """Stale items of the same component, where the patcher can read several at once."""
        return companions(state, item) if stage == "patch" and isinstance(self.settings.patcher, Distiller) else None

    def inject(self, state: RunState, parent: str, components: Mapping[str, str]) -> Sequence[Event]:
        """A person's text, gated against its parent on the next minibatch."""
        hash = content_hash(components)
        child = state.by_hash.get(hash) or state.next_id("a")
        if parent not in state.pool.members or set(components) != set(self.task.components):
            return [
                Warned("by hand", f"the text was not taken: {parent} is not in the pool, or its components are not the task's")
            ]
        if child in state.pool.members or any(item.data.get("child") == child for item in state.items.values()):
            return [Warned("by hand", f"the text was not taken: it is {child}, which is in the pool or on its way already")]
        old = state.artifacts[parent].components
        changed = next((name for name in components if components[name] != old[name]), "")
        busy = {example for item in state.items.values() for example in item.data.get("minibatch", ())}
        minibatch, cursor = next_minibatch(state.cursor, self.run_seed, len(self.task.train), self.settings.minibatch, busy)
        data: dict[str, Any] = {
            "parent": parent,
            "child": child,
            "component": changed,
            "minibatch": minibatch,
            "cursor": cursor,
        }
        data |= {"won": f"{state.pool.front().get(parent, 0):x}", "rebased": True, "scores": []}
        id = state.next_id("p")
        made = [] if hash in state.by_hash else [ArtifactMade(child, components, hash, (parent,), "human", changed, id)]
        return [*made, ItemMade(id, "human", "gate", state.pool.version, state.batches + 1, data)]

    def update(self, state: RunState, item: Item, situation: Situation) -> Sequence[Route]:
        """Graft the changed component onto the counterpart, and gate it again on the same minibatch."""
        if item.kind == "merge":
            return merging.updated(state, item, situation)
        counterpart, child = state.artifacts[situation.counterpart], state.artifacts[item.data["child"]]
        component = item.data["component"]
        components = {**counterpart.components, component: child.components[component]}
        moves, graft = self._graft(state, item, counterpart, child, components)
        if not graft:
            return moves
        won = f"{state.pool.front().get(counterpart.id, 0):x}"
        data = {"parent": counterpart.id, "child": graft, "won": won, "rebased": True}
        return [*moves, ItemQueued(item.id, "gate", data, base=state.pool.version)]

    @staticmethod
    def _graft(
        state: RunState, item: Item, counterpart: Artifact, child: Artifact, components: dict[str, str]
    ) -> tuple[list[Route], str]:
        hash = content_hash(components)
        if hash == child.hash:
            return [], child.id
        if twin := state.by_hash.get(hash):
            return [ItemEnded(item.id, "discarded", f"updated, it is the same text as {twin}", twin)], ""
        graft = state.next_id("a")
        parents = (counterpart.id, child.id)
        return [ArtifactMade(graft, components, hash, parents, "update", item.data["component"], item.id)], graft

    async def work(self, stage: str, bench: Bench) -> Mapping[str, Any]:
        """The work of a stage; its result is what `route` reads."""
        return await GEPAWork(self.settings, self.task, bench).of(stage)
