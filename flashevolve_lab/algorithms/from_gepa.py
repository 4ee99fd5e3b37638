"""``GEPA.from_gepa``: the arguments of ``gepa.optimize`` (gepa 0.1.4) by their names, as what `start` takes.

Owns the translation, argument by argument. One rule a change must keep: every argument is honoured, refused with a `SetupError` that
names it and says why, or, where it only concerned gepa's own display, warned about; nothing is silently left out.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from flashevolve_lab.algorithms.adapter_proposing import AdapterProposer
from flashevolve_lab.algorithms.merging import Merge
from flashevolve_lab.algorithms.reflecting import Reflect
from flashevolve_lab.errors import SetupError
from flashevolve_lab.llm import LLM, FunctionModel, NoModel
from flashevolve_lab.policies import Batched, Sequential, Tolerant
from flashevolve_lab.tasks import Task, ask, task_from_adapter

if TYPE_CHECKING:
    from flashevolve_lab.algorithms.gepa import GEPA

ANSWER_TOKENS = 2048
"""Bound of an answer of ``task_lm``: in the lab every call has one, because that is what the budget reserves."""


def from_gepa(
    cls: type[GEPA],
    seed_candidate: Mapping[str, str],
    trainset: Any,
    *,
    valset: Any = None,
    adapter: Any = None,
    task_lm: Any = None,
    evaluator: Any = None,
    reflection_lm: Any = None,
    reflection_lm_kwargs: Mapping[str, Any] | None = None,
    candidate_selection_strategy: Any = "pareto",
    frontier_type: str = "instance",
    skip_perfect_score: bool = True,
    batch_sampler: Any = "epoch_shuffled",
    reflection_minibatch_size: int | None = None,
    perfect_score: float = 1.0,
    reflection_prompt_template: str | Mapping[str, str] | None = None,
    custom_candidate_proposer: Any = None,
    module_selector: Any = "round_robin",
    use_merge: bool = False,
    max_merge_invocations: int = 5,
    merge_val_overlap_floor: int = 5,
    max_metric_calls: int | None = None,
    max_reflection_cost: float | None = None,
    stop_callbacks: Any = None,
    logger: Any = None,
    run_dir: str | None = None,
    callbacks: Any = None,
    use_wandb: bool = False,
    wandb_api_key: str | None = None,
    wandb_init_kwargs: Mapping[str, Any] | None = None,
    wandb_attach_existing: bool = False,
    use_mlflow: bool = False,
    mlflow_tracking_uri: str | None = None,
    mlflow_experiment_name: str | None = None,
    mlflow_attach_existing: bool = False,
    tracking_key_prefix: str = "",
    track_best_outputs: bool = True,
    display_progress_bar: bool = False,
    use_cloudpickle: bool = False,
    cache_evaluation: bool = False,
    seed: int = 0,
    raise_on_exception: bool = True,
    val_evaluation_policy: Any = None,
    acceptance_criterion: Any = "strict_improvement",
    sampling_strategy: Any = None,
    selection_strategy: Any = None,
    reflection_strategy: Any = None,
    one_at_a_time: bool = False,
) -> dict[str, Any]:
    """What `start` needs to do ``gepa.optimize(…)``: ``run = lab.start(**lab.GEPA.from_gepa(…the same arguments…))``.

    A dictionary with task, algorithm, llm, reflection_llm, budget and seed, and, where they were asked for, schedule, acceptance and
    folder; change it as you like. Afterwards ``run.gepa_result()`` is gepa's result.

    Differences to know: without a ``sampling_strategy`` the lab's default schedule holds, not gepa's one proposal at a time
    (``SingleMutationSampling()``, or ``schedule=lab.Sequential()``); ``evaluate`` gets one example at a time, from many threads; the
    budget is never exceeded, where gepa finishes its iteration; ``MaxCandidateProposalsStopper`` counts children that were gated, not
    iterations; after ``raise_on_exception`` failures are recorded and many in a row end the run, whatever it says. ``perfect_score``
    must really be the highest possible score.

    Args:
        cls: The algorithm's class.
        seed_candidate, trainset, …, reflection_strategy: As ``gepa.optimize`` takes them. ``task_lm`` and ``reflection_lm`` may also be
            models of the lab (`OpenAI`, …); a litellm string or a function becomes a `FunctionModel`, so that its calls are limited and
            recorded too. Beside an ``adapter``, ``task_lm`` may be a model of the lab: the one that `ask` reaches.
        one_at_a_time: For an adapter that is not thread-safe (see `task_from_adapter`).

    Raises:
        SetupError: an argument that cannot be honoured; says which, why, and what to do instead.
    """
    _need_gepa()
    _refuse_strategies(
        candidate_selection_strategy, frontier_type, val_evaluation_policy, selection_strategy, reflection_strategy
    )
    _refuse_what_watches(callbacks, max_reflection_cost)
    shown_by_gepa = {
        "logger": logger,
        "use_wandb": use_wandb,
        "use_mlflow": use_mlflow,
        "display_progress_bar": display_progress_bar,
        "use_cloudpickle": use_cloudpickle,
    }
    _warn_of_display(shown_by_gepa, run_dir, merge_val_overlap_floor)
    _check_components(module_selector, seed_candidate)
    if perfect_score is None or not math.isfinite(perfect_score):
        raise SetupError(f"perfect_score: expected the highest possible score, a finite number; got {perfect_score!r}")
    llm = _task_model(task_lm, adapter, evaluator)
    task = task_from_adapter(
        adapter if adapter is not None else _default_adapter(evaluator),
        trainset=trainset,
        valset=valset,
        seed_candidate=seed_candidate,
        perfect=perfect_score,
        one_at_a_time=one_at_a_time,
    )
    proposer = _proposer(task, reflection_prompt_template, custom_candidate_proposer)
    algorithm = cls(
        minibatch=_minibatch(batch_sampler, reflection_minibatch_size),
        proposer=proposer,
        cache=cache_evaluation,
        skip_perfect=skip_perfect_score,
        merge=_merge(use_merge, max_merge_invocations, task),
    )
    made = {
        "task": task,
        "algorithm": algorithm,
        "llm": llm,
        "reflection_llm": _reflection_model(reflection_lm, reflection_lm_kwargs, proposer),
        "budget": _budget(max_metric_calls, stop_callbacks),
        "seed": seed,
        "schedule": _schedule(sampling_strategy),
        "acceptance": _acceptance(acceptance_criterion),
        "folder": run_dir,
    }
    return {name: value for name, value in made.items() if value is not None}


# --- models -----------------------------------------------------------------------------------------------------------------


def _task_model(task_lm: Any, adapter: Any, evaluator: Any) -> LLM:
    if adapter is not None:
        if evaluator is not None:
            raise SetupError(
                "evaluator: it is for gepa's default adapter; an adapter scores its examples itself. Give only one of them"
            )
        if task_lm is None:
            return NoModel("the adapter calls its own models")
        if not _is_model(task_lm):
            raise SetupError(
                "task_lm: an adapter has its own model. Leave task_lm out, or give a model of the lab for what calls lab.ask"
            )
    elif task_lm is None:
        raise SetupError("task_lm: without an adapter the default one needs a model: task_lm=lab.OpenAI(…), or a litellm name")
    return _model("task_lm", task_lm, {})


def _reflection_model(reflection_lm: Any, options: Mapping[str, Any] | None, proposer: AdapterProposer) -> LLM:
    if options and not isinstance(reflection_lm, str):
        raise SetupError("reflection_lm_kwargs: they are for a reflection_lm given as a litellm name; this one is made already")
    if reflection_lm is not None:
        return _model("reflection_lm", reflection_lm, options or {})
    if not proposer.proposes_itself:
        raise SetupError(
            "reflection_lm: the adapter has no propose_new_texts, so a model has to propose: reflection_lm=lab.OpenAI(…)"
        )
    return NoModel("the adapter proposes by itself")


def _model(what: str, model: Any, options: Mapping[str, Any]) -> LLM:
    """A model of the lab as it is; a litellm name or a function as one."""
    if _is_model(model):
        made: LLM = model
        return made
    if isinstance(model, str):
        if importlib.util.find_spec("litellm") is None:
            raise SetupError(
                f"{what}={model!r}: a name needs litellm (pip install litellm), or give lab.OpenAI(base_url, model=…)"
            )
        from gepa.lm import LM

        return FunctionModel(LM(model, **options), name=model)
    if callable(model) and not isinstance(model, type):
        return FunctionModel(model)
    raise SetupError(f"{what}: expected a model of the lab, a litellm name or a function (messages) -> text; got {model!r}")


def _is_model(model: Any) -> bool:
    return isinstance(model, LLM) and not isinstance(model, type)


def _default_adapter(evaluator: Any) -> Any:
    from gepa.adapters.default_adapter.default_adapter import DefaultAdapter

    return DefaultAdapter(model=partial(ask, max_tokens=ANSWER_TOKENS), evaluator=evaluator)


# --- proposing --------------------------------------------------------------------------------------------------------------


def _proposer(task: Task, template: str | Mapping[str, str] | None, custom: Any) -> AdapterProposer:
    plain = AdapterProposer(task, propose_with=custom)
    if template is None:
        return plain
    if plain.proposes_itself:
        raise SetupError(
            "reflection_prompt_template: the adapter (or custom_candidate_proposer) proposes by itself and would not read it"
        )
    if isinstance(template, str):
        return AdapterProposer(task, reflect=Reflect(prompt=_prompt(template)))
    return AdapterProposer(task, prompts={name: Reflect(prompt=_prompt(text)) for name, text in template.items()})


def _prompt(template: str) -> str:
    """gepa's placeholders as ours. Ours brings the fence around the current text with it."""
    for ours in ("{component}", "{current}", "{records}"):
        if ours in template:
            raise SetupError(
                f"reflection_prompt_template: it contains {ours}, which the lab would replace; write it differently"
            )
    if missing := [name for name in ("<curr_param>", "<side_info>") if name not in template]:
        raise SetupError(f"reflection_prompt_template: it lacks {' and '.join(missing)}")
    unfenced = template.replace("```\n<curr_param>\n```", "<curr_param>").replace("```\n<side_info>\n```", "<side_info>")
    return unfenced.replace("<curr_param>", "{current}").replace("<side_info>", "{records}")


def _check_components(module_selector: Any, seed_candidate: Any) -> None:
    from gepa.strategies.component_selector import RoundRobinReflectionComponentSelector

    if module_selector == "round_robin" or isinstance(module_selector, RoundRobinReflectionComponentSelector):
        return
    if module_selector == "all" and isinstance(seed_candidate, Mapping) and len(seed_candidate) == 1:
        return
    raise SetupError(
        f"module_selector={module_selector!r}: in the lab a proposal changes one component, in turn ('round_robin'), so that it can be "
        "grafted onto a newer version"
    )


def _minibatch(batch_sampler: Any, size: int | None) -> int:
    from gepa.strategies.batch_sampler import EpochShuffledBatchSampler

    if isinstance(batch_sampler, EpochShuffledBatchSampler):
        if size is not None:
            raise SetupError("reflection_minibatch_size: the batch_sampler has a size already; give only one of them")
        return int(batch_sampler.minibatch_size)
    if batch_sampler != "epoch_shuffled":
        raise SetupError(
            f"batch_sampler={batch_sampler!r}: the lab's minibatches are shuffled anew each epoch ('epoch_shuffled'), without overlap "
            "between proposals in flight"
        )
    return 3 if size is None else size


def _merge(use_merge: bool, most: int, task: Task) -> Merge | None:
    if not use_merge:
        return None
    if len(task.components) == 1:
        warnings.warn("use_merge: a merge of artifacts of one component makes nothing new; left out", stacklevel=3)
        return None
    return Merge(most=most)


# --- when to start and to stop ------------------------------------------------------------------------------------------------


def _schedule(sampling: Any) -> Any:
    from gepa.strategies import proposal_sampling as of

    known: dict[type, Callable[[Any], Any]] = {
        of.SingleMutationSampling: lambda _: Sequential(),
        of.SameParentSampling: lambda given: Batched(p=1, n=given.n),
        of.IndependentSampling: lambda given: Batched(p=given.n, n=1),
        of.PxNSampling: lambda given: Batched(p=given.p, n=given.n),
    }
    if sampling is None:
        return None
    if type(sampling) not in known:
        raise SetupError(
            f"sampling_strategy={sampling!r}: a schedule says how many proposals start, and the front says on which parents: "
            "lab.Batched(p, n), lab.Pipelined(depth), or a schedule of your own"
        )
    return known[type(sampling)](sampling)


def _budget(max_metric_calls: int | None, stop_callbacks: Any) -> dict[str, float]:
    limits: dict[str, float] = {} if max_metric_calls is None else {"metric_calls": max_metric_calls}
    given = stop_callbacks if isinstance(stop_callbacks, Sequence) else [] if stop_callbacks is None else [stop_callbacks]
    for name, limit in (limit for stopper in given for limit in _limits(stopper)):
        limits[name] = min(limit, limits.get(name, math.inf))
    if not limits:
        raise SetupError(
            "max_metric_calls: expected a number, or a stop_callbacks that limits metric calls, seconds or proposals"
        )
    return limits


def _limits(stopper: Any) -> list[tuple[str, float]]:
    from gepa.utils import stop_condition as of

    match stopper:
        case of.MaxMetricCallsStopper():
            return [("metric_calls", stopper.max_metric_calls)]
        case of.TimeoutStopCondition():
            return [("seconds", stopper.timeout_seconds)]
        case of.MaxCandidateProposalsStopper():
            return [("proposals", stopper.max_proposals)]
        case of.CompositeStopper(mode="any"):
            return [limit for one in stopper.stoppers for limit in _limits(one)]
    raise SetupError(
        f"stop_callbacks: {type(stopper).__name__} reads gepa's state, which a run of the lab does not have. Limits are "
        "lab.Budget(metric_calls=…, seconds=…, proposals=…, dollars=…); anything else: look at run.status and call run.stop(reason)"
    )


def _acceptance(criterion: Any) -> Any:
    from gepa.strategies.acceptance import ImprovementOrEqualAcceptance, StrictImprovementAcceptance

    if criterion == "strict_improvement" or isinstance(criterion, StrictImprovementAcceptance):
        return None
    if criterion == "improvement_or_equal" or isinstance(criterion, ImprovementOrEqualAcceptance):
        return Tolerant(0.0)
    raise SetupError(
        f"acceptance_criterion={criterion!r}: write it as a policy of the lab, lab.start(…, acceptance=…): an object with judge(gate)"
    )


# --- what the lab has no counterpart of -----------------------------------------------------------------------------------------


def _need_gepa() -> None:
    if importlib.util.find_spec("gepa") is None:
        raise SetupError("from_gepa needs gepa: pip install 'flashevolve-lab[gepa]'")


def _refuse_strategies(selector: Any, frontier: Any, evaluation: Any, selection: Any, reflection: Any) -> None:
    from gepa.strategies.candidate_selector import ParetoCandidateSelector
    from gepa.strategies.eval_policy import FullEvaluationPolicy
    from gepa.strategies.proposal_selection import AllImprovements

    kept: list[tuple[str, Any, tuple[Any, ...], tuple[type, ...], str]] = [
        (
            "candidate_selection_strategy",
            selector,
            ("pareto",),
            (ParetoCandidateSelector,),
            "parents are drawn from the Pareto front, by the number of instances they win ('pareto')",
        ),
        (
            "frontier_type",
            frontier,
            ("instance",),
            (),
            "the pool keeps one score per validation instance ('instance'); objective scores are only shown as feedback",
        ),
        (
            "val_evaluation_policy",
            evaluation,
            (None, "full_eval"),
            (FullEvaluationPolicy,),
            "a committed artifact is scored on the whole validation set ('full_eval')",
        ),
        (
            "selection_strategy",
            selection,
            (None,),
            (AllImprovements,),
            "proposals do not wait for each other: each that passes its gate is validated (AllImprovements())",
        ),
        ("reflection_strategy", reflection, (None,), (), "write it as a proposer: lab.GEPA(proposer=…)"),
    ]
    for name, value, plain, classes, why in kept:
        if value not in plain and not (classes and isinstance(value, classes)):
            raise SetupError(f"{name}={value!r} cannot be honoured: {why}")


def _refuse_what_watches(callbacks: Any, max_reflection_cost: Any) -> None:
    if callbacks:
        raise SetupError(
            "callbacks: a run of the lab has no gepa state to hand out. All that happened is in its log: run.entries, run.frame()"
        )
    if max_reflection_cost is not None:
        raise SetupError(
            "max_reflection_cost: a budget limits all models together: lab.Budget(dollars=…), with a price for each model"
        )


def _warn_of_display(shown: Mapping[str, Any], run_dir: str | None, overlap: int) -> None:
    instead = {
        "logger": "the run's log is its file",
        "use_wandb": "nothing is sent to wandb; run.frame(…) has the tables",
        "use_mlflow": "nothing is sent to mlflow; run.frame(…) has the tables",
        "display_progress_bar": "the run is its own dashboard",
        "use_cloudpickle": "nothing is pickled",
    }
    said = [f"{name}: {instead[name]}" for name, value in shown.items() if value]
    if run_dir is not None:
        said.append(
            "run_dir: the run's file is written there; what gepa left there, and a gepa.stop, are not read (lab.resume, run.stop)"
        )
    if overlap != 5:
        said.append("merge_val_overlap_floor: every committed artifact has been scored on the whole validation set")
    if said:
        warnings.warn("not as in gepa.optimize: " + "; ".join(said), stacklevel=4)
