"""Everything known about an artifact, an item or a job, collected from the log and told as a `Dossier`.

Owns `Evidence`. Owns no differences and no pixels. One rule a change must keep: a dossier is what the log says; nothing is
judged again or rebuilt. Only the counterpart of an item that was never judged is worked out, by the rule of design §9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace

from flashevolve_lab.core import NOTHING, Entry, Event, RunState, Sample, Spend
from flashevolve_lab.core import events as ev
from flashevolve_lab.errors import SetupError
from flashevolve_lab.views.completion import CompletionRow, completion_row
from flashevolve_lab.views.dossier import Act, Compared, Dossier, Gate, Relative, Spoken, Text, Trial, Work
from flashevolve_lab.views.folding import Folding
from flashevolve_lab.views.staleness import StaleRow

_ROW = tuple(f.name for f in fields(StaleRow) if f.name not in ("seq", "at"))


@dataclass(slots=True)
class _Story:
    """What happened to one item so far."""

    item: str
    kind: str
    base: int
    stage: str
    parent: str = ""
    child: str = ""
    component: str = ""
    minibatch: tuple[int, ...] = ()
    won: dict[str, str] = field(default_factory=dict)  # parent → the instances it won when it was drawn, as hexadecimal
    texts: list[str] = field(default_factory=list)  # artifacts it made, in order
    work: dict[str, Work] = field(default_factory=dict)
    seen: dict[tuple[str, int], Sample | str] = field(default_factory=dict)  # (artifact, train example) → sample, or trouble
    spoken: list[Spoken] = field(default_factory=list)
    gates: list[Gate] = field(default_factory=list)
    verdicts: list[StaleRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    completion: list[CompletionRow] = field(default_factory=list)
    late: frozenset[int] = frozenset()  # train examples that came after its rollout was released
    beside: tuple[str, ...] = ()  # texts of the other items that the latest join took
    spent: Spend = NOTHING
    outcome: str = ""
    reason: str = ""


class Evidence:
    """Feed it the log in any pieces; ask about any id at any time."""

    def __init__(self) -> None:
        self._folding = Folding()
        self._stories: dict[str, _Story] = {}
        self._jobs: dict[str, tuple[str, str]] = {}  # job → its item, and the item's text when it started
        self._also: dict[str, tuple[str, ...]] = {}  # job → further items it took along
        self._calls: dict[str, ev.CallStarted] = {}  # sent and not yet answered
        self._children: dict[str, list[str]] = {}
        self._acts: list[Act] = []
        self._gone: dict[str, None] = {}  # artifacts that were rolled back
        self._shown: dict[int, str] = {}  # train example → its text, as first recorded

    def __repr__(self) -> str:
        return f"<Evidence on {len(self._stories)} items up to entry {self.state.seq}>"

    @property
    def state(self) -> RunState:
        """The run after the last entry taken in. Look, do not touch."""
        return self._folding.state

    @property
    def acts(self) -> Sequence[Act]:
        """What became of what people did by hand, oldest first."""
        return self._acts

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take in further entries; those seen before are skipped."""
        for entry in self._folding.fresh(entries):
            at = self._folding.time(entry)
            self._complete(entry, at)
            self._folding.take(entry)
            self._collect(entry.event, at)
            self._judge(entry, at)

    def about(self, id: str) -> Dossier:
        """Everything about an artifact ("a7"), an item ("p12") or a job ("j33").

        Raises:
            SetupError: the log has no such id (so far).
        """
        story, own, job = self._subject(id)
        return self._dossier(id, story, own, job)

    # --- collecting -------------------------------------------------------------------------------------------------------

    def _collect(self, event: Event, at: float) -> None:
        match event:
            case ev.ItemMade(item, kind, stage, base):
                self._stories[item] = _Story(item, kind, base, stage)
                self._follow(item)
            case ev.ItemQueued(item):
                self._follow(item)
            case ev.ItemEnded(item, outcome, reason):
                story = self._stories[item]
                story.outcome, story.reason = outcome, reason
            case ev.ArtifactMade(artifact, parents=parents):
                for parent in parents:
                    self._children.setdefault(parent, []).append(artifact)
                if story_of_it := self._stories.get(event.item):
                    story_of_it.texts.append(artifact)
            case ev.Gated(item, artifact, parent, passed, _, parent_sum, child_sum):
                self._stories[item].gates.append(Gate(at, artifact, parent, passed, parent_sum, child_sum, event.reason, event.bound))
            case _:
                self._collect_work(event, at)

    def _follow(self, item: str) -> None:
        """The item's facts as they are now."""
        story, now = self._stories[item], self.state.items[item]
        data = now.data
        story.stage, story.base = now.stage, now.base
        story.parent, story.child = str(data.get("parent", "")), str(data.get("child", ""))
        story.component, story.minibatch = str(data.get("component", "")), tuple(data.get("minibatch", ()))
        if "won" in data:
            story.won[story.parent] = str(data["won"])
        made = self.state.artifacts.get(story.child)
        if made and made.item == item and made.id not in story.texts:  # logged before its item: the seed, a text by hand
            story.texts.append(made.id)

    def _collect_work(self, event: Event, at: float) -> None:
        match event:
            case ev.JobStarted(job, item=item):
                self._jobs[job] = item, self._stories[item].child
                self._also[job] = event.also
                self._begin(event, at)
            case ev.JobFinished(job, result):
                self._end(job, at, "finished")
                if note := result.get("note"):
                    self._story_of(job).notes.append(str(note))
            case ev.JobFailed(job, kind, message, raw):
                self._end(job, at, f"failed: {kind}", message, raw)
            case ev.JobAbandoned(job, reason, still_running):
                self._end(job, at, "abandoned, still running" if still_running else "abandoned", reason)
            case ev.JobLost(job):
                self._end(job, at, "lost", "its process died")
            case ev.CallStarted(call):
                self._calls[call] = event
            case ev.CallFinished():
                self._hear(event, at)
            case ev.SampleScored(job, artifact, split, example, score, output, feedback, shown):
                if shown and split == "train":
                    self._shown.setdefault(example, shown)
                self._saw(job, (artifact, example), Sample(score, output, feedback) if split == "train" else None)
            case ev.SampleFailed(job, artifact, split, example, kind, message):
                self._saw(job, (artifact, example), f"{kind}: {message}" if split == "train" else None)
            case _:
                pass

    def _story_of(self, job: str) -> _Story:
        return self._stories[self._jobs[job][0]]

    def _stories_of(self, job: str) -> list[_Story]:
        """Of all its items; what it cost is told with the first."""
        return [self._story_of(job), *(self._stories[item] for item in self._also[job])]

    def _begin(self, event: ev.JobStarted, at: float) -> None:
        stories = self._stories_of(event.job)
        for story in stories:
            story.work[event.job] = Work(event.job, event.stage, event.slot, at, None, "running", first=event.first)
            if event.also:
                story.beside = tuple(other.child for other in stories if other is not story)

    def _end(self, job: str, at: float, outcome: str, message: str = "", raw: str = "") -> None:
        for story in self._stories_of(job):
            story.work[job] = replace(story.work[job], ended=at, outcome=outcome, message=message, raw=raw)

    def _hear(self, event: ev.CallFinished, at: float) -> None:
        call = self._calls.pop(event.call)
        story = self._story_of(call.job)
        story.spent += event.spent
        if call.role != "task":
            stage, tokens = story.work[call.job].stage, event.spent.tokens
            said = (event.outcome, event.finish, event.model, tokens, event.text, call.prompt)
            for one in self._stories_of(call.job):
                one.spoken.append(Spoken(event.call, at, stage, call.role, *said))

    def _saw(self, job: str, what: tuple[str, int], sample: Sample | str | None) -> None:
        story = self._story_of(job)
        story.spent += Spend(metric_calls=1)
        if sample is not None:
            story.seen[what] = sample

    def _complete(self, entry: Entry, at: float) -> None:
        """What a completion policy did, the state being as it was before it."""
        if not isinstance(entry.event, (ev.Released, ev.Proven, ev.Provisional, ev.Confirmed, ev.RolledBack)):
            return
        item = self._jobs[entry.event.job][0] if isinstance(entry.event, ev.Released) else entry.event.item
        story = self._stories[item]
        row = completion_row(self.state, entry, at, {item: next(reversed(story.work), "")})
        assert row is not None
        story.completion.append(row)
        if row.kind == "released":
            story.late = frozenset(row.late)
            story.work[row.job] = replace(story.work[row.job], released=at)
        elif row.kind == "rolled back":
            self._gone[row.artifact] = None

    def _judge(self, entry: Entry, at: float) -> None:
        """Verdicts, and what people did by hand."""
        match entry.event:
            case ev.StalenessJudged(item) as judged:
                row = StaleRow(entry.seq, at, **{name: getattr(judged, name) for name in _ROW})
                self._stories[item].verdicts.append(row)
                if judged.where == "hand":
                    did = "accepted" if judged.action == "accept" else f"{judged.action}ed"
                    self._acts.append(Act(entry.seq, at, item, f"{item} was {did} by hand: {judged.reason}"))
            case ev.ItemMade(item, "human", stage, data=data):
                words = f"a text by hand, {data.get('child', '')}, waits at the {stage} as {item}"
                self._acts.append(Act(entry.seq, at, item, words))
            case ev.Warned("by hand", message):
                self._acts.append(Act(entry.seq, at, "", message))
            case _:
                pass

    # --- telling ----------------------------------------------------------------------------------------------------------

    def _subject(self, id: str) -> tuple[_Story | None, str, str]:
        """The item, the artifact and the job that an id is about."""
        if id in self.state.artifacts:
            return self._stories.get(self.state.artifacts[id].item), id, ""
        if id in self._stories:
            story = self._stories[id]
            return story, next(iter(story.texts), story.child), ""
        if id in self._jobs:
            item, child = self._jobs[id]
            story = self._stories[item]
            return story, child or next(iter(story.texts), story.child), id
        raise SetupError(f"there is no {id!r} in this log so far: expected an artifact (a7), an item (p12) or a job (j33)")

    def _dossier(self, id: str, story: _Story | None, own: str, job: str) -> Dossier:
        state = self.state
        artifact = state.artifacts.get(own)
        parent = artifact.parents[0] if artifact and artifact.parents else story.parent if story else ""
        counterpart, recorded_at = self._counterpart(story, own, parent)
        best = state.pool.best()
        texts = story.texts if story else []
        k = texts.index(own) if own in texts else -1
        story = story or _Story(artifact.item if artifact else "", "", 0, "")
        return Dossier(
            id=id,
            item=story.item,
            artifact=own,
            job=job,
            kind=story.kind,
            base=self._base(story, own),
            version=state.pool.version,
            place=self._place(story),
            stage=story.stage,
            in_flight=story.item in state.items,
            outcome=story.outcome,
            reason=story.reason,
            origin=artifact.origin if artifact else "",
            component=artifact.component if artifact else story.component,
            own=self._text(own),
            parent=self._text(parent),
            counterpart=self._text(counterpart),
            recorded_at=recorded_at,
            best=self._text(best.id if best else ""),
            earlier=self._text(texts[k - 1] if k > 0 else ""),
            later=self._text(texts[k + 1] if 0 <= k < len(texts) - 1 else ""),
            verdicts=tuple(story.verdicts),
            gates=tuple(story.gates),
            minibatch=story.minibatch,
            trials=tuple(self._trial(story, (parent, own, counterpart), example) for example in story.minibatch),
            spoken=tuple(story.spoken),
            work=tuple(story.work.values()),
            notes=tuple(story.notes),
            scores=self._scores(own, parent, counterpart, best.id if best else ""),
            ancestors=tuple(self._relatives(own or parent, up=True)) if own else self._self_and_ancestors(parent),
            descendants=tuple(self._relatives(own, up=False)),
            spent=story.spent,
            completion=tuple(story.completion),
            gone=self._descends_from_gone(own, parent),
            beside=tuple(text for one in story.beside if (text := self._text(one)) is not None),
        )

    def _base(self, story: _Story, own: str) -> int:
        """The base version of this text: the one its verdict recorded, else the item's."""
        return next((row.base for row in story.verdicts if row.artifact == own), story.base)

    def _place(self, story: _Story) -> str:
        if story.outcome:
            how = story.outcome.replace("_", " ")
            return f"{how}: {story.reason}" if story.reason else how
        if story.item not in self.state.items:
            return ""
        running = next((work for work in reversed(story.work.values()) if work.ended is None), None)
        if running:
            return f"in {running.stage} (slot {running.slot}, {running.job})"
        return f"waits for {story.stage}"

    def _counterpart(self, story: _Story | None, own: str, parent: str) -> tuple[str, float | None]:
        """What stands in its place, and when that was recorded (None: as the front stands now).

        A log records a counterpart only with a verdict. For an item that was never judged it is worked out here, by GEPA's rule
        (design §9, `algorithms.gepa`): a view may not ask an algorithm, which a log of another machine does not have.
        """
        rows = [row for row in story.verdicts if row.artifact == own and row.counterpart] if story else []
        if rows:
            return rows[-1].counterpart, rows[-1].at
        front = self.state.pool.front()
        if not parent or not front or parent in front:
            return (parent if parent in front else ""), None
        won = int(story.won[parent], 16) if story and story.won.get(parent) else self.state.pool.wins(parent)
        return max(front, key=lambda id: ((front[id] & won).bit_count(), -_number(id))), None

    def _text(self, id: str) -> Text | None:
        artifact, member = self.state.artifacts.get(id), self.state.pool.members.get(id)
        if artifact is None:
            return None
        text = Text(id, artifact.components, artifact.origin, artifact.component, None, None, None)
        if member is None:
            return replace(text, rolled_back=id in self._gone)
        early = bool(member.rival)
        return replace(text, version=member.version, mean=member.mean, coverage=member.coverage, provisional=early)

    def _trial(self, story: _Story, ids: tuple[str, str, str], example: int) -> Trial:
        sides = [self._seen(story, artifact, example) for artifact in ids]
        samples = [side if isinstance(side, Sample) else None for side in sides]
        troubles = [side if isinstance(side, str) else "" for side in sides]
        current = samples[2] if ids[2] not in ids[:2] else None
        return Trial(example, samples[0], samples[1], current, troubles[0], troubles[1], self._shown.get(example, ""), example in story.late)

    def _seen(self, story: _Story, artifact: str, example: int) -> Sample | str | None:
        """What this item saw; what it took from the cache is the run's sample."""
        if artifact not in self.state.artifacts:
            return None
        seen = story.seen.get((artifact, example))
        return seen if seen is not None else self.state.sample(artifact, "train", example)

    def _scores(self, *ids: str) -> tuple[Compared, ...]:
        each = [self._validation(id) for id in ids]
        examples = sorted(set().union(*each))
        return tuple(Compared(example, *(scores.get(example) for scores in each)) for example in examples)

    def _validation(self, id: str) -> dict[int, float]:
        state = self.state
        if member := state.pool.members.get(id):
            return dict(member.scores)
        if id not in state.artifacts:
            return {}
        return {example: sample.score for example, sample in state.samples.get((state.artifacts[id].hash, "val"), {}).items()}

    def _self_and_ancestors(self, id: str) -> tuple[Relative, ...]:
        return (self._relative(id, 1), *(replace(r, steps=r.steps + 1) for r in self._relatives(id, up=True))) if id else ()

    def _relatives(self, id: str, *, up: bool) -> Iterator[Relative]:
        """Nearest first, each once."""
        known, ring, steps = {id}, [id], 0
        while ring:
            steps += 1
            nexts = [n for one in ring for n in (self.state.artifacts[one].parents if up else self._children.get(one, ()))]
            ring = [n for n in dict.fromkeys(nexts) if n not in known and n in self.state.artifacts]
            known.update(ring)
            yield from (self._relative(one, steps) for one in ring)

    def _descends_from_gone(self, own: str, parent: str) -> str:
        """The nearest rolled-back artifact that an artifact (or, before there is one, its item) was made from, or ""."""
        if not self._gone or not (own or parent):
            return ""
        family = self._relatives(own, up=True) if own else self._self_and_ancestors(parent)
        return next((r.id for r in family if r.id in self._gone and r.id not in self.state.pool.members), "")

    def _relative(self, id: str, steps: int) -> Relative:
        member = self.state.pool.members.get(id)
        if member:
            return Relative(id, steps, member.version, member.mean, "provisional" if member.rival else "in the pool")
        if id in self._gone:
            return Relative(id, steps, None, None, "rolled back")
        story = self._stories.get(self.state.artifacts[id].item)
        if story is None or id not in story.texts:
            return Relative(id, steps, None, None, "")
        replaced = story.texts[-1] != id
        return Relative(id, steps, None, None, "replaced" if replaced else story.outcome)


def _number(artifact: str) -> int:
    """The number in an artifact's id: ties go to the lowest, as in the algorithm."""
    return int(artifact[1:])
