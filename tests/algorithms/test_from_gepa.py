"""`GEPA.from_gepa`: every argument of gepa.optimize is honoured, or refused by its name."""

from __future__ import annotations

import importlib.util
import inspect
import time
from pathlib import Path
from typing import Any

import gepa
import pytest
from gepa import utils as stoppers
from gepa.core.adapter import EvaluationBatch
from gepa.core.data_loader import ListDataLoader
from gepa.strategies.acceptance import ImprovementOrEqualAcceptance, StrictImprovementAcceptance
from gepa.strategies.batch_sampler import EpochShuffledBatchSampler
from gepa.strategies.candidate_selector import ParetoCandidateSelector
from gepa.strategies.component_selector import RoundRobinReflectionComponentSelector
from gepa.strategies.eval_policy import FullEvaluationPolicy
from gepa.strategies.proposal_sampling import IndependentSampling, PxNSampling, SameParentSampling, SingleMutationSampling
from gepa.strategies.proposal_selection import AllImprovements, BestImprovement

import flashevolve_lab as lab
from flashevolve_lab.core import events as ev

DATA = [{"input": f"q{i}", "additional_context": {}, "answer": f"w{i}"} for i in range(8)]
SEED = {"prompt": "start"}


class Lengths:
    """An adapter without proposals: the longer the text, the better."""

    def evaluate(self, batch: Any, candidate: Any, capture_traces: bool = False) -> EvaluationBatch[Any, Any]:
        scores = [min(1.0, len("".join(candidate.values())) / 100)] * len(batch)
        return EvaluationBatch(outputs=list(scores), scores=scores, trajectories=list(scores) if capture_traces else None)

    def make_reflective_dataset(self, candidate: Any, eval_batch: Any, components_to_update: Any) -> Any:
        return {name: [{"Inputs": "x", "Generated Outputs": "y", "Feedback": "z"}] for name in components_to_update}


class Proposes(Lengths):
    def propose_new_texts(self, candidate: Any, reflective_dataset: Any, components_to_update: Any) -> dict[str, str]:
        return {name: candidate[name] + " and more" for name in components_to_update}


def made(**arguments: Any) -> dict[str, Any]:
    given = {"seed_candidate": SEED, "trainset": DATA, "adapter": Proposes(), "max_metric_calls": 300}
    return lab.GEPA.from_gepa(**{**given, **arguments})


def reflecting(**arguments: Any) -> dict[str, Any]:
    return made(adapter=Lengths(), reflection_lm=lab.Simulated(), **arguments)


def test_it_takes_exactly_the_arguments_of_gepa_optimize_with_their_defaults() -> None:
    theirs, ours = (inspect.signature(f).parameters for f in (gepa.optimize, lab.GEPA.from_gepa))
    assert set(ours) - set(theirs) == {"one_at_a_time"}
    assert {name: p.default for name, p in theirs.items()} == {name: ours[name].default for name in theirs}


def test_one_line_changes_and_the_run_evolves(tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"seed_candidate": SEED, "trainset": DATA, "adapter": Proposes(), "max_metric_calls": 200}
    run = lab.start(**lab.GEPA.from_gepa(**arguments), clock=lab.Virtual(), folder=tmp_path)
    run.wait(60)
    assert run.best is not None and run.best.text.startswith("start and more") and run.best.score > 0.05
    assert run.status.spent["metric_calls"] <= 200
    result = run.gepa_result()
    assert result.best_candidate == dict(run.best.components)


def test_a_function_as_task_and_reflection_model_is_limited_and_recorded(tmp_path: Path) -> None:
    def answers(messages: list[dict[str, str]]) -> str:
        return messages[0]["content"]

    def reflects(messages: list[dict[str, str]]) -> str:
        wanted = [line.split("'")[1] for line in messages[0]["content"].splitlines() if "correct answer is '" in line]
        return "```\n" + " ".join(["start", *wanted, str(time.monotonic_ns())]) + "\n```"

    start = made(adapter=None, task_lm=answers, reflection_lm=reflects, max_metric_calls=120)
    run = lab.start(**start, folder=tmp_path)
    run.wait(60)
    roles = [entry.event.role for entry in run.entries if isinstance(entry.event, ev.CallStarted)]
    assert roles.count("task") == run.status.spent["metric_calls"] and "reflection" in roles
    assert run.best is not None and run.best.score > run.status.seed_score == 0.0  # type: ignore[operator]


def test_what_is_honoured() -> None:
    algorithm = made(reflection_minibatch_size=5, skip_perfect_score=False, cache_evaluation=True)["algorithm"]
    assert (algorithm.minibatch, algorithm.skip_perfect, algorithm.cache) == (5, False, True)
    plain = made()
    assert (plain["algorithm"].minibatch, plain["algorithm"].cache, plain["seed"]) == (3, False, 0)
    assert "schedule" not in plain and "acceptance" not in plain and "folder" not in plain
    assert made(seed=7)["seed"] == 7
    assert made(perfect_score=10.0)["task"].perfect == 10.0
    assert len(made(valset=DATA[:2])["task"].val) == 2 and len(plain["task"].val) == 8
    assert len(made(trainset=ListDataLoader(DATA))["task"].train) == 8
    assert made(one_at_a_time=True)["task"].parallel == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"candidate_selection_strategy": ParetoCandidateSelector(None)},
        {"val_evaluation_policy": "full_eval"},
        {"val_evaluation_policy": FullEvaluationPolicy()},
        {"selection_strategy": AllImprovements()},
        {"acceptance_criterion": StrictImprovementAcceptance()},
        {"module_selector": RoundRobinReflectionComponentSelector()},
        {"module_selector": "all"},  # there is one component
        {"track_best_outputs": False},
        {"raise_on_exception": False},
        {"max_merge_invocations": 3},  # without use_merge it says nothing, in gepa too
    ],
    ids=str,
)
def test_what_means_what_the_lab_does_changes_nothing(arguments: dict[str, Any]) -> None:
    plain, given = made(), made(**arguments)
    assert given.keys() == plain.keys() and given["algorithm"].describe() == plain["algorithm"].describe()


def test_the_batch_settings_become_schedules() -> None:
    assert made(sampling_strategy=PxNSampling(p=4, n=2))["schedule"] == lab.Batched(4, 2)
    assert made(sampling_strategy=SameParentSampling(3))["schedule"] == lab.Batched(1, 3)
    assert made(sampling_strategy=IndependentSampling(5))["schedule"] == lab.Batched(5, 1)
    assert made(sampling_strategy=SingleMutationSampling())["schedule"] == lab.Sequential()
    assert made(batch_sampler=EpochShuffledBatchSampler(4))["algorithm"].minibatch == 4


def test_ties_pass_where_gepa_lets_them_pass() -> None:
    assert made(acceptance_criterion="improvement_or_equal")["acceptance"] == lab.Tolerant(0.0)
    assert made(acceptance_criterion=ImprovementOrEqualAcceptance())["acceptance"] == lab.Tolerant(0.0)


def test_merge_is_taken_over_where_there_are_components_to_merge() -> None:
    two = {"a": "x", "b": "y"}
    assert made(seed_candidate=two, use_merge=True, max_merge_invocations=2)["algorithm"].merge == lab.Merge(most=2)
    assert made(seed_candidate=two)["algorithm"].merge is None
    with pytest.warns(UserWarning, match="use_merge: a merge of artifacts of one component makes nothing new"):
        assert made(use_merge=True)["algorithm"].merge is None


def test_stop_conditions_become_a_budget_and_the_smallest_counts() -> None:
    both = [stoppers.MaxMetricCallsStopper(90), stoppers.TimeoutStopCondition(60.0)]
    assert made(stop_callbacks=both)["budget"] == {"metric_calls": 90, "seconds": 60.0}
    either = stoppers.CompositeStopper(stoppers.MaxCandidateProposalsStopper(12), stoppers.MaxMetricCallsStopper(500))
    assert made(max_metric_calls=None, stop_callbacks=either)["budget"] == {"proposals": 12, "metric_calls": 500}
    assert made()["budget"] == {"metric_calls": 300}


def test_the_run_directory_is_the_folder_of_the_runs_file(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="run_dir: the run's file is written there"):
        assert made(run_dir=str(tmp_path))["folder"] == str(tmp_path)


@pytest.mark.parametrize("name", ["use_wandb", "use_mlflow", "display_progress_bar", "use_cloudpickle", "logger"])
def test_what_only_concerns_gepas_own_display_is_warned_about(name: str) -> None:
    with pytest.warns(UserWarning, match=f"not as in gepa.optimize: {name}: "):
        made(**{name: True})


REFUSED: dict[str, Any] = {
    "candidate_selection_strategy": "epsilon_greedy",
    "frontier_type": "objective",
    "val_evaluation_policy": object(),
    "selection_strategy": BestImprovement(),
    "reflection_strategy": object(),
    "acceptance_criterion": object(),
    "sampling_strategy": object(),
    "batch_sampler": object(),
    "callbacks": [object()],
    "max_reflection_cost": 1.0,
    "perfect_score": None,
    "evaluator": lambda data, response: None,
    "task_lm": "openai/gpt-4.1-mini",
    "reflection_lm_kwargs": {"temperature": 1.0},
    "reflection_prompt_template": "<curr_param> <side_info>",
    "stop_callbacks": stoppers.NoImprovementStopper(3),
    "max_metric_calls": None,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_its_name(name: str) -> None:
    with pytest.raises(lab.SetupError, match=f"^{name}"):
        made(**{name: REFUSED[name]})


def test_components_all_at_once_are_refused() -> None:
    with pytest.raises(lab.SetupError, match="^module_selector='all': in the lab a proposal changes one component"):
        made(seed_candidate={"a": "x", "b": "y"}, module_selector="all")


def test_a_model_is_asked_for_where_one_is_needed() -> None:
    with pytest.raises(lab.SetupError, match="^reflection_lm: the adapter has no propose_new_texts"):
        made(adapter=Lengths())
    with pytest.raises(lab.SetupError, match="^task_lm: without an adapter"):
        made(adapter=None)
    with pytest.raises(lab.SetupError, match="^reflection_lm: expected a model of the lab"):
        made(adapter=Lengths(), reflection_lm=3)
    with pytest.raises(lab.SetupError, match="give only one of them"):
        made(custom_candidate_proposer=lambda *a: {})


def test_models_of_the_lab_are_taken_as_they_are() -> None:
    task, reflection = lab.Simulated(), lab.Simulated()
    given = made(adapter=None, task_lm=task, reflection_lm=reflection)
    assert given["llm"] is task and given["reflection_llm"] is reflection
    assert made(task_lm=task)["llm"] is task, "beside an adapter: what lab.ask reaches"
    assert made()["llm"].describe()["kind"] == made()["reflection_llm"].describe()["kind"] == "NoModel"


def test_a_custom_proposer_takes_the_place_of_the_prompt() -> None:
    def mine(candidate: Any, dataset: Any, components: Any) -> dict[str, str]:
        return {}

    given = made(adapter=Lengths(), custom_candidate_proposer=mine)
    assert given["algorithm"].proposer.describe()["proposes"].endswith("mine")


def test_a_prompt_template_of_gepas_is_translated() -> None:
    template = "Now:\n```\n<curr_param>\n```\nSeen:\n```\n<side_info>\n```\nWrite it within ``` blocks."
    prompt = reflecting(reflection_prompt_template=template)["algorithm"].proposer.reflect.prompt
    assert prompt == "Now:\n{current}\nSeen:\n{records}\nWrite it within ``` blocks."
    by_name = reflecting(reflection_prompt_template={"prompt": template})["algorithm"].proposer
    assert by_name.prompts["prompt"].prompt == prompt
    for bad, message in (("<curr_param>", "lacks <side_info>"), (template + "{current}", r"contains \{current\}")):
        with pytest.raises(lab.SetupError, match=f"^reflection_prompt_template: it {message}"):
            reflecting(reflection_prompt_template=bad)


def test_a_litellm_name_becomes_a_model_whose_calls_are_recorded_and_needs_litellm(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"litellm": importlib.util.find_spec("json")}
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: there[name] if name in there else find(name, *more))
    given = made(adapter=Lengths(), reflection_lm="openai/some-model", reflection_lm_kwargs={"temperature": 0.5})
    assert given["reflection_llm"].describe() == {"kind": "FunctionModel", "model": "openai/some-model", "tokens": "estimated"}
    there["litellm"] = None
    with pytest.raises(lab.SetupError, match="^reflection_lm='openai/some-model': a name needs litellm"):
        made(adapter=Lengths(), reflection_lm="openai/some-model")
    there["gepa"] = None
    with pytest.raises(lab.SetupError, match=r"from_gepa needs gepa: pip install 'flashevolve-lab\[gepa\]'"):
        made()
