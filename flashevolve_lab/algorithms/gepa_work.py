"""The work of GEPA's stages: what waits for models and metrics.

Owns one job's work (`GEPAWork`). Decides nothing: it returns facts, and `gepa.route` says what follows. One rule a change must
keep: samples that could not be scored are missing, and a text that cannot be used is `Trouble` with the raw reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flashevolve_lab.algorithms.bench import Bench, Trouble
from flashevolve_lab.algorithms.patching import CommitRecord, StaleBrief
from flashevolve_lab.algorithms.proposing import Brief, Record
from flashevolve_lab.core import RunState, Sample
from flashevolve_lab.errors import BadReply
from flashevolve_lab.tasks import PROGRAM_FAILED, Task

if TYPE_CHECKING:
    from flashevolve_lab.algorithms.gepa import GEPA


def not_cached(state: RunState, artifact: str, split: str, examples: Sequence[int], *, cache: bool) -> list[int]:
    """The examples that still have to be run. Without the cache, training examples always are."""
    if not cache and split == "train":
        return list(examples)
    return [example for example in examples if state.sample(artifact, split, example) is None]


@dataclass(frozen=True, slots=True)
class GEPAWork:
    """One job's work."""

    settings: GEPA
    task: Task
    bench: Bench

    async def of(self, stage: str) -> Mapping[str, Any]:
        """The facts a stage finds out."""
        data = self.bench.item.data
        match stage:
            case "rollout":
                return {"scores": await self._on_minibatch(data["parent"])}
            case "propose":
                return await self._propose()
            case "patch":
                return await self._patch()
            case "gate":
                parent = await self._on_minibatch(data["parent"]) if data.get("rebased") else data["scores"]
                return {"parent": parent, "child": await self._on_minibatch(data["child"])}
            case _:
                return await self._validate()

    async def _on_minibatch(self, artifact: str) -> list[float]:
        minibatch = self.bench.item.data["minibatch"]
        samples, lost = await self._score(artifact, "train", minibatch)
        if lost:
            raise _unscored(len(lost), len(minibatch), "train")
        return [samples[example].score for example in minibatch]

    async def _validate(self) -> Mapping[str, Any]:
        """Score the whole validation set; after a second try a few may be missing, which is not zero."""
        n, item = len(self.task.val), self.bench.item
        samples, lost = await self._score(item.data["child"], "val", range(n))
        if item.kind == "seed" and samples and all(s.feedback.startswith(PROGRAM_FAILED) for s in samples.values()):
            last = list(samples.values())[-1].feedback
            raise Trouble("program", f"the program failed on all {len(samples)} validation examples; the last: {last}")
        if lost and (item.tries == 0 or len(lost) > (1 - self.settings.min_coverage) * n):
            raise _unscored(len(lost), n, "validation")
        return {"missing": lost}

    async def _score(self, artifact: str, split: str, examples: Sequence[int]) -> tuple[dict[int, Sample], list[int]]:
        """Samples from the cache and fresh ones, and the examples that could not be scored."""
        state = self.bench.state
        wanted = not_cached(state, artifact, split, examples, cache=self.settings.cache)
        known = {e: s for e in examples if (s := state.sample(artifact, split, e)) is not None}
        fresh = await self.bench.score(artifact, split, wanted)
        return {**known, **fresh}, [example for example in wanted if example not in fresh]

    async def _propose(self) -> Mapping[str, Any]:
        data = self.bench.item.data
        parent = self.bench.state.artifacts[data["parent"]]
        records = tuple(self._record(parent.id, example) for example in data["minibatch"])
        brief = Brief(parent.components, data["component"], records, self.bench.draw("propose"))
        try:
            draft = await self.settings.proposer.propose(brief, self.bench.asker("reflection", "propose"))
        except BadReply as error:
            raise Trouble(error.why, str(error), raw=error.raw) from error
        text = _usable(draft.text, brief.current, draft.raw)
        return {"text": text, "note": draft.note} if draft.note else {"text": text}

    def _record(self, parent: str, example: int) -> Record:
        sample = self.bench.state.sample(parent, "train", example)
        assert sample is not None
        return Record(self.task.show(self.task.train[example]), sample.output, sample.score, sample.feedback)

    async def _patch(self) -> Mapping[str, Any]:
        """The reflection's verdict on a stale child, against the counterpart and the history as they are now."""
        state, item = self.bench.state, self.bench.item
        component, version, counterpart = item.data["component"], state.pool.version, item.data["counterpart"]
        stale = state.artifacts[item.data["child"]].components[component]
        current = state.artifacts[counterpart].components[component]
        base = state.artifacts[item.data["parent"]].components[component]
        history = tuple(
            CommitRecord(m.version, m.id, state.artifacts[m.id].components[component], m.mean)
            for m in state.pool.order[item.base + 1 :]
        )
        try:
            brief = StaleBrief(component, stale, base, current, history)
            patch = await self.settings.patcher.patch(brief, self.bench.asker("patch", f"patch:{item.updates}"))
        except BadReply as error:
            raise Trouble(error.why, str(error), raw=error.raw) from error
        if patch.decision == "patch":
            text = _usable(patch.text, current, patch.raw)
            text = _usable(text, stale, patch.raw)
        else:
            text = ""
        facts = {"decision": patch.decision, "reason": patch.reason, "ideas": list(patch.ideas), "text": text}
        return {**facts, "version": version, "counterpart": counterpart}


def _usable(text: str, than: str, raw: str) -> str:
    """The text, stripped. Raises `Trouble` when it is empty or says nothing new."""
    stripped = text.strip()
    if not stripped:
        raise Trouble("empty", "the proposed text is empty", raw=raw)
    if stripped == than.strip():
        raise Trouble("unchanged", "the proposed text is the old one, unchanged", raw=raw)
    return stripped


def _unscored(lost: int, wanted: int, split: str) -> Trouble:
    return Trouble("samples", f"{lost} of {wanted} {split} samples could not be scored; see frame('failures')", again=True)
