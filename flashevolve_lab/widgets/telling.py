"""A dossier as plain JSON for the inspector's front end.

Owns the shape that `inspector.js` reads. Owns no fact and no text of its own. One rule a change must keep: only JSON values
(numbers that JSON knows: NaN and infinities become None), and nothing is cut here; the front end folds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from flashevolve_lab.core import Sample
from flashevolve_lab.views import Compared, Dossier, Relative, Text, Trial

_PLAIN = ("id", "item", "artifact", "job", "kind", "base", "version", "place", "stage", "in_flight", "outcome", "reason", "origin", "component", "recorded_at")  # fmt: skip


def facts_of(dossier: Dossier) -> dict[str, Any]:
    """What changes as the run goes on: where the item is, verdicts, scores, relatives."""
    return {
        **{name: getattr(dossier, name) for name in _PLAIN},
        **_standing("own", dossier.own),
        **_standing("best", dossier.best),
        "spent": {name: number(value) for name, value in dossier.spent.as_dict().items()},
        "verdicts": [_fields(row) for row in dossier.verdicts],
        "gates": [_fields(gate) for gate in dossier.gates],
        "work": [{**_fields(work), "raw": ""} for work in dossier.work],
        "scores": scores_of(dossier.scores),
        "completion": [{**_fields(row), "saved": row.saved} for row in dossier.completion],
        "gone": dossier.gone,
        "ancestors": _relatives(dossier.ancestors),
        "descendants": _relatives(dossier.descendants),
    }


def evidence_of(dossier: Dossier, example: Callable[[int], str]) -> dict[str, Any]:
    """What the item was made from: samples of the minibatch, what was asked and replied, texts that could not be used.

    ``example``: the text of a train example, for logs that do not have it.
    """
    return {
        "trials": [_trial(trial, trial.shown or example(trial.example)) for trial in dossier.trials],
        "spoken": [_fields(spoken) for spoken in dossier.spoken],
        "notes": list(dossier.notes),
        "raw": [{"job": work.job, "stage": work.stage, "message": work.message, "raw": work.raw} for work in dossier.work if work.raw],
    }


def text_of(text: Text) -> dict[str, Any]:
    """A column."""
    return {**_fields(text), "components": dict(text.components)}


def scores_of(scores: Sequence[Compared]) -> dict[str, list[Any]]:
    """Columns: example, score, parent, current, best."""
    return {f.name: [number(getattr(row, f.name)) for row in scores] for f in fields(Compared)}


def number(value: Any) -> Any:
    """A number JSON knows."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fields(value: Any) -> dict[str, Any]:
    return {f.name: number(getattr(value, f.name)) for f in fields(value)}


def _standing(name: str, text: Text | None) -> dict[str, Any]:
    """Where a text stands in the pool, under its name."""
    if text is None:
        return {name: None}
    names = ("id", "version", "mean", "coverage", "provisional", "rolled_back")
    return {name: {part: number(getattr(text, part)) for part in names}}


def _trial(trial: Trial, shown: str) -> dict[str, Any]:
    parent, child = _sample(trial.parent, trial.parent_trouble), _sample(trial.child, trial.child_trouble)
    current = _sample(trial.current, "")
    return {"example": trial.example, "input": shown, "parent": parent, "child": child, "current": current, "late": trial.late}


def _sample(sample: Sample | None, trouble: str) -> dict[str, Any] | None:
    if sample is None:
        return {"trouble": trouble} if trouble else None
    return {"score": number(sample.score), "output": sample.output, "feedback": sample.feedback, "trouble": trouble}


def _relatives(relatives: Sequence[Relative]) -> list[dict[str, Any]]:
    return [_fields(relative) for relative in relatives]
