"""The overview: header with the diagnosis, score chart, and facts (budget, worker slots, cost, failures).

Owns what they show and when it is sent. Owns no sums (views) and no pixels (`overview.js`). One rule a change must keep: one
feed serves all three parts, and each part is sent only what changed in it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import traitlets as t

from flashevolve_lab.core import Entry
from flashevolve_lab.core.events import ArtifactMade, Committed, RunResumed, RunStarted, Warned
from flashevolve_lab.views import (
    Costs,
    CostsSnapshot,
    Diagnosis,
    DiagnosisSnapshot,
    Point,
    Progress,
    RunFacts,
    ServerRow,
    Servers,
    Standing,
)
from flashevolve_lab.widgets.mirror import HERE, Mirror, module_of
from flashevolve_lab.widgets.texts import sayable

MOST_TEXT = 4_000  # characters of a best text that travel unasked
AXES = ("at", "metric_calls", "llm_calls", "tokens", "dollars")
POINT = (*AXES, "version", "artifact", "mean", "best")  # the columns of a row, as overview.js reads them


class Part(Mirror):
    """One part of the overview: ``"header"``, ``"score"`` or ``"facts"``."""

    _esm = module_of("overview")
    _css = (HERE / "overview.css").read_text(encoding="utf-8")
    part = t.Unicode("header").tag(sync=True)


class Overview:
    """A view of three widgets: ``header``, ``score`` and ``facts``.

    Args:
        growing: Whether some process still writes the log; a run that is neither growing nor stopped was interrupted.
        elsewhere: Whether another process executes the run.
    """

    def __init__(self, growing: Callable[[], bool] = lambda: True, elsewhere: bool = False) -> None:
        self.header, self.score, self.facts = Part(part="header"), Part(part="score"), Part(part="facts")
        self.header.on_msg(self._whole_text)
        self._growing, self._elsewhere = growing, elsewhere
        self._progress, self._costs, self._diagnosis, self._servers = Progress(), Costs(), Diagnosis(), Servers()
        self._run = RunFacts()
        self._texts: dict[str, Mapping[str, str]] = {}  # artifact → components, of those that were made and are not past
        self._best_texts: Mapping[str, str] = {}
        self._best = ""
        self._company = ""  # that another run uses the same server
        self.seed: float | None = None
        self.state = "new"  # in a word: new, running, paused, stopped, or interrupted
        self.points: list[Point] = []

    def __repr__(self) -> str:
        return f"<Overview: {self.diagnosis.line}>"

    @property
    def diagnosis(self) -> DiagnosisSnapshot:
        """How the run is doing."""
        return self._diagnosis.snapshot()

    @property
    def standing(self) -> Standing:
        """Where the run stands."""
        return self._progress.snapshot().standing

    @property
    def run(self) -> RunFacts:
        """Facts about the run that do not change."""
        return self._run

    @property
    def best_texts(self) -> Mapping[str, str]:
        """Component → text of the best artifact; empty before the first commit."""
        return self._best_texts

    def take(self, entries: Sequence[Entry]) -> None:
        """Further entries of the log."""
        for entry in entries:
            self._remember(entry)
        delta = self._progress.feed(entries)
        self._costs.feed(entries)
        self._diagnosis.feed(entries)
        self._servers.feed(entries)
        self.points += delta.points
        self._update(delta.standing, delta.points)

    def fail(self, message: str) -> None:
        """Show that this view has failed."""
        for part in (self.header, self.score, self.facts):
            part.failed = sayable(message)

    def _remember(self, entry: Entry) -> None:
        match entry.event:
            case RunStarted() as started:
                self._run = RunFacts.of(started)
            case RunResumed() as resumed:
                self._run = self._run.after(resumed)
            case ArtifactMade(artifact, components):
                self._texts[artifact] = components
            case Committed(version=0, scores=scores) if scores:
                self.seed = sum(scores.values()) / len(scores)
            case Warned("runs", message):
                self._company = message
            case _:
                pass

    def _update(self, standing: Standing, points: Sequence[Point]) -> None:
        costs, diagnosis = self._costs.snapshot(), self._diagnosis.snapshot()
        if standing.best_artifact != self._best:
            self._best = standing.best_artifact
            self._best_texts = self._texts[self._best]
        self.state = _state(standing, self._growing)
        self.header.push(self._header(standing, costs, diagnosis))
        rows = [[getattr(point, name) for name in POINT] for point in points]
        self.score.push({name: _amount(standing, name) for name in AXES}, rows)
        self.facts.push(_facts(standing, costs, diagnosis, self._servers.snapshot()))

    def _header(self, now: Standing, costs: CostsSnapshot, diagnosis: DiagnosisSnapshot) -> dict[str, Any]:
        run = self._run
        stopped = f"Ended by {now.stop_kind}: {now.stop_reason}" if now.stop_kind else ""
        return {
            "seq": now.seq,
            "state": self.state,
            "stopped": stopped,
            "run": run.run,
            "created": run.created,
            "algorithm": run.algorithm,
            "task": run.task,
            "proposer": run.proposer,
            "company": "" if stopped else sayable(self._company),
            "clock": run.clock,
            "simulated": run.simulated,
            "elsewhere": self._elsewhere and self.state in ("running", "paused"),
            "at": round(now.at, 1),
            "best": now.best,
            "seed": self.seed,
            "best_artifact": now.best_artifact,
            "best_texts": [[name, text[:MOST_TEXT], len(text)] for name, text in self._best_texts.items()],
            "proposals": now.proposals,
            "accepted": now.accepted,
            "pace": round(costs.proposals, 2),
            "in_flight": now.in_flight,
            "depth": diagnosis.depth,
            "line": "" if stopped else diagnosis.line,
        }

    def _whole_text(self, _: Any, content: Any, buffers: Any) -> None:
        if isinstance(content, Mapping) and content.get("kind") == "whole text":
            whole = [[name, text, len(text)] for name, text in self._best_texts.items()]
            self.header.send({"kind": "whole text"}, [json.dumps(whole).encode()])


def _state(standing: Standing, growing: Callable[[], bool]) -> str:
    """The run's state in a word; ``"interrupted"`` when it has not ended and nobody writes it."""
    return "interrupted" if standing.status in ("running", "paused") and not growing() else standing.status


def _amount(standing: Standing, name: str) -> float:
    return round(standing.at, 3) if name == "at" else float(getattr(standing.spent, name))


def _early(now: Standing) -> dict[str, int]:
    """How partial results fared; {} when none ever went on."""
    names = ("provisional", "confirmed", "rolled_back", "proven", "saved", "saved_at_gates", "released")
    counts = {name: getattr(now, name) for name in names}
    return counts if any(counts.values()) else {}


def _facts(now: Standing, costs: CostsSnapshot, diagnosis: DiagnosisSnapshot, servers: Sequence[ServerRow]) -> dict[str, Any]:
    spent, reserved = {**now.spent.as_dict(), "seconds": round(now.at, 1)}, now.reserved.as_dict()
    budget = [
        [name, limit, spent.get(name, 0), reserved.get(name, 0), round(costs.eta[name], 1) if name in costs.eta else None]
        for name, limit in now.budget.items()
    ]
    return {
        "over": now.status == "stopped",
        "budget": budget,
        "slots": [[x.stage, x.slots, x.busy_now, x.waiting_now, round(100 * x.share)] for x in diagnosis.loads],
        "costs": [[c.stage, c.role, c.calls, c.failed, c.tokens, c.dollars] for c in costs.costs],
        "servers": [
            [s.endpoint, round(s.at, 1), s.running, s.waiting, s.kv_cache, s.tokens_per_s, s.prefix_hits] for s in servers
        ],
        "failures": dict(costs.failures),
        "early": _early(now),
        "outcomes": [[kind, count] for kind, count in now.outcomes.items() if count],
        "lately": round(costs.proposals_lately, 2),
        "accepted_lately": round(costs.accepted_lately, 2),
    }
