"""Any DSPy program with a metric runs unchanged: its instructions evolve, its calls are the run's, and the best comes back."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

dspy = pytest.importorskip("dspy", reason="needs the extra [dspy]")

import flashevolve_lab as lab  # noqa: E402
from flashevolve_lab.core import events as ev  # noqa: E402

NUMBERS = ["one", "two", "three", "four", "five", "six"]
TRAIN = [dspy.Example(question=word, answer=word.upper()).with_inputs("question") for word in NUMBERS]


class Model:
    """Answers in upper case the words its instruction names, and reflects by adding the words that were wrong. On virtual time."""

    price = None

    def __init__(self, answer: str = "") -> None:
        self.requests: list[lab.Request] = []
        self.answer = answer

    async def complete(self, request: lab.Request) -> lab.Reply:
        self.requests.append(request)
        text = "\n".join(message["content"] for message in request.messages)
        if request.role == "reflection":
            wrong = re.findall(r"name the word (\w+)", text)
            current = re.search(r"```\n(.*?)\n```", text, re.DOTALL)
            assert current
            return lab.Reply("```\n" + " ".join([current[1], *dict.fromkeys(wrong), f"v{len(self.requests)}"]) + "\n```")
        if self.answer:
            return lab.Reply(self.answer)
        system, user = request.messages[0]["content"], request.messages[-1]["content"]
        asked = user.split("## ]]\n")[1].split("\n")[0]
        objective = system.split("your objective is:")[-1]
        said = asked.upper() if asked in objective else "no idea"
        field = re.findall(r"\[\[ ## (\w+) ## \]\]", user)[1]
        return lab.Reply(f"[[ ## {field} ## ]]\n{said}\n\n[[ ## completed ## ]]")

    async def check(self) -> None: ...

    def describe(self) -> dict[str, Any]:
        return {"kind": "Model", "in_process": True}


class Answering(dspy.Module):
    """Two predictors in a row; the second decides the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.draft = dspy.Predict("question -> rough")
        self.final = dspy.Predict("question -> answer")

    def forward(self, question: str) -> Any:
        self.draft(question=question)
        return self.final(question=question)


def metric(gold: Any, pred: Any, trace: Any = None) -> Any:
    right = pred.answer == gold.answer
    return dspy.Prediction(score=float(right), feedback="" if right else f"name the word {gold.question}")


def task_of(program: Any = None, judge: Any = metric, **options: Any) -> lab.Task:
    given = {"trainset": TRAIN, "valset": TRAIN, "metric": judge, **options}
    return lab.task_from_dspy(program or dspy.Predict("question -> answer"), **given)


def run_of(task: lab.Task, folder: Path, llm: Any = None, **options: Any) -> lab.Run:
    given = {"budget": lab.Budget(metric_calls=150), "clock": lab.Virtual(), "schedule": lab.Pipelined(4), "folder": folder}
    run = lab.start(task, lab.GEPA(proposer=lab.AdapterProposer(task)), llm=llm or Model(), **{**given, **options})
    run.wait(60)
    return run


def events_of(run: lab.Run, kind: type[Any]) -> list[Any]:
    return [entry.event for entry in run.entries if isinstance(entry.event, kind)]


def test_a_predictors_instructions_evolve_and_the_best_program_comes_back(tmp_path: Path) -> None:
    program = dspy.Predict("question -> answer")
    before = program.signature.instructions
    run = run_of(task_of(program), tmp_path)
    assert run.best is not None and run.best.score == 1.0
    best = lab.best_program(program, run)
    assert best is not program and best.signature.instructions == run.best.text != before
    assert program.signature.instructions == before, "the user's program is as it was"
    assert all(word in best.signature.instructions for word in NUMBERS)


def test_its_calls_go_through_the_gateway_charged_and_recorded(tmp_path: Path) -> None:
    model = Model()
    task = task_of(max_tokens=321, temperature=0.5)
    run = run_of(task, tmp_path, model)
    calls = [call for call in events_of(run, ev.CallStarted) if call.role == "task"]
    assert len(calls) == run.status.spent["metric_calls"]
    assert run.status.spent["tokens"] > 0
    asked = next(request for request in model.requests if request.role == "task")
    assert (asked.max_tokens, asked.temperature) == (321, 0.5)
    assert [message["role"] for message in asked.messages] == ["system", "user"]


def test_every_predictor_is_a_component_and_is_shown_its_own_inputs_and_answers(tmp_path: Path) -> None:
    seen: list[tuple[Any, ...]] = []

    def judge(gold: Any, pred: Any, trace: Any, pred_name: Any, pred_trace: Any) -> Any:
        seen.append((trace, pred_name, pred_trace))
        made = metric(gold, pred)
        about = f"; this is about {pred_name}" if pred_name else ""
        return {"score": made.score, "feedback": made.feedback + about}

    program, model = Answering(), Model()
    task = task_of(program, judge)
    assert set(task.components) == {"draft", "final"}
    run = run_of(task, tmp_path, model)
    assert run.best is not None and run.best.score == 1.0
    about = {name for _, name, _ in seen if name}
    assert about == {"draft", "final"}
    assert all(trace is None for trace, name, _ in seen if name is None), "a score is asked for without a trace, as in dspy.Evaluate"
    trace, name, pred_trace = next(one for one in seen if one[1] == "draft")
    assert len(trace) == 2 and len(pred_trace) == 1 and "rough" in pred_trace[0][2]
    prompts = [request.messages[-1]["content"] for request in model.requests if request.role == "reflection"]
    assert any('component "draft"' in text and "rough: no idea" in text and "this is about draft" in text for text in prompts)
    assert not any('component "draft"' in text and "answer: no idea" in text for text in prompts)


@pytest.mark.parametrize(
    ("judge", "feedback"),
    [
        (lambda gold, pred: pred.answer == gold.answer, "This trajectory got a score of 0."),
        (lambda gold, pred, trace=None: 0.5 * (pred.answer == gold.answer), "This trajectory got a score of 0."),
        (metric, "name the word"),
        (lambda g, p, t, n, pt: {"score": 0.0, "feedback": "all wrong"}, "all wrong"),
    ],
    ids=["a bool of two arguments", "a float", "a prediction", "a dict of five arguments"],
)
def test_a_metric_may_return_what_dspys_metrics_return(judge: Any, feedback: str, tmp_path: Path) -> None:
    model = Model()
    task = task_of(judge=judge)
    run = lab.start(
        task, lab.GEPA(proposer=lab.AdapterProposer(task)), llm=model, budget=lab.Budget(metric_calls=150),
        clock=lab.Virtual(), folder=tmp_path, paused=True,
    )  # fmt: skip
    for stage in ("validate", "rollout", "propose"):
        run.step(stage=stage, timeout=30)
    run.stop().wait(30)
    (prompt,) = [request.messages[-1]["content"] for request in model.requests if request.role == "reflection"]
    assert feedback in prompt and "Score: 0" in prompt and "answer: no idea" in prompt


def test_a_program_that_raises_scores_the_failure_score_and_its_error_is_the_feedback(tmp_path: Path) -> None:
    class Raises(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.final = dspy.Predict("question -> answer")

        def forward(self, question: str) -> Any:
            if question == "two":
                raise ZeroDivisionError("as in the user's code")
            return self.final(question=question)

    run = run_of(task_of(Raises(), failure_score=-1.0), tmp_path)
    failed = [event for event in events_of(run, ev.SampleScored) if event.score == -1.0]
    assert failed and all("The program failed: ZeroDivisionError: as in" in event.feedback for event in failed)
    assert not events_of(run, ev.SampleFailed)


def test_an_answer_that_cannot_be_parsed_is_the_candidates_doing_and_is_shown(tmp_path: Path) -> None:
    task = task_of(dspy.Predict("question -> answer: int"))
    with pytest.raises(lab.RunError, match="(?s)failed on all 6 validation examples.*failed to parse the LM response"):
        run_of(task, tmp_path, Model(answer="nothing in the right form"))


def test_a_failing_metric_leaves_the_sample_missing(tmp_path: Path) -> None:
    failed: list[str] = []

    def judge(gold: Any, pred: Any, trace: Any = None) -> float:
        if not failed:
            failed.append(gold.question)
            raise LookupError("no gold")
        return float(pred.answer == gold.answer)

    run = run_of(task_of(judge=judge), tmp_path)
    (lost,) = events_of(run, ev.SampleFailed)
    assert "LookupError: no gold" in lost.message


def test_what_the_gateway_cannot_carry_is_refused_by_name(tmp_path: Path) -> None:
    task = task_of(dspy.Predict("question -> answer", stop=["\n"]))
    with pytest.raises(lab.RunError, match=r"asks its model for stop.*own_lm=True"):
        run_of(task, tmp_path)


def test_a_models_outage_is_no_fault_of_the_candidate(tmp_path: Path) -> None:
    class Down(Model):
        async def complete(self, request: lab.Request) -> lab.Reply:
            raise lab.Refused("quota")

    with pytest.raises(lab.RunError, match="quota"):
        run_of(task_of(), tmp_path, Down())


def test_with_own_lm_the_program_calls_dspys_model_and_the_run_counts_none_of_it(tmp_path: Path) -> None:
    class Own(dspy.utils.DummyLM):  # type: ignore[misc,name-defined]
        """Scripted by dspy."""

    answers: Mapping[str, Any] = {word: {"answer": word.upper()} for word in NUMBERS}
    with dspy.context(lm=Own(answers)):
        task = task_of(own_lm=True)
    run = run_of(task, tmp_path, lab.NoModel(), reflection_llm=Model(), budget=lab.Budget(metric_calls=90))
    assert run.status.seed_score == 1.0
    assert not [call for call in events_of(run, ev.CallStarted) if call.role == "task"]


def test_own_lm_without_one_is_found_before_the_start() -> None:
    with dspy.context(lm=None), pytest.raises(lab.SetupError, match="no LM is configured"):
        task_of(own_lm=True)


def test_by_default_a_predictors_own_lm_is_not_used(tmp_path: Path) -> None:
    program = dspy.Predict("question -> answer")
    program.set_lm(dspy.utils.DummyLM([{"answer": "from elsewhere"}]))
    run = run_of(task_of(program), tmp_path)
    assert not any("elsewhere" in event.output for event in events_of(run, ev.SampleScored))


def test_a_candidate_runs_in_a_copy_so_that_no_state_is_shared(tmp_path: Path) -> None:
    class Counting(Answering):
        def __init__(self) -> None:
            super().__init__()
            self.runs = 0

        def forward(self, question: str) -> Any:
            self.runs += 1
            assert self.runs == 1
            return super().forward(question)

    program = Counting()
    run = run_of(task_of(program), tmp_path)
    assert program.runs == 0 and not any(event.feedback.startswith("The program") for event in events_of(run, ev.SampleScored))


def test_threads_a_program_starts_with_dspy_ask_the_run_too(tmp_path: Path) -> None:
    class Parallel(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.final = dspy.Predict("question -> answer")

        def forward(self, question: str) -> Any:
            parallel = dspy.Parallel(num_threads=2, disable_progress_bar=True)
            pairs = [(self.final, dspy.Example(question=question).with_inputs("question"))] * 2
            return parallel(pairs)[0]

    run = run_of(task_of(Parallel()), tmp_path, clock=lab.Wall(), budget=lab.Budget(metric_calls=90))
    calls = [call for call in events_of(run, ev.CallStarted) if call.role == "task"]
    assert len(calls) == 2 * run.status.spent["metric_calls"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"program": object()}, "program: expected a dspy.Module object"),
        ({"program": dspy.Module()}, "has no predictor whose instructions could evolve"),
        ({"trainset": [dspy.Example(question="x")]}, "trainset: example 0 has no inputs"),
        ({"judge": lambda gold: 1.0}, r"metric: expected \(gold, pred, trace\)"),
        ({"judge": 3}, "metric: expected a function"),
    ],
)
def test_bad_arguments_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(lab.SetupError, match=message):
        task_of(**options)


def test_the_best_program_wants_the_components_of_this_program() -> None:
    program = dspy.Predict("question -> answer")
    assert lab.best_program(program, {"self": "Shout."}).signature.instructions == "Shout."
    with pytest.raises(lab.SetupError, match=r"predictors are \['self'\]; the artifact has \['prompt'\]"):
        lab.best_program(program, {"prompt": "x"})
    with pytest.raises(lab.SetupError, match="expected a run with a scored artifact"):
        lab.best_program(program, None)


def test_without_dspy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    program = dspy.Predict("question -> answer")
    monkeypatch.setitem(sys.modules, "dspy", None)
    assert lab.task_from_dspy and lab.best_program, "the names are there"
    with pytest.raises(lab.SetupError, match=r"pip install 'flashevolve-lab\[dspy\]'"):
        task_of(program)
