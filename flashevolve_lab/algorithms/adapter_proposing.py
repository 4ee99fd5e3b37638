"""`AdapterProposer`: proposals as a `GEPAAdapter` makes them, from its own reflective dataset.

Owns how a reflective dataset becomes the evidence of our reflection prompt, and how ``propose_new_texts`` becomes a `Draft`. The
trajectories are kept by the task's program (`tasks.from_gepa`). One rule a change must keep: an adapter's code runs in a thread, and
what could not be built from trajectories is said in the draft's note.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from flashevolve_lab.algorithms.bench import Trouble
from flashevolve_lab.algorithms.proposing import Brief, Draft, Proposer, Record
from flashevolve_lab.algorithms.reflecting import Reflect
from flashevolve_lab.errors import BadReply, SetupError
from flashevolve_lab.tasks import AdapterProgram, Asker, Reflected, Task, model_trouble

ProposalFn = Callable[..., Mapping[str, str]]
T = TypeVar("T")
_INPUT, _OUTPUT, _FEEDBACK = ("inputs", "input"), ("generated outputs", "generated output", "outputs", "output"), ("feedback",)


@dataclass(frozen=True, repr=False)
class AdapterProposer:
    """Proposes for a task made by `task_from_adapter` or `task_from_dspy`: ``GEPA(proposer=AdapterProposer(task))``.

    With ``propose_new_texts`` (the adapter's, or ``propose_with``) the text is the adapter's own; otherwise its reflective dataset is the
    evidence of ``reflect``. Calls of models that the adapter makes itself are not counted, except through `ask`.

    Args:
        task: The task.
        reflect: Asks the reflection model; by default `Reflect`.
        propose_with: gepa's ``ProposalFn``: ``(candidate, reflective_dataset, components_to_update) -> {component: new text}``.
        prompts: Component name → the `Reflect` for it, where it is not ``reflect``.

    Raises:
        SetupError: the task was not made from an adapter.
    """

    task: Task
    reflect: Proposer = field(default_factory=Reflect)
    propose_with: ProposalFn | None = None
    prompts: Mapping[str, Proposer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(getattr(self.task, "program", None), AdapterProgram):
            raise SetupError("AdapterProposer(task): expected the task of lab.task_from_adapter(…) or lab.task_from_dspy(…)")
        if self.propose_with is not None and self._program.own_proposal is not None:
            raise SetupError(
                "AdapterProposer(propose_with=…): the adapter has its own propose_new_texts; give only one of them"
            )
        for one in (self.reflect, *self.prompts.values()):
            if not inspect.iscoroutinefunction(getattr(one, "propose", None)):
                raise SetupError(f"AdapterProposer(reflect=…): expected lab.Reflect(…) or another async proposer; got {one!r}")
        if unknown := set(self.prompts) - set(self.task.components):
            raise SetupError(f"AdapterProposer(prompts=…): no such component: {', '.join(sorted(unknown))}")

    @property
    def _program(self) -> AdapterProgram:
        program = self.task.program
        assert isinstance(program, AdapterProgram)
        return program

    def __repr__(self) -> str:
        return f"AdapterProposer({self.task.name})"

    @property
    def proposes_itself(self) -> bool:
        """Whether its texts come from ``propose_new_texts``, not from the reflection model."""
        return (self.propose_with or self._program.own_proposal) is not None

    def propose(self, brief: Brief, llm: Asker) -> Draft | Awaitable[Draft]:
        """Runs in a thread; the awaitable, where it is one, on the engine's loop."""
        program = self._program
        dataset = _tried(
            "make_reflective_dataset", lambda: program.reflective(brief.components, brief.component, brief.records, llm)
        )
        if not dataset.records:
            raise Trouble("no_evidence", f"the adapter's reflective dataset has nothing on component {brief.component!r}")
        function = self.propose_with or program.own_proposal
        if function is None:
            return self._reflected(brief, dataset, llm)
        texts = _tried("propose_new_texts", lambda: program.proposed(function, brief.components, brief.component, dataset, llm))
        text = texts.get(brief.component) if isinstance(texts, Mapping) else None
        if not isinstance(text, str):
            raise BadReply(f"propose_new_texts gave no text for component {brief.component!r}", repr(texts), "no_text")
        more = sorted(set(texts) - {brief.component})
        aside = [f"its texts for {', '.join(more)} were not taken: a proposal changes one component"] if more else []
        return Draft(text, text, "; ".join([*_notes(dataset), *aside]))

    def _reflected(self, brief: Brief, dataset: Reflected, llm: Asker) -> Awaitable[Draft]:
        evidence = replace(brief, records=tuple(record_of(one) for one in dataset.records))
        return _Later(self.prompts.get(brief.component, self.reflect), evidence, llm, _notes(dataset))

    def describe(self) -> dict[str, Any]:
        """Facts for the log."""
        own = self.propose_with or self._program.own_proposal
        facts: dict[str, Any] = {"name": "AdapterProposer", "adapter": type(self._program.adapter).__name__}
        if own is not None:
            return {**facts, "proposes": getattr(own, "__qualname__", type(own).__name__)}
        told = {name: _described(one) for name, one in sorted(self.prompts.items())}
        return {**facts, "reflect": _described(self.reflect), **({"prompts": told} if told else {})}


@dataclass(frozen=True, slots=True)
class _Later:
    """A proposal that begins when it is awaited; one that nobody awaits any more (its job was cancelled) leaves nothing behind."""

    proposer: Proposer
    brief: Brief
    llm: Asker
    notes: Sequence[str]

    def __await__(self) -> Generator[Any, None, Draft]:
        return self._drafted().__await__()

    async def _drafted(self) -> Draft:
        made = self.proposer.propose(self.brief, self.llm)
        draft = made if isinstance(made, Draft) else await made
        return replace(draft, note="; ".join(filter(None, [draft.note, *self.notes])))


def record_of(reflective: Mapping[str, Any]) -> Record:
    """An entry of a reflective dataset as evidence: inputs, outputs, a score if it has one, and everything else as feedback."""
    rest = dict(reflective)
    lowered = {str(key).lower(): key for key in reflective}

    def taken(names: tuple[str, ...]) -> str:
        key = next((lowered[name] for name in names if name in lowered), None)
        return "" if key is None else told(rest.pop(key))

    given, output, feedback = taken(_INPUT), taken(_OUTPUT), taken(_FEEDBACK)
    score = float("nan")
    if (key := lowered.get("score")) is not None and _is_number(rest.get(key)):
        score = float(rest.pop(key))
    more = [f"{key}: {told(value)}" for key, value in rest.items()]
    return Record(given, output, score, "\n".join(filter(None, [feedback, *more])))


def told(value: Any) -> str:
    """A value of a reflective dataset as text: fields line by line, nested ones as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {one if isinstance(one, str) else _json(one)}" for key, one in value.items())
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _notes(dataset: Reflected) -> list[str]:
    if not dataset.lost:
        return []
    return [f"{dataset.lost} of {len(dataset.records)} records are as the log kept them: their trajectories are gone"]


def _tried(what: str, work: Callable[[], T]) -> T:
    """Its result; what the adapter raises becomes a failed job that says so, what a model of the run did stays that."""
    try:
        return work()
    except Exception as error:
        if trouble := model_trouble(error):
            raise trouble from error
        raise Trouble("adapter", f"the adapter's {what} failed: {type(error).__name__}: {error}") from error


def _described(part: Any) -> Any:
    return part.describe() if hasattr(part, "describe") else {"name": type(part).__name__}
