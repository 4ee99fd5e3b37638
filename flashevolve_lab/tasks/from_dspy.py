"""Any DSPy program with a metric as a `Task`, unchanged: ``lab.task_from_dspy(program, trainset=…, valset=…, metric=…)``.

Owns the running of a deep copy of the program with a candidate's instructions, its metric, and what of a trace becomes evidence.
dspy is imported at the first use (extra ``[dspy]``). One rule a change must keep: a failing program is the candidate's doing, a failing
metric or model is not.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from flashevolve_lab.errors import BudgetSpent, ModelError, SetupError
from flashevolve_lab.tasks.asking import asker_here
from flashevolve_lab.tasks.dspy_model import lm_of_the_run
from flashevolve_lab.tasks.from_gepa import KEEP, ProgramFailed, model_trouble, task_from_adapter
from flashevolve_lab.tasks.task import Asker, Example, Task, scored

CALLS_TOLD = 3
"""Calls of a predictor that an example shows to the reflection, the first ones."""


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of the program: what `gepa` calls a trajectory. ``calls``: (name, predictor, inputs, prediction), in order."""

    example: Any
    prediction: Any
    score: float
    feedback: str
    calls: tuple[tuple[str, Any, Mapping[str, Any], Any], ...]
    trace: list[Any]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """An evaluation of one example, of the shape of ``gepa.EvaluationBatch``."""

    outputs: list[Any]
    scores: list[float]
    trajectories: list[Ran] | None
    objective_scores: None = None
    num_metric_calls: None = None


class DSPyProgram:
    """A DSPy program as an adapter (of gepa's protocol). Thread-safe: every evaluation has a copy of the program of its own."""

    def __init__(
        self, program: Any, metric: Callable[..., Any], settings: Mapping[str, Any], lm: Callable[[Asker], Any] | None
    ) -> None:
        self._dspy = _dspy()
        self._program = program
        self._arguments = _metric_arguments(metric)
        self._metric = metric
        self._settings = settings
        self._lm = lm  # None: the program's own

    def evaluate(self, batch: list[Any], candidate: dict[str, str], capture_traces: bool = False) -> Evaluated:
        """The program with these instructions on each example, scored."""
        ran = [self._run(example, candidate) for example in batch]
        outputs, scores = [_told(one.prediction) for one in ran], [one.score for one in ran]
        return Evaluated(outputs, scores, ran if capture_traces else None)

    def _context(self) -> Any:
        """dspy's settings for what runs in this thread."""
        lm = {} if self._lm is None else {"lm": self._lm(asker_here())}
        return self._dspy.context(**self._settings, **lm, trace=[], disable_history=True)

    def _run(self, example: Any, candidate: Mapping[str, str]) -> Ran:
        program = with_instructions(self._program, candidate)
        if self._lm is not None:
            program.set_lm(None)  # the context's then holds for every predictor
        with self._context():
            try:
                prediction = program(**example.inputs())
            except Exception as error:
                _raise_unless_its_own(error)
                raise ProgramFailed(error) from error
            trace = list(self._dspy.settings.trace)
            names = {id(predictor): name for name, predictor in program.named_predictors()}
            calls = tuple((names.get(id(call[0]), ""), *call) for call in trace)
            score, feedback = self._judged(example, prediction, None, None, None)
        return Ran(example, prediction, score, feedback, calls, trace)

    def _judged(self, *arguments: Any) -> tuple[float, str]:
        """The metric's score and feedback, whichever of its shapes it returns."""
        judged = self._metric(*arguments[: self._arguments])
        value, feedback = judged, ""
        if isinstance(judged, Mapping):
            value, feedback = judged.get("score"), judged.get("feedback") or ""
        elif hasattr(judged, "score"):
            value, feedback = judged.score, getattr(judged, "feedback", "") or ""
        score = scored((value, feedback))
        return score.value, score.feedback

    def make_reflective_dataset(
        self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What each predictor was given and answered, with the metric's feedback on it."""
        return {
            component: [told for ran in eval_batch.trajectories for told in self._records(ran, component)]
            for component in components_to_update
        }

    def _records(self, ran: Ran, component: str) -> list[Mapping[str, Any]]:
        calls = [call for call in ran.calls if call[0] == component]
        records: list[Mapping[str, Any]] = []
        for _, predictor, inputs, prediction in calls[:CALLS_TOLD]:
            feedback = self._feedback(ran, component, (predictor, inputs, prediction))
            given = {name: str(value) for name, value in inputs.items()}
            made = {name: str(value) for name, value in prediction.items()}
            records.append({"Inputs": given, "Generated Outputs": made, "Feedback": feedback, "score": ran.score})
        return records

    def _feedback(self, ran: Ran, component: str, call: tuple[Any, ...]) -> str:
        """On this predictor where the metric takes one (its fourth and fifth argument), else on the whole program."""
        said = ran.feedback
        if self._arguments == 5:
            with self._context():
                said = self._judged(ran.example, ran.prediction, ran.trace, component, [call])[1] or said
        return said or f"This trajectory got a score of {ran.score:g}."


def task_from_dspy(
    program: Any,
    *,
    trainset: Sequence[Any],
    metric: Callable[..., Any],
    valset: Sequence[Any] | None = None,
    name: str = "",
    perfect: float = 1.0,
    failure_score: float = 0.0,
    own_lm: bool = False,
    max_tokens: int = 2048,
    temperature: float | None = None,
    one_at_a_time: bool = False,
    keep: int = KEEP,
) -> Task:
    """A `Task` that evolves the instructions of a DSPy program's predictors (extra ``[dspy]``).

    Each candidate is a deep copy of the program with its instructions, run in a thread. Give `AdapterProposer(task)` to `GEPA`, so that the
    reflection reads what each predictor was given, answered, and was told by the metric. `best_program` brings the result back.

    The program's calls go through the run's gateway to ``llm``: limited, charged and recorded, and whatever LM dspy or a predictor is
    configured with is not used. With ``own_lm=True`` they go to dspy's own (the configured one and the predictors', as they are when
    the task is made), which the run neither limits nor counts: then `start` takes ``llm=lab.NoModel()`` and a ``reflection_llm``.
    ``dspy.Flex`` code is left as it is. A metric that asks a model through dspy asks the run's: the task model for the score, the reflection
    model for the feedback on a predictor.

    Args:
        program: A ``dspy.Module`` with at least one predictor.
        trainset, valset: ``dspy.Example`` with inputs. Without a valset the trainset is used for both.
        metric: ``(gold, pred, trace=None)`` or, as of ``dspy.GEPA``, ``(gold, pred, trace, pred_name, pred_trace)``; returns a number, a
            bool, ``dspy.Prediction(score=…, feedback=…)`` or a dict of these. For the score ``trace`` is None, as in ``dspy.Evaluate``.
        name: Shown in the lab; by default the program's class.
        perfect: The score that cannot be beaten.
        failure_score: The score of an example on which the program raised.
        own_lm: Let the program call dspy's own models.
        max_tokens, temperature: Of the calls through the gateway, where a predictor does not say; ``temperature=None``: the server's.
        one_at_a_time: For a program whose tools or retrievers are not thread-safe.
        keep: Traces kept in memory, the latest used.

    Raises:
        SetupError: says which argument, what was expected and what came.
    """
    dspy = _dspy()
    if not isinstance(program, dspy.Module):
        raise SetupError(f"program: expected a dspy.Module object; got {program!r}")
    seed = instructions_of(program)
    for what, examples in (("trainset", trainset), ("valset", valset or ())):
        _check_examples(what, examples)
    settings = {"adapter": dspy.settings.adapter, "rm": dspy.settings.rm}
    if own_lm:
        _check_own_lm(program, dspy.settings.lm)
        settings["lm"] = dspy.settings.lm
    lm = None if own_lm else partial(lm_of_the_run, max_tokens=max_tokens, temperature=temperature)
    return task_from_adapter(
        DSPyProgram(program, metric, settings, lm),
        trainset=trainset,
        valset=valset or None,
        seed_candidate=seed,
        name=name or type(program).__name__,
        perfect=perfect,
        worst=failure_score,
        show=_shown,
        one_at_a_time=one_at_a_time,
        keep=keep,
    )


def instructions_of(program: Any) -> dict[str, str]:
    """Predictor's name → its instructions.

    Raises:
        SetupError: the program has no predictor.
    """
    found = {name: str(predictor.signature.instructions) for name, predictor in program.named_predictors()}
    if not found:
        raise SetupError(f"program: {type(program).__name__} has no predictor whose instructions could evolve")
    return found


def with_instructions(program: Any, components: Mapping[str, str]) -> Any:
    """A deep copy of the program with these instructions; predictors that are not named keep theirs."""
    copy = program.deepcopy()
    for name, predictor in copy.named_predictors():
        if name in components:
            predictor.signature = predictor.signature.with_instructions(components[name])
    return copy


def best_program(program: Any, best: Any) -> Any:
    """The DSPy program with a run's best instructions: a deep copy, to call, save or compile further.

    Args:
        program: The program the task was made from.
        best: A run (its best artifact is taken), a `Best`, or a mapping predictor's name → instructions.

    Raises:
        SetupError: there is no best artifact yet, or its components are not the program's predictors.
    """
    best = getattr(best, "best", best)
    components = getattr(best, "components", best)
    if not isinstance(components, Mapping):
        raise SetupError(
            f"best_program(program, best): expected a run with a scored artifact, or a mapping; got {components!r}"
        )
    names = instructions_of(program)
    if set(components) != set(names):
        raise SetupError(f"best_program: the program's predictors are {sorted(names)}; the artifact has {sorted(components)}")
    return with_instructions(program, components)


def _dspy() -> Any:
    try:
        import dspy
    except ImportError as error:
        raise SetupError("a DSPy program needs dspy: pip install 'flashevolve-lab[dspy]'") from error
    return dspy


def _metric_arguments(metric: Any) -> int:
    """How many of (gold, pred, trace, pred_name, pred_trace) it takes: 5, 3 or 2."""
    if not callable(metric):
        raise SetupError(f"metric: expected a function (gold, pred, trace=None); got {type(metric).__name__}")
    signature = inspect.signature(metric)
    for count in (5, 3, 2):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count
    raise SetupError(
        f"metric: expected (gold, pred, trace) or (gold, pred, trace, pred_name, pred_trace); this one has {signature}"
    )


def _check_examples(what: str, examples: Any) -> None:
    for i, example in enumerate(examples):
        try:
            example.inputs()
        except Exception as error:
            raise SetupError(
                f"{what}: example {i} has no inputs: dspy.Example(…).with_inputs('question'); got {example!r}"
            ) from error


def _check_own_lm(program: Any, configured: Any) -> None:
    if configured is None and any(predictor.lm is None for predictor in program.predictors()):
        raise SetupError(
            "own_lm=True: no LM is configured. dspy.configure(lm=…) first, or leave own_lm out to use the run's llm"
        )


def _raise_unless_its_own(error: Exception) -> None:
    """Raise what a model or its provider did; a failing program, or an answer that cannot be parsed, is the candidate's doing."""
    from dspy.utils.exceptions import LMError

    if trouble := model_trouble(error):
        raise trouble from error
    if isinstance(error, (ModelError, BudgetSpent, LMError)):
        raise error


def _told(prediction: Any) -> str:
    """A prediction as text: its fields line by line."""
    try:
        return "\n".join(f"{name}: {value}" for name, value in prediction.items())
    except AttributeError:
        return str(prediction)


def _shown(example: Example) -> str:
    return "\n".join(f"{name}: {value}" for name, value in example.inputs().items())
