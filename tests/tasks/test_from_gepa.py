"""Any GEPAAdapter runs unchanged: its evaluation, its reflective dataset, its proposals, its failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from gepa.adapters.default_adapter.default_adapter import DefaultAdapter, EvaluationResult
from gepa.core.adapter import EvaluationBatch
from gepa.core.data_loader import ListDataLoader

import flashevolve_lab as lab
from flashevolve_lab.algorithms import Trouble
from flashevolve_lab.core import events as ev
from flashevolve_lab.core.draws import draw
from flashevolve_lab.tasks import AdapterProgram

WORDS = [{"word": f"w{i}"} for i in range(6)]
SEED = {"prompt": "start"}


@dataclass
class Words:
    """An adapter of gepa's: an example is solved when its word is in the prompt. Its trajectory is an object only it can read."""

    calls: list[tuple[str, bool]] = field(default_factory=list)
    datasets: list[Any] = field(default_factory=list)
    before: Callable[[dict[str, str], dict[str, str]], None] = lambda example, candidate: None
    after: Callable[[EvaluationBatch[Any, Any]], None] = lambda batch: None

    def evaluate(
        self, batch: list[Any], candidate: dict[str, str], capture_traces: bool = False
    ) -> EvaluationBatch[Any, Any]:
        for example in batch:
            self.calls.append((example["word"], capture_traces))
            self.before(example, candidate)
        scores = [float(example["word"] in candidate["prompt"]) for example in batch]
        seen = [(example["word"], score) for example, score in zip(batch, scores, strict=True)]
        made = EvaluationBatch(
            outputs=[{"said": f"{word} {score:g}"} for word, score in seen],
            scores=scores,
            trajectories=seen if capture_traces else None,
        )
        self.after(made)
        return made

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: EvaluationBatch[Any, Any], components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        (component,) = components_to_update
        trajectories = eval_batch.trajectories
        assert trajectories is not None and len(trajectories) == len(eval_batch.outputs) == len(eval_batch.scores)
        records = [{"Inputs": {"given": word}, "Generated Outputs": "…", "Feedback": f"it lacks {word}"} for word, s in trajectories if s < 1]
        self.datasets.append(records)
        return {component: records}


@dataclass
class Writes(Words):
    """Likewise, and it proposes by itself: it writes down the words it was told are lacking."""

    def propose_new_texts(
        self, candidate: dict[str, str], reflective_dataset: Mapping[str, Any], components_to_update: list[str]
    ) -> dict[str, str]:
        (component,) = components_to_update
        lacking = [record["Feedback"].split("\n")[0].removeprefix("it lacks ") for record in reflective_dataset[component]]
        return {component: " ".join([candidate[component], *lacking])}


class Echo:
    """A model that answers with a fenced block of all that "lacks" in its prompt; runs on virtual time."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    async def complete(self, request: lab.Request) -> lab.Reply:
        prompt = request.messages[-1]["content"]
        self.prompts.append(prompt)
        words = {line.removeprefix("Feedback: it lacks ") for line in prompt.splitlines() if line.startswith("Feedback: it lacks ")}
        current = next((line for line in prompt.splitlines() if line.startswith("start")), "")
        return lab.Reply("```\n" + " ".join([current, *sorted(words)]) + "\n```")

    async def check(self) -> None: ...

    def describe(self) -> dict[str, Any]:
        return {"kind": "Echo", "in_process": True}


def task_of(adapter: Any, **options: Any) -> lab.Task:
    return lab.task_from_adapter(adapter, **{"trainset": WORDS, "valset": WORDS, "seed_candidate": SEED, **options})


def run_of(task: lab.Task, folder: Path, llm: Any = None, **options: Any) -> lab.Run:
    proposer = lab.AdapterProposer(task)
    given = {"budget": lab.Budget(metric_calls=150), "clock": lab.Virtual(), "schedule": lab.Pipelined(4), "folder": folder}
    run = lab.start(task, lab.GEPA(proposer=proposer), llm=llm or lab.NoModel(), **{**given, **options})
    run.wait(60)
    return run


def events_of(run: lab.Run, kind: type[Any]) -> list[Any]:
    return [entry.event for entry in run.entries if isinstance(entry.event, kind)]


def notes_of(run: lab.Run) -> list[str]:
    return [event.result["note"] for event in events_of(run, ev.JobFinished) if event.result.get("note")]


# --- what runs ----------------------------------------------------------------------------------------------------------------


def test_an_adapter_that_proposes_by_itself_evolves_without_any_model(tmp_path: Path) -> None:
    adapter = Writes()
    run = run_of(task_of(adapter), tmp_path)
    assert run.best is not None and run.best.score == 1.0
    assert all(word["word"] in run.best.text for word in WORDS)
    assert not events_of(run, ev.CallStarted)


def test_every_evaluation_is_one_metric_call_and_traces_are_captured_on_the_train_set_only(tmp_path: Path) -> None:
    adapter = Writes()
    run = run_of(task_of(adapter), tmp_path)
    assert len(adapter.calls) == run.status.spent["metric_calls"] <= 150
    on_val = sum(1 for event in events_of(run, ev.SampleScored) if event.split == "val")
    assert sum(1 for _, traced in adapter.calls if not traced) == on_val


def test_without_proposals_of_its_own_its_reflective_dataset_is_the_evidence_of_our_prompt(tmp_path: Path) -> None:
    adapter, model = Words(), Echo()
    run = run_of(task_of(adapter), tmp_path, model)
    assert run.best is not None and run.best.score == 1.0
    assert adapter.datasets
    assert "Input:\ngiven: w" in model.prompts[0] and "Feedback: it lacks w" in model.prompts[0]
    assert "Score" not in model.prompts[0], "this dataset has no scores"
    assert not notes_of(run), "no trajectory was lost"


def test_gepas_default_adapter_calls_the_models_of_the_run_through_ask(tmp_path: Path) -> None:
    land = lab.IndependentRules(n_rules=6, p_improve=0.9)
    simulated = lab.simulated_task(land, 12, 6)

    def judged(data: Any, response: str) -> EvaluationResult:
        value, feedback = simulated.metric(data, response)
        return EvaluationResult(value, feedback)

    task = lab.task_from_adapter(
        DefaultAdapter(model=lab.ask, evaluator=judged),
        trainset=simulated.train,
        valset=simulated.val,
        seed_candidate=simulated.components,
    )
    run = run_of(task, tmp_path, lab.Simulated(land), budget=lab.Budget(metric_calls=200))
    calls = [call for call in events_of(run, ev.CallStarted) if call.role == "task"]
    assert len(calls) == run.status.spent["metric_calls"], "each evaluation asked the task model once, and it is in the log"
    assert run.best is not None and run.best.score > 0
    feedback = {event.feedback for event in events_of(run, ev.SampleScored) if event.split == "train"}
    assert any("required rule" in said for said in feedback), "the trajectory's feedback is in the log"


def test_ask_refuses_outside_a_run() -> None:
    with pytest.raises(lab.SetupError, match="works inside an adapter's evaluate"):
        lab.ask("hello")


def test_a_data_loader_is_read_once(tmp_path: Path) -> None:
    task = task_of(Writes(), trainset=ListDataLoader(WORDS), valset=ListDataLoader(WORDS[:2]))
    assert (len(task.train), len(task.val)) == (6, 2)


def test_without_a_valset_the_trainset_is_used_for_both() -> None:
    assert len(task_of(Writes(), valset=None).val) == 6


# --- threads ------------------------------------------------------------------------------------------------------------------


def test_evaluations_overlap_unless_the_adapter_says_one_at_a_time(tmp_path: Path) -> None:
    two = threading.Barrier(2, timeout=10)
    met: list[int] = []

    def meet(example: Any, candidate: Any) -> None:
        if not met:
            met.append(two.wait())

    run = run_of(task_of(Writes(before=meet)), tmp_path, clock=lab.Wall())
    assert met and not events_of(run, ev.SampleFailed)


def test_one_at_a_time_nothing_of_the_adapter_overlaps(tmp_path: Path) -> None:
    inside, most = threading.Lock(), []

    class Alone(Writes):
        def propose_new_texts(self, *arguments: Any) -> dict[str, str]:
            assert inside.acquire(blocking=False), "a proposal overlaps"
            try:
                return super().propose_new_texts(*arguments)
            finally:
                inside.release()

    def enter(example: Any, candidate: Any) -> None:
        most.append(inside.acquire(blocking=False))
        threading.Event().wait(0.001)
        inside.release()

    run = run_of(task_of(Alone(before=enter), one_at_a_time=True), tmp_path, clock=lab.Wall())
    assert most and all(most)
    assert run.best is not None and run.best.score == 1.0 and not events_of(run, ev.JobFailed)


# --- failures -----------------------------------------------------------------------------------------------------------------


def test_an_exception_leaves_the_example_missing_and_never_scores_it_zero(tmp_path: Path) -> None:
    failed: list[str] = []

    def fail_once(example: Any, candidate: Any) -> None:
        if candidate["prompt"] != "start" and not failed:
            failed.append(example["word"])
            raise ConnectionError("the index is down")

    run = run_of(task_of(Writes(before=fail_once)), tmp_path)
    (lost,) = events_of(run, ev.SampleFailed)
    assert lost.kind == "metric" and "ConnectionError: the index is down" in lost.message
    assert run.best is not None and run.best.score == 1.0


def test_an_adapter_that_always_raises_ends_the_run_with_its_words(tmp_path: Path) -> None:
    def fail(example: Any, candidate: Any) -> None:
        raise RuntimeError("no such table")

    task = task_of(Writes(before=fail))
    run = lab.start(
        task, lab.GEPA(proposer=lab.AdapterProposer(task)), llm=lab.NoModel(), budget=lab.Budget(metric_calls=500),
        clock=lab.Virtual(), folder=tmp_path,
    )  # fmt: skip
    with pytest.raises(lab.RunError, match="no such table"):
        run.wait(60)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda batch: batch.scores.append(1.0), "was given 1 example and returned 2 scores"),
        (lambda batch: batch.outputs.clear(), "was given 1 example and returned 0 outputs"),
        (lambda batch: setattr(batch, "scores", None), "must return an EvaluationBatch with scores"),
        (lambda batch: batch.scores.__setitem__(0, float("nan")), "nan"),
    ],
)
def test_an_evaluation_of_the_wrong_shape_is_said_and_not_scored(tmp_path: Path, spoil: Any, message: str) -> None:
    task = task_of(Writes(after=spoil))
    run = lab.start(
        task, lab.GEPA(proposer=lab.AdapterProposer(task)), llm=lab.NoModel(), budget=lab.Budget(metric_calls=500),
        clock=lab.Virtual(), folder=tmp_path,
    )  # fmt: skip
    with pytest.raises(lab.RunError):
        run.wait(60)
    assert all(message in failed.message for failed in events_of(run, ev.SampleFailed))
    assert not events_of(run, ev.SampleScored)


def test_a_failing_reflective_dataset_fails_the_job_and_names_the_method(tmp_path: Path) -> None:
    class Broken(Writes):
        def make_reflective_dataset(self, *arguments: Any) -> Any:
            raise KeyError("trace")

    run = lab.start(
        task := task_of(Broken()), lab.GEPA(proposer=lab.AdapterProposer(task)), llm=lab.NoModel(),
        budget=lab.Budget(metric_calls=500), clock=lab.Virtual(), folder=tmp_path,
    )  # fmt: skip
    with pytest.raises(lab.RunError, match="the adapter's make_reflective_dataset failed: KeyError: 'trace'"):
        run.wait(60)


def test_texts_for_other_components_are_not_taken_and_that_is_noted(tmp_path: Path) -> None:
    class Two(Writes):
        def propose_new_texts(self, candidate: Any, reflective_dataset: Any, components_to_update: Any) -> dict[str, str]:
            return {**super().propose_new_texts(candidate, reflective_dataset, components_to_update), "other": "new"}

    run = run_of(task_of(Two()), tmp_path)
    assert any("its texts for other were not taken" in note for note in notes_of(run))


def test_a_proposal_without_a_text_is_a_bad_reply() -> None:
    class Nothing(Writes):
        def propose_new_texts(self, candidate: Any, reflective_dataset: Any, components_to_update: Any) -> dict[str, str]:
            return {}

    proposer = lab.AdapterProposer(task_of(Nothing()))
    with pytest.raises(lab.BadReply, match="gave no text for component 'prompt'"):
        proposer.propose(brief(), None)  # type: ignore[arg-type]


def test_more_metric_calls_than_one_an_example_are_warned_about() -> None:
    program = AdapterProgram(Words(after=lambda batch: setattr(batch, "num_metric_calls", 4)))
    instance = task_of(Words()).train[0]
    with pytest.warns(UserWarning, match="one example took 4 metric calls; the budget counts one"):
        program(SEED, instance, None)  # type: ignore[arg-type]
    program(SEED, instance, None)  # type: ignore[arg-type]  # said once


# --- trajectories -------------------------------------------------------------------------------------------------------------


def brief(*examples: int) -> lab.Brief:
    records = tuple(lab.Record(f"word: w{i}", f"out {i}", 0.0, "", i) for i in examples or (0, 1))
    return lab.Brief(SEED, "prompt", records, draw(0, "test"))


def test_only_the_latest_trajectories_are_kept_and_the_others_come_from_the_log() -> None:
    task = task_of(Writes(), keep=2)
    program = task.program
    assert isinstance(program, AdapterProgram)
    for instance in task.train[:3]:
        program(SEED, instance, None)  # type: ignore[arg-type]
    made = program.reflective(SEED, "prompt", brief(0, 1, 2).records, None)  # type: ignore[arg-type]
    assert made.lost == 1
    assert [record["Feedback"].split("\n")[0] for record in made.records[:2]] == ["it lacks w1", "it lacks w2"]
    assert made.records[2]["Inputs"] == "word: w0" and made.records[2]["Generated Outputs"] == "out 0"
    draft = lab.AdapterProposer(task).propose(brief(0, 1, 2), None)  # type: ignore[arg-type]
    assert isinstance(draft, lab.Draft) and "1 of 3 records are as the log kept them" in draft.note


def test_trajectories_belong_to_a_text_not_only_to_an_example() -> None:
    task = task_of(Writes())
    program = task.program
    assert isinstance(program, AdapterProgram)
    program({"prompt": "other"}, task.train[0], None)  # type: ignore[arg-type]
    assert program.reflective(SEED, "prompt", brief(0).records, None).lost == 1  # type: ignore[arg-type]


def test_a_resumed_run_reflects_on_what_the_log_kept_and_says_so(tmp_path: Path) -> None:
    task = task_of(Writes())
    given: dict[str, Any] = {"llm": lab.NoModel(), "clock": lab.Virtual()}
    algorithm = lab.GEPA(proposer=lab.AdapterProposer(task))
    run = lab.start(task, algorithm, budget=lab.Budget(metric_calls=150), folder=tmp_path, paused=True, **given)
    run.step(stage="validate", timeout=30)
    run.step(stage="rollout", timeout=30)
    run.stop().wait(30)
    again = task_of(adapter := Writes())  # as in a new process: the trajectories are gone
    resumed = lab.resume(run.path, task=again, algorithm=lab.GEPA(proposer=lab.AdapterProposer(again)), paused=False, **given)
    resumed.wait(60)
    assert "3 of 3 records are as the log kept them: their trajectories are gone" in notes_of(resumed)
    assert resumed.best is not None and resumed.best.score == 1.0
    counted = sum(1 for event in events_of(resumed, ev.SampleScored))
    assert resumed.status.spent["metric_calls"] == counted == 6 + 3 + len(adapter.calls), "nothing was run again unseen"


def test_an_empty_dataset_is_no_evidence() -> None:
    class Silent(Words):
        def make_reflective_dataset(self, *arguments: Any) -> Any:
            return {}

    task = task_of(Silent())
    for instance in task.train[:2]:
        task.program(SEED, instance, None)  # type: ignore[arg-type]
    with pytest.raises(Trouble, match="has nothing on component 'prompt'"):
        lab.AdapterProposer(task).propose(brief(), None)  # type: ignore[arg-type]


# --- set-up -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trainset": []}, "trainset: expected at least one example"),
        ({"trainset": "abc"}, "trainset: expected a list of examples or a gepa DataLoader; got str"),
        ({"valset": {"a": 1}}, "valset: expected a list of examples"),
        ({"seed_candidate": {}}, "seed: expected"),
        ({"keep": 0}, "keep: expected"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(lab.SetupError, match=message):
        task_of(Writes(), **options)


def test_what_is_no_adapter_is_refused() -> None:
    with pytest.raises(lab.SetupError, match=r"expected a GEPAAdapter object with evaluate"):
        task_of(object())
    with pytest.raises(lab.SetupError, match="expected a GEPAAdapter object"):
        task_of(Writes)


def test_an_adapters_own_state_is_said_to_be_lost_at_a_resume() -> None:
    class Stateful(Writes):
        def get_adapter_state(self) -> dict[str, Any]:
            return {}

    with pytest.warns(UserWarning, match="get_adapter_state is not used"):
        task_of(Stateful())


def test_the_proposer_wants_a_task_made_from_an_adapter() -> None:
    plain = lab.simulated_task(lab.IndependentRules(n_rules=4), 4, 2)
    with pytest.raises(lab.SetupError, match="expected the task of lab.task_from_adapter"):
        lab.AdapterProposer(plain)
    with pytest.raises(lab.SetupError, match="give only one of them"):
        lab.AdapterProposer(task_of(Writes()), propose_with=lambda *a: {})
