"""The rows behind the tables that are no picture of their own: calls, artifacts, items, settings, scores and trouble.

Owns `Records`, which collects them from the log. Owns no column order (`tables`). One rule a change must keep: a row
starts with every key it will ever have, and later entries only fill them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flashevolve_lab.core import Entry, Event, Item, RunState
from flashevolve_lab.core import events as ev
from flashevolve_lab.views.columns import COLUMNS
from flashevolve_lab.views.folding import Folding

Row = dict[str, Any]


class Records:
    """Collects rows; `state` is the run after the last entry taken in."""

    def __init__(self) -> None:
        self._folding = Folding()
        self.calls: dict[str, Row] = {}  # by id, in order of their start
        self.artifacts: dict[str, Row] = {}  # by id, in order of their making
        self.items: dict[str, Row] = {}  # by id, in order of their making
        self.settings: list[Row] = []
        self.scores: list[Row] = []
        self.failures: list[Row] = []
        self.samples: list[Row] = []
        self.servers: list[Row] = []
        self.reviews: list[Row] = []
        self._jobs: dict[str, tuple[str, str]] = {}  # job → its stage and item, ended ones too
        self._made: dict[str, list[str]] = {}  # item → the artifacts it has made

    def __repr__(self) -> str:
        return f"<Records up to entry {self.state.seq}>"

    @property
    def state(self) -> RunState:
        """The run after the last entry taken in. Look, do not touch."""
        return self._folding.state

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take in further entries; those seen before are skipped."""
        for entry in self._folding.fresh(entries):
            at = self._folding.time(entry)
            self._collect_work(entry.event, at)
            self._collect_trouble(entry.event, at)
            self._folding.take(entry)
            self._collect_outcomes(entry.event, at)

    # --- before the entry is folded ---------------------------------------------------------------------------------

    def _collect_work(self, event: Event, at: float) -> None:
        match event:
            case ev.JobStarted():
                self._jobs[event.job] = event.stage, event.item
            case ev.CallStarted():
                self.calls[event.call] = self._call(event, at)
            case ev.CallFinished():
                self._close_call(event, at)
            case ev.SampleScored():
                score = {"score": event.score, "output": event.output, "feedback": event.feedback}
                self.samples.append({**self._sample(event, at), **score, "outcome": "scored"})
            case ev.SampleFailed():
                score = {"score": None, "output": "", "feedback": event.message}
                self.samples.append({**self._sample(event, at), **score, "outcome": event.kind})
            case ev.RunStarted():
                knobs = [*event.settings.items(), ("budget", event.budget)]
                self.settings += [_setting(0.0, knob, None, new, "start", "") for knob, new in knobs]
            case ev.ServerSeen():
                self.servers.append({"at": at, **{name: getattr(event, name) for name in COLUMNS["servers"][1:]}})
            case ev.SettingChanged():
                self.settings.append(_setting(at, event.knob, event.old, event.new, event.by, event.why))
            case ev.DepthChanged(old, new, why, by):
                self.settings.append(_setting(at, "depth", old, new, by or "livelock", why))
            case ev.SlotsChanged(stage, old, new, why, by):
                self.settings.append(_setting(at, f"slots of {stage}", old, new, by, why))
            case ev.WorkersReviewed():
                self.reviews.append({"at": at, **{name: getattr(event, name) for name in COLUMNS["reviews"][1:]}})
            case _:
                pass

    def _call(self, event: ev.CallStarted, at: float) -> Row:
        return {
            **dict.fromkeys(COLUMNS["calls"]),
            **self._whose(event.job),
            **{name: getattr(event, name) for name in ("call", "role", "key", "attempt", "request", "hedge")},
            "started_at": at,
            "outcome": "running",
        }

    def _close_call(self, event: ev.CallFinished, at: float) -> None:
        row = self.calls[event.call]
        row.update(ended_at=at, seconds=at - row["started_at"], tokens=event.spent.tokens, dollars=event.spent.dollars)
        row.update({name: getattr(event, name) for name in ("outcome", "finish", "model", "text")})
        row.update(prompt_tokens=event.prompt_tokens, completion_tokens=event.completion_tokens)

    def _sample(self, event: ev.SampleScored | ev.SampleFailed, at: float) -> Row:
        where = {"artifact": event.artifact, "split": event.split, "example": event.example}
        return {"at": at, **self._whose(event.job), **where}

    def _collect_trouble(self, event: Event, at: float) -> None:
        match event:
            case ev.JobFailed(job, kind, message, raw):
                self._fail(at, "job", job, kind, message, raw=raw)
            case ev.SampleFailed(job, artifact, split, example, kind, message):
                self._fail(at, "sample", job, kind, message, artifact=artifact, split=split, example=example)
            case ev.CallFinished(call, outcome) if outcome not in ("ok", "cancelled"):
                self._fail(at, "call", self.calls[call]["job"], outcome, event.text, call=call)
            case _:
                pass

    def _fail(self, at: float, what: str, job: str, kind: str, message: str, **where: Any) -> None:
        row = {"at": at, "what": what, "kind": kind, "message": message, **self._whose(job)}
        self.failures.append({**dict.fromkeys(COLUMNS["failures"]), **row, **where})

    def _whose(self, job: str) -> Row:
        stage, item = self._jobs[job]
        return {"job": job, "stage": stage, "item": item}

    # --- after the entry is folded ----------------------------------------------------------------------------------

    def _collect_outcomes(self, event: Event, at: float) -> None:
        match event:
            case ev.ArtifactMade():
                self._make(event, at)
            case ev.Gated():
                child_sum = None if event.bound else event.child_sum
                gate = {"gate": event.passed, "parent_sum": event.parent_sum, "child_sum": child_sum}
                self.artifacts[event.artifact].update(gate)
            case ev.Committed(artifact=artifact) | ev.Confirmed(artifact):
                self._commit(artifact)
            case ev.Provisional(version, artifact):
                self.artifacts[artifact].update(version=version, status="provisional")
            case ev.RolledBack(_, artifact, _, reason):
                self.artifacts[artifact].update(status="rolled back", reason=reason)
            case ev.Proven(artifact=artifact, reach=reach) if artifact in self.artifacts:
                self.artifacts[artifact].update(bound=reach)
            case ev.ItemMade(item) | ev.ItemQueued(item):
                self._follow(self.state.items[item], at)
            case ev.ItemEnded():
                self._end_item(event, at)
            case _:
                pass

    def _make(self, event: ev.ArtifactMade, at: float) -> None:
        for earlier in self._made.setdefault(event.item, []):
            self.artifacts[earlier].update(outcome="replaced", reason=f"by {event.artifact}", status="replaced")
        self._made[event.item].append(event.artifact)
        self.artifacts[event.artifact] = {
            **dict.fromkeys(COLUMNS["artifacts"]),
            **{name: getattr(event, name) for name in ("artifact", "origin", "component", "item", "hash")},
            "at": at,
            "parents": tuple(event.parents),
            "texts": dict(event.components),
            "status": "made",
        }

    def _commit(self, artifact: str) -> None:
        member = self.state.pool.members[artifact]
        known = {"version": member.version, "mean": member.mean, "coverage": member.coverage}
        self.artifacts[artifact].update(known, status="in the pool")
        row = {"artifact": artifact, "version": member.version}
        self.scores += [{**row, "example": example, "score": score} for example, score in member.scores.items()]

    def _follow(self, item: Item, at: float) -> None:
        """The item's facts as they are now; the first time, its row."""
        row = self.items.setdefault(item.id, {**dict.fromkeys(COLUMNS["items"]), "item": item.id, "made_at": at})
        row.update({name: item.data.get(name) for name in ("parent", "child", "component", "minibatch")})
        row.update({name: getattr(item, name) for name in ("kind", "base", "batch", "stage", "tries", "updates")})

    def _end_item(self, event: ev.ItemEnded, at: float) -> None:
        self.items[event.item].update(ended_at=at, outcome=event.outcome, reason=event.reason)
        if made := self._made.get(event.item):
            row = self.artifacts[made[-1]]
            row.update(outcome=event.outcome, reason=event.reason)
            if row["status"] == "made":
                row["status"] = event.outcome


def _setting(at: float, knob: str, old: Any, new: Any, by: str, why: str) -> Row:
    return {"at": at, "knob": knob, "old": old, "new": new, "by": by, "why": why}
