"""The work of GEPA's stages: what waits for models and metrics.

Owns one job's work (`GEPAWork`). Decides nothing: it returns facts, and `gepa.route` says what follows. One rule a change must
keep: samples that could not be scored are missing, and a text that cannot be used is `Trouble` with the raw reply.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_lab.algorithms.bench import Bench, Trouble
from flashevolve_lab.algorithms.combining import Joiner, Window
from flashevolve_lab.algorithms.patching import CommitRecord, Distiller, Patch, StaleBrief
from flashevolve_lab.algorithms.proposing import Brief, Draft, Record
from flashevolve_lab.algorithms.remembering import remembered
from flashevolve_lab.core import Item, RunState, Sample
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
            case "gate" if self.bench.item.kind == "merge":
                return {"child": await self._scores(data["child"], "val", data["subsample"])}
            case "gate" if round := data.get("round"):
                return await self._further_round(round["examples"], fresh=round["fresh"])
            case "gate":
                if "seen" in data and not data.get("rebased"):
                    return await self._gate_on_part()
                parent = await self._on_minibatch(data["parent"]) if data.get("rebased") else data["scores"]
                return {"parent": parent, "child": await self._on_minibatch(data["child"])}
            case _:
                return await self._validate()

    async def _gate_on_part(self) -> Mapping[str, Any]:
        """Of a released rollout: parent and child on the examples that the parent has been scored on by now."""
        data = self.bench.item.data
        known = {e: s for e in data["minibatch"] if (s := self.bench.state.sample(data["parent"], "train", e)) is not None}
        child = await self._on_minibatch(data["child"], list(known))
        return {"parent": [sample.score for sample in known.values()], "child": child}

    async def _on_minibatch(self, artifact: str, part: Sequence[int] | None = None) -> list[float]:
        return await self._scores(artifact, "train", self.bench.item.data["minibatch"] if part is None else part)

    async def _further_round(self, examples: Sequence[int], *, fresh: bool) -> Mapping[str, Any]:
        """Parent and child on these examples; where they are not fresh, both really run again."""
        parent, child = (self.bench.item.data[who] for who in ("parent", "child"))
        scores = await asyncio.gather(*(self._scores(text, "train", examples, known=fresh) for text in (parent, child)))
        return {"parent": scores[0], "child": scores[1]}

    async def _scores(self, artifact: str, split: str, examples: Sequence[int], *, known: bool = True) -> list[float]:
        """A score for each example, or `Trouble`. ``known``: what the cache knows need not run."""
        if known:
            samples, lost = await self._score(artifact, split, examples)
        else:
            samples = await self.bench.score(artifact, split, examples)
            lost = [example for example in examples if example not in samples]
        if lost:
            raise _unscored(len(lost), len(examples), "train" if split == "train" else "validation")
        return [samples[example].score for example in examples]

    async def _validate(self) -> Mapping[str, Any]:
        """Score the whole validation set; after a second try a few may be missing, which is not zero."""
        n, item = len(self.task.val), self.bench.item
        first = self.bench.first
        order = [*first, *sorted(set(range(n)).difference(first))]
        samples, lost = await self._score(item.data["child"], "val", order)
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
        records = tuple(self._record(parent.id, example) for example in self._seen())
        rejected = remembered(self.bench.state, parent.id, data["component"], self.settings.remember)
        brief = Brief(parent.components, data["component"], records, self.bench.draw("propose"), rejected)
        proposer = self.settings.proposer
        try:
            window = await proposer.combine(brief, self.bench) if isinstance(proposer, Joiner) else Window(await self._drafted(brief))
        except BadReply as error:
            raise Trouble(error.why, str(error), raw=error.raw) from error
        return await self._closed(window, brief.current)

    async def _closed(self, window: Window, current: str) -> Mapping[str, Any]:
        """The proposed text. Where calls of a join are still out, the item goes on with it, and this job waits for them."""
        draft = window.draft
        try:
            result: dict[str, Any] = {"text": _usable(draft.text, current, draft.raw)}
        except Trouble:
            if window.tail is not None:
                window.tail.cancel()
            raise
        result |= {"note": draft.note} if draft.note else {}
        result |= {"open": list(window.open)} if window.open else {}
        if window.tail is None:
            return result
        self.bench.release(result, f"{len(window.open)} reflections missed the window: they go to the next one")
        await window.tail
        return {}

    def _seen(self) -> list[int]:
        """The examples of the minibatch that the parent has been scored on: all, unless its rollout was released early."""
        data = self.bench.item.data
        if "seen" not in data:
            return list(data["minibatch"])
        return [e for e in data["minibatch"] if self.bench.state.sample(data["parent"], "train", e) is not None]

    async def _drafted(self, brief: Brief) -> Draft:
        """The proposer's text; one whose ``propose`` is a plain function works in a thread."""
        proposer = self.settings.proposer
        assert not isinstance(proposer, Joiner)
        propose, asker = proposer.propose, self.bench.asker("reflection", "propose")
        if not inspect.iscoroutinefunction(propose):
            propose = partial(self.bench.call, propose)
        draft: Draft = await propose(brief, asker)
        return draft

    def _record(self, parent: str, example: int) -> Record:
        sample = self.bench.state.sample(parent, "train", example)
        assert sample is not None
        return Record(self.task.show(self.task.train[example]), sample.output, sample.score, sample.feedback, example)

    async def _patch(self) -> Mapping[str, Any]:
        """The reflection's verdict on a stale child (or on several), against its target and the history as they are now."""
        items = (self.bench.item, *self.bench.also)
        version, target = self.bench.state.pool.version, self._target()
        briefs = [self._stale_brief(item, target) for item in items]
        try:
            patches = await self._patches(briefs)
        except BadReply as error:
            raise Trouble(error.why, str(error), raw=error.raw) from error
        text = next((patch.text for patch in patches if patch.decision == "patch"), "")
        for brief, patch in zip(briefs, patches, strict=True):
            if patch.decision == "patch":
                text = _usable(_usable(text, brief.current, patch.raw), brief.stale, patch.raw)
        said = [{"decision": patch.decision, "reason": patch.reason, "ideas": list(patch.ideas)} for patch in patches]
        facts = {"text": text, "version": version, "counterpart": target}
        if len(items) == 1:
            return {**said[0], **facts}
        return {"items": [{"item": item.id, **one} for item, one in zip(items, said, strict=True)], **facts}

    async def _patches(self, briefs: Sequence[StaleBrief]) -> Sequence[Patch]:
        patcher, item = self.settings.patcher, self.bench.item
        asker = self.bench.asker("patch", f"patch:{item.updates}")
        if len(briefs) == 1:
            return [await patcher.patch(briefs[0], asker)]
        assert isinstance(patcher, Distiller)
        patches = await patcher.distil(briefs, asker)
        if len(patches) != len(briefs):
            raise BadReply(f"{len(patches)} verdicts on {len(briefs)} stale texts", why="ambiguous")
        return patches

    def _target(self) -> str:
        """What the patch is written for: the best as it is now, or the counterpart as it was judged (the best, if it was rolled back)."""
        pool, target = self.bench.state.pool, str(self.bench.item.data["counterpart"])
        best = pool.best()
        stands = self.bench.item.data.get("onto") != "best" and target in pool.members
        return target if stands or best is None else best.id

    def _stale_brief(self, item: Item, target: str) -> StaleBrief:
        state, component = self.bench.state, item.data["component"]
        stale, base, current = (state.artifacts[id].components[component] for id in (item.data["child"], item.data["parent"], target))
        history = tuple(
            CommitRecord(m.version, m.id, state.artifacts[m.id].components[component], m.mean)
            for m in state.pool.order
            if m.version > item.base
        )
        return StaleBrief(component, stale, base, current, history)


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
