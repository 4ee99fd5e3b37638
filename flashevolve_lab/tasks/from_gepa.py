"""Any `GEPAAdapter` (gepa 0.1.4) as a `Task`, unchanged: ``lab.task_from_adapter(adapter, trainset=…, seed_candidate=…)``.

Owns the adapter's calls, one example each and in threads, and the trajectories kept for its reflective dataset. Knows no prompt and
no run: `algorithms.AdapterProposer` proposes from what is kept here. One rule a change must keep: an exception of an adapter says
nothing about the candidate (gepa's contract), so that its example is missing and never scored zero.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from flashevolve_lab.core import content_hash
from flashevolve_lab.errors import BudgetSpent, ModelError, SetupError
from flashevolve_lab.tasks.asking import asking
from flashevolve_lab.tasks.task import Asker, Components, Example, Score, Task, quick, shown

KEEP = 2_000
"""Trajectories kept, the latest used."""
NO_FEEDBACK = "(the adapter's trajectory is gone: this is what the log kept)"


class Adapter(Protocol):
    """What is used of a ``gepa.GEPAAdapter``; ``propose_new_texts`` is optional and may be None."""

    def evaluate(self, batch: list[Any], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        """An ``EvaluationBatch``: outputs, scores, trajectories, objective_scores, num_metric_calls."""
        ...

    def make_reflective_dataset(self, candidate: dict[str, str], eval_batch: Any, components_to_update: list[str]) -> Any:
        """Component name → records as JSON."""
        ...


class ProgramFailed(Exception):
    """Raised by an adapter of ours for a program that raised ``error``: unlike other exceptions it is the candidate's doing."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True)
class Instance:
    """An example of the user's, with its place in the data: ``index`` in the train or the validation set."""

    example: Example
    split: Literal["train", "val"]
    index: int


@dataclass(frozen=True, slots=True)
class Rollout:
    """One example as an adapter evaluated it."""

    output: Any
    score: float
    trajectory: Any = None
    objectives: Mapping[str, float] | None = None
    feedback: str = ""

    def __repr__(self) -> str:
        """The output as text: what the log keeps and the lab shows."""
        return self.output if isinstance(self.output, str) else _plain(self.output)


@dataclass(frozen=True, slots=True)
class Unscored:
    """One example on which the adapter raised."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Reflected:
    """A reflective dataset for one component; ``lost``: how many rollouts are in it as the log kept them, without trajectory."""

    records: list[Mapping[str, Any]]
    lost: int


class Kept(Protocol):
    """What the log kept of a rollout (see `algorithms.Record`)."""

    @property
    def input(self) -> str: ...
    @property
    def output(self) -> str: ...
    @property
    def score(self) -> float: ...
    @property
    def feedback(self) -> str: ...
    @property
    def example(self) -> int: ...


class AdapterProgram:
    """The program of a task made from an adapter. Thread-safe as far as the adapter is."""

    def __init__(self, adapter: Adapter, *, keep: int = KEEP, one_at_a_time: bool = False) -> None:
        self.adapter = adapter
        self._keep = keep
        self._turn = threading.Lock() if one_at_a_time else contextlib.nullcontext()
        self._store: OrderedDict[tuple[str, int], Rollout] = OrderedDict()
        self._storing = threading.Lock()
        self._counted = False

    @property
    def own_proposal(self) -> Callable[..., Mapping[str, str]] | None:
        """The adapter's ``propose_new_texts``, if it has one."""
        function: Callable[..., Mapping[str, str]] | None = getattr(self.adapter, "propose_new_texts", None)
        return function

    def __call__(self, components: Components, instance: Instance, llm: Asker) -> Rollout | Unscored:
        """The adapter's evaluation of one example. Runs in a thread of the engine's."""
        try:
            with self._turn, asking(llm):
                rollout = self._evaluated(components, instance)
        except (ModelError, BudgetSpent):
            raise
        except ProgramFailed as failed:
            raise failed.error from None
        except Exception as error:
            if trouble := model_trouble(error):
                raise trouble from error
            return Unscored(error)
        if instance.split == "train" and rollout.trajectory is not None:
            self._put((content_hash(components), instance.index), rollout)
        return rollout

    def _evaluated(self, components: Components, instance: Instance) -> Rollout:
        train = instance.split == "train"
        batch = self.adapter.evaluate([instance.example], dict(components), capture_traces=train)
        output, score = _only(batch, "outputs"), _only(batch, "scores")
        trajectory = _only(batch, "trajectories") if train and getattr(batch, "trajectories", None) else None
        objectives = _only(batch, "objective_scores") if getattr(batch, "objective_scores", None) else None
        calls = getattr(batch, "num_metric_calls", None)
        if calls is not None and calls > 1 and not self._counted:
            self._counted = True
            warnings.warn(
                f"{type(self.adapter).__name__} says that one example took {calls} metric calls; the budget counts one an example",
                stacklevel=2,
            )
        return Rollout(output, float(score), trajectory, objectives, _feedback(trajectory, objectives))

    def reflective(self, components: Components, component: str, kept: Sequence[Kept], llm: Asker) -> Reflected:
        """The adapter's dataset for a component, from the trajectories of these rollouts. May block: call it in a thread.

        A rollout whose trajectory is gone (after a resume, or beyond `KEEP`) stands in it as the log kept it: nothing is run again,
        because nothing was reserved for that.
        """
        artifact = content_hash(components)
        found = [self._get((artifact, record.example)) for record in kept]
        there = [rollout for rollout in found if rollout is not None]
        records: list[Mapping[str, Any]] = []
        if there:
            with self._turn, asking(llm):
                made = self.adapter.make_reflective_dataset(dict(components), _batch(there), [component])
            records += made.get(component, ())
        lost = [record for record, rollout in zip(kept, found, strict=True) if rollout is None]
        records += [_from_log(record) for record in lost]
        return Reflected(records, len(lost))

    def proposed(
        self, function: Callable[..., Any], components: Components, component: str, dataset: Reflected, llm: Asker
    ) -> Any:
        """What a ``ProposalFn`` returns. May block: call it in a thread."""
        with self._turn, asking(llm):
            return function(dict(components), {component: dataset.records}, [component])

    def _put(self, key: tuple[str, int], rollout: Rollout) -> None:
        with self._storing:
            self._store[key] = rollout
            self._store.move_to_end(key)
            while len(self._store) > self._keep:
                self._store.popitem(last=False)

    def _get(self, key: tuple[str, int]) -> Rollout | None:
        with self._storing:
            if key in self._store:
                self._store.move_to_end(key)
            return self._store.get(key)


def task_from_adapter(
    adapter: Adapter,
    *,
    trainset: Any,
    seed_candidate: Mapping[str, str],
    valset: Any = None,
    name: str = "",
    perfect: float = 1.0,
    worst: float = 0.0,
    show: Callable[[Example], str] | None = None,
    one_at_a_time: bool = False,
    keep: int = KEEP,
) -> Task:
    """A `Task` that runs a ``gepa.GEPAAdapter`` as it is (extra ``[gepa]``).

    ``evaluate`` is called with **one example at a time, in many threads at once**: an adapter whose score of an example depends on
    the rest of its batch does not fit. Give `AdapterProposer(task)` to `GEPA` to propose as the adapter does; ``GEPA.from_gepa`` does
    all of this. Models that the adapter calls itself are neither limited nor counted, except through `ask`. An exception of
    ``evaluate`` leaves the example unscored (retried, and after many in a row the run ends and says why). Adapter state
    (``get_adapter_state``) is not kept over a resume.

    Args:
        adapter: Any object with ``evaluate`` and ``make_reflective_dataset``.
        trainset, valset: Lists, or data loaders of gepa's, which are read once. Without a valset the trainset is used for both.
        seed_candidate: Component name → text.
        name: Shown in the lab; by default the adapter's class.
        perfect, worst: As for `Task`.
        show: ``example -> str``, for the lab and the log.
        one_at_a_time: For an adapter that is not thread-safe (gepa itself uses one thread): no two of its calls overlap, and
            neither do proposals through it.
        keep: Trajectories kept in memory, ≥ 1, the latest used; older ones are reflected on as the log kept them.

    Raises:
        SetupError: says which argument, what was expected and what came.
    """
    for method in ("evaluate", "make_reflective_dataset"):
        if isinstance(adapter, type) or not callable(getattr(adapter, method, None)):
            raise SetupError(f"adapter: expected a GEPAAdapter object with {method}(…); got {adapter!r}")
    if not isinstance(keep, int) or keep < 1:
        raise SetupError(f"keep: expected a number of trajectories of at least 1; got {keep!r}")
    if callable(getattr(adapter, "get_adapter_state", None)):
        warnings.warn("get_adapter_state is not used: after a resume the adapter is as you pass it again", stacklevel=2)
    if importlib.util.find_spec("gepa") is None:
        raise SetupError("an adapter needs gepa: pip install 'flashevolve-lab[gepa]'")
    told = show or shown
    train = _examples(trainset, "trainset")
    return Task(
        train=_instances(train, "train"),
        val=_instances(train if valset is None else _examples(valset, "valset"), "val"),
        seed=seed_candidate,
        program=AdapterProgram(adapter, keep=keep, one_at_a_time=one_at_a_time),
        metric=_score,
        name=name or type(adapter).__name__,
        perfect=perfect,
        worst=worst,
        show=lambda instance: told(instance.example),
        parallel=1 if one_at_a_time else None,
    )


@quick
def _score(instance: Example, output: Any) -> Score:
    if isinstance(output, Unscored):
        raise output.error
    return Score(output.score, output.feedback)


def model_trouble(error: BaseException) -> ModelError | BudgetSpent | None:
    """What a model of the run did, when that is behind this exception."""
    at: BaseException | None = error
    for _ in range(20):
        if at is None or isinstance(at, (ModelError, BudgetSpent)):
            return at
        at = at.__cause__ or at.__context__
    return None


def _examples(data: Any, what: str) -> list[Any]:
    """A list, or what a data loader of gepa's holds now."""
    if callable(getattr(data, "all_ids", None)) and callable(getattr(data, "fetch", None)):
        return list(data.fetch(data.all_ids()))
    if isinstance(data, (str, bytes, Mapping)) or not isinstance(data, Sequence):
        raise SetupError(f"{what}: expected a list of examples or a gepa DataLoader; got {type(data).__name__}")
    if not data:
        raise SetupError(f"{what}: expected at least one example; got none")
    return list(data)


def _instances(examples: Sequence[Any], split: Literal["train", "val"]) -> list[Instance]:
    return [Instance(example, split, index) for index, example in enumerate(examples)]


def _only(batch: Any, name: str) -> Any:
    """The one entry of an evaluation of one example."""
    values = getattr(batch, name, None)
    try:
        count = len(values)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"evaluate must return an EvaluationBatch with {name}, one for each example; got {type(values).__name__}"
        ) from None
    if count != 1:
        raise ValueError(f"evaluate was given 1 example and returned {count} {name}")
    return values[0]  # type: ignore[index]


def _batch(rollouts: Sequence[Rollout]) -> Any:
    """The rollouts as the adapter's ``make_reflective_dataset`` takes them."""
    from gepa.core.adapter import EvaluationBatch

    objectives = [dict(rollout.objectives) for rollout in rollouts if rollout.objectives is not None]
    return EvaluationBatch(
        outputs=[rollout.output for rollout in rollouts],
        scores=[rollout.score for rollout in rollouts],
        trajectories=[rollout.trajectory for rollout in rollouts],
        objective_scores=objectives if len(objectives) == len(rollouts) else None,
    )


def _feedback(trajectory: Any, objectives: Mapping[str, float] | None) -> str:
    """What the log can keep as feedback: what the trajectory calls so, and the scores of its objectives."""
    said = (
        trajectory.get("feedback", trajectory.get("Feedback", ""))
        if isinstance(trajectory, Mapping)
        else getattr(trajectory, "feedback", "")
    )
    parts = [said] if isinstance(said, str) and said else []
    parts += [f"{name}: {value:g}" for name, value in (objectives or {}).items()]
    return "\n".join(parts)


def _from_log(record: Kept) -> Mapping[str, Any]:
    """A rollout of which only the log knows, in gepa's words."""
    said = record.feedback or NO_FEEDBACK
    return {"Inputs": record.input, "Generated Outputs": record.output, "Feedback": f"{said}\nScore: {record.score:g}"}


def _plain(output: Any) -> str:
    """A dictionary with one text in it is that text; anything else as Python shows it."""
    if isinstance(output, Mapping) and len(output) == 1 and isinstance(text := next(iter(output.values())), str):
        return text
    return repr(output)
