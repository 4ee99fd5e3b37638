"""`gepa_result`: a run as a ``GEPAResult`` of gepa 0.1.4, for notebooks and scripts that read one.

Owns the numbering of the pool's artifacts from 0 and the counting of metric calls at each commit. One rule a change must keep: only
what is final is in it, no provisional artifact and nothing that was rolled back.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from flashevolve_lab.core import Entry, Member, RunState
from flashevolve_lab.core.events import Committed, Confirmed, SampleFailed, SampleScored
from flashevolve_lab.errors import SetupError

SCHEMA = 2
"""The version of gepa's own serialisation."""


@dataclass(frozen=True)
class Result:
    """The fields of ``gepa.core.result.GEPAResult``, where gepa is not installed. Indices are those of ``candidates``.

    Attributes:
        candidates: Component name → text, the seed first.
        parents: Of each candidate the indices of its parents; ``[None]`` for the seed.
        val_aggregate_scores: Mean validation score of each.
        val_subscores: Validation example → score, of each.
        per_val_instance_best_candidates: Validation example → all that have its highest score.
        discovery_eval_counts: Metric calls before each, its own validation not counted.
        best_outputs_valset: Validation example → (candidate, output as text) of those that have its highest score.
        total_metric_calls, num_full_val_evals: Of the whole run; validations that ended in a commit.
        run_dir: The run's file. seed: the run's.
    """

    candidates: list[dict[str, str]]
    parents: list[list[int | None]]
    val_aggregate_scores: list[float]
    val_subscores: list[dict[int, float]]
    per_val_instance_best_candidates: dict[int, set[int]]
    discovery_eval_counts: list[int]
    val_aggregate_subscores: None = None
    per_objective_best_candidates: None = None
    objective_pareto_front: None = None
    best_outputs_valset: dict[int, list[tuple[int, str]]] | None = None
    total_metric_calls: int | None = None
    num_full_val_evals: int | None = None
    run_dir: str | None = None
    seed: int | None = None
    _str_candidate_key: str | None = field(default=None, repr=False)

    @property
    def best_idx(self) -> int:
        """The candidate with the highest mean, the earliest of equals."""
        scores = self.val_aggregate_scores
        return max(range(len(scores)), key=lambda i: scores[i])

    @property
    def best_candidate(self) -> dict[str, str]:
        """Its texts."""
        return self.candidates[self.best_idx]

    @property
    def num_candidates(self) -> int:
        """How many there are, the seed included."""
        return len(self.candidates)

    @property
    def num_val_instances(self) -> int:
        """Validation examples that somebody was scored on."""
        return len(self.per_val_instance_best_candidates)

    def to_dict(self) -> dict[str, Any]:
        """As ``GEPAResult.to_dict`` writes it; ``GEPAResult.from_dict`` reads it."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        best = {example: sorted(holders) for example, holders in self.per_val_instance_best_candidates.items()}
        return {
            **plain,
            "per_val_instance_best_candidates": best,
            "best_idx": self.best_idx,
            "validation_schema_version": SCHEMA,
        }


def gepa_result(state: RunState, entries: Sequence[Entry], file: str) -> Any:
    """A ``gepa.GEPAResult``, or a `Result` of the same fields where gepa is not installed.

    Raises:
        SetupError: the seed is not scored yet.
    """
    members = [member for member in state.pool.order if not member.rival]
    if not members:
        raise SetupError("gepa_result: the seed is not scored yet; try again when run.best is there")
    index = {member.id: i for i, member in enumerate(members)}
    counts = _calls_before(entries)
    facts: dict[str, Any] = {
        "candidates": [dict(state.artifacts[member.id].components) for member in members],
        "parents": [_parents(state, index, member.id) for member in members],
        "val_aggregate_scores": [member.mean for member in members],
        "val_subscores": [dict(member.scores) for member in members],
        "per_val_instance_best_candidates": _holders(members),
        "discovery_eval_counts": [counts.get(member.id, 0) for member in members],
        "best_outputs_valset": _best_outputs(members, entries),
        "total_metric_calls": state.spent.metric_calls,
        "num_full_val_evals": len(members),
        "run_dir": file,
        "seed": state.started.seed if state.started else None,
    }
    if importlib.util.find_spec("gepa") is None:
        return Result(**facts)
    from gepa.core.result import GEPAResult

    return GEPAResult(**facts)


def _parents(state: RunState, index: dict[str, int], artifact: str) -> list[int | None]:
    """The nearest ancestors that are in the pool: of a patched text also those of the text it rewrote."""
    found: list[int | None] = []
    seen = {artifact}
    queue = list(state.artifacts[artifact].parents)
    while queue:
        parent = queue.pop(0)
        if parent in seen:
            continue
        seen.add(parent)
        if parent in index:
            found.append(index[parent])
        else:
            queue += state.artifacts[parent].parents
    return found or [None]


def _holders(members: Sequence[Member]) -> dict[int, set[int]]:
    """Of each validation example all that have its highest score (gepa prunes dominated ones only when it draws)."""
    best: dict[int, float] = {}
    holders: dict[int, set[int]] = {}
    for i, member in enumerate(members):
        for example, score in member.scores.items():
            if example not in best or score > best[example]:
                best[example], holders[example] = score, {i}
            elif score == best[example]:
                holders[example].add(i)
    return dict(sorted(holders.items()))


def _calls_before(entries: Sequence[Entry]) -> dict[str, int]:
    """Artifact → metric calls before its commit, without those of its own validation."""
    calls, own, before = 0, dict[str, int](), dict[str, int]()
    for entry in entries:
        match entry.event:
            case SampleScored() | SampleFailed():
                calls += 1
                if entry.event.split == "val":
                    own[entry.event.artifact] = own.get(entry.event.artifact, 0) + 1
            case Committed() | Confirmed():
                before[entry.event.artifact] = calls - own.get(entry.event.artifact, 0)
    return before


def _best_outputs(members: Sequence[Member], entries: Sequence[Entry]) -> dict[int, list[tuple[int, str]]]:
    """Of each validation example the outputs of those that have its highest score."""
    said = {
        (entry.event.artifact, entry.event.example): entry.event.output
        for entry in entries
        if isinstance(entry.event, SampleScored) and entry.event.split == "val"
    }
    return {
        example: [(i, said.get((members[i].id, example), "")) for i in sorted(holders)]
        for example, holders in _holders(members).items()
    }
