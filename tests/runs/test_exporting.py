"""A run as a GEPAResult: the same fields, the same meaning, readable by gepa itself."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import gepa
import pytest
from gepa.core.adapter import EvaluationBatch
from gepa.core.result import GEPAResult

import flashevolve_lab as lab
from flashevolve_lab.core import Artifact, RunState
from flashevolve_lab.runs.exporting import Result, _parents

DATA = [{"word": f"w{i}"} for i in range(6)]
SEED = {"prompt": "start"}


class Words:
    """Deterministic: an example is solved when its word is in the text; it writes down what it lacks."""

    def evaluate(self, batch: Any, candidate: Any, capture_traces: bool = False) -> EvaluationBatch[Any, Any]:
        scores = [float(example["word"] in candidate["prompt"]) for example in batch]
        words = [example["word"] for example in batch]
        return EvaluationBatch(outputs=words, scores=scores, trajectories=list(zip(words, scores, strict=True)) if capture_traces else None)

    def make_reflective_dataset(self, candidate: Any, eval_batch: Any, components_to_update: Any) -> Any:
        return {"prompt": [{"Feedback": word} for word, score in eval_batch.trajectories if score < 1]}

    def propose_new_texts(self, candidate: Any, reflective_dataset: Any, components_to_update: Any) -> dict[str, str]:
        lacking = [record["Feedback"] for record in reflective_dataset["prompt"]]
        return {"prompt": " ".join([candidate["prompt"], *lacking])}


ARGUMENTS: dict[str, Any] = {"seed_candidate": SEED, "trainset": DATA, "valset": DATA, "max_metric_calls": 120}


def run_of(folder: Path, **options: Any) -> lab.Run:
    run = lab.start(**lab.GEPA.from_gepa(adapter=Words(), **ARGUMENTS), clock=lab.Virtual(), folder=folder, **options)
    run.wait(60)
    return run


class Quiet:
    def log(self, message: str) -> None: ...


def test_it_is_a_result_of_gepa_and_says_what_the_run_says(tmp_path: Path) -> None:
    run = run_of(tmp_path, schedule=lab.Pipelined(4))
    result = run.gepa_result()
    assert isinstance(result, GEPAResult)
    assert run.best is not None and result.best_candidate == dict(run.best.components)
    assert result.val_aggregate_scores[result.best_idx] == run.best.score
    assert result.candidates[0] == SEED and result.parents[0] == [None] and result.num_candidates == 1 + run.status.accepted
    assert result.total_metric_calls == run.status.spent["metric_calls"]
    assert result.seed == 0 and result.run_dir == str(run.path)


def test_its_parts_agree_with_each_other(tmp_path: Path) -> None:
    result = run_of(tmp_path, schedule=lab.Pipelined(4)).gepa_result()
    n = result.num_candidates
    assert n > 2 and n == len(result.parents) == len(result.val_subscores) == len(result.discovery_eval_counts)
    for i, (parents, scores) in enumerate(zip(result.parents, result.val_subscores, strict=True)):
        assert i == 0 or all(parent is not None and parent < i for parent in parents), "a parent was there before"
        assert result.val_aggregate_scores[i] == pytest.approx(sum(scores.values()) / len(scores))
    for example, holders in result.per_val_instance_best_candidates.items():
        top = max(scores[example] for scores in result.val_subscores)
        assert holders == {i for i, scores in enumerate(result.val_subscores) if scores[example] == top}
    counts = result.discovery_eval_counts
    assert counts[0] == 0 and all(6 <= count <= result.total_metric_calls - 6 for count in counts[1:])
    assert result.best_outputs_valset[3] == [(i, "w3") for i in sorted(result.per_val_instance_best_candidates[3])]


def test_gepas_own_result_of_the_same_world_has_the_same_shape(tmp_path: Path) -> None:
    theirs = gepa.optimize(adapter=Words(), logger=Quiet(), **ARGUMENTS).to_dict()  # type: ignore[arg-type]
    ours = run_of(tmp_path, schedule=lab.Sequential()).gepa_result().to_dict()
    assert ours.keys() == theirs.keys()
    skip = {"val_aggregate_subscores", "run_dir"}
    for name in ours.keys() - skip:
        assert type(ours[name]) is type(theirs[name]), name
        if isinstance(ours[name], list):
            assert type(ours[name][0]) is type(theirs[name][0]), name
    for name in ("candidates", "parents", "val_subscores", "discovery_eval_counts"):
        assert ours[name][0] == theirs[name][0], f"the seed's {name}"
    assert ours["val_aggregate_scores"][ours["best_idx"]] == theirs["val_aggregate_scores"][theirs["best_idx"]] == 1.0


def test_gepa_reads_what_it_writes_also_through_json(tmp_path: Path) -> None:
    result = run_of(tmp_path).gepa_result()
    assert GEPAResult.from_dict(result.to_dict()) == result
    again = GEPAResult.from_dict(json.loads(json.dumps(result.to_dict())))
    assert again.best_candidate == result.best_candidate and again.parents == result.parents
    assert "digraph" in result.candidate_tree_dot()


def test_without_gepa_it_is_an_object_of_the_same_fields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path)
    real = run.gepa_result()
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "gepa" else find(name, *more))
    plain = run.gepa_result()
    assert isinstance(plain, Result)
    assert [f.name for f in fields(Result)] == [f.name for f in fields(GEPAResult)]
    assert plain.to_dict().keys() == real.to_dict().keys()
    assert GEPAResult.from_dict(plain.to_dict()) == real
    assert (plain.best_idx, plain.best_candidate) == (real.best_idx, real.best_candidate)
    assert (plain.num_candidates, plain.num_val_instances) == (real.num_candidates, real.num_val_instances)


def test_parents_that_never_joined_stand_aside_for_their_own() -> None:
    state = RunState()
    line = {"a0": (), "a1": ("a0",), "a2": ("a0",), "a3": ("a1", "a2"), "a4": ("a3", "a1")}
    for id, parents in line.items():
        state.artifacts[id] = Artifact(id, SEED, id, parents)
    joined = {"a0": 0, "a1": 1, "a4": 2}  # a3 was patched from a2, and neither passed
    assert _parents(state, joined, "a4") == [1, 0]
    assert _parents(state, joined, "a0") == [None]


def test_a_run_without_a_scored_seed_has_no_result(tmp_path: Path) -> None:
    start = lab.GEPA.from_gepa(adapter=Words(), **ARGUMENTS)
    run = lab.start(**start, clock=lab.Virtual(), folder=tmp_path, paused=True)
    with pytest.raises(lab.SetupError, match="the seed is not scored yet"):
        run.gepa_result()
    run.stop().wait(30)


def test_it_is_read_from_a_file_too(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    assert lab.open(run.path).gepa_result() == run.gepa_result()
