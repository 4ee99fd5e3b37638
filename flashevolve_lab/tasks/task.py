"""What is evolved against: data, a program and a metric, checked before anything is spent.

Owns `Task`, `Prompt` and `Score`. Knows nothing of algorithms, queues or budgets. One rule a change must keep: an example, a
program and a metric are the user's own objects, and are never copied, mutated or evaluated as code.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from flashevolve_lab.errors import SetupError
from flashevolve_lab.llm.seam import Message, Reply

Example = Any
Components = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Score:
    """One judged answer. ``value``: higher is better, normally in [0, 1]. ``feedback``: what the reflection gets to read."""

    value: float
    feedback: str = ""


class Asker(Protocol):
    """How a program talks to the task model. Every call is limited, retried, charged and recorded by the run."""

    @property
    def context_tokens(self) -> int | None:
        """The model's context in tokens (prompt and answer together), where it is known."""
        ...

    async def complete(
        self,
        messages: str | Sequence[Message],
        *,
        system: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
        choices: Sequence[str] = (),
    ) -> Reply:
        """One chat call from an ``async`` program."""
        ...

    def ask(self, messages: str | Sequence[Message], **options: Any) -> str:
        """The same from a plain (synchronous) program, which runs in a thread: blocks and returns the text."""
        ...


PROGRAM_FAILED = "The program failed: "  # how the feedback begins on an example on which the program raised
F = TypeVar("F", bound=Callable[..., Any])


def quick(function: F) -> F:
    """Mark a synchronous metric or program as taking microseconds: it then runs on the engine's loop instead of a thread."""
    function.quick = True  # type: ignore[attr-defined]
    return function


Program = Callable[[Components, Example, Asker], Any | Awaitable[Any]]
Metric = Callable[[Example, Any], Any]


@dataclass(frozen=True, slots=True)
class Prompt:
    """The simplest program: the component is the system message, a field of the example the user message.

    Args:
        input: Name of the example's field that holds the user message.
        component: Name of the evolved component used as the system message.
        max_tokens: Upper bound of the answer's length in tokens.
        temperature: Sampling temperature; 0 makes scores repeatable.
        choices: Allowed answers, for servers with constrained decoding.
    """

    input: str = "input"
    component: str = "prompt"
    max_tokens: int = 256
    temperature: float | None = 0.0
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.max_tokens, int) or isinstance(self.max_tokens, bool) or self.max_tokens < 1:
            raise SetupError(f"Prompt(max_tokens=…): expected an integer of at least 1; got {self.max_tokens!r}")
        if self.temperature is not None and not (isinstance(self.temperature, (int, float)) and self.temperature >= 0):
            raise SetupError(f"Prompt(temperature=…): expected a number of at least 0, or None; got {self.temperature!r}")

    async def __call__(self, components: Components, example: Example, llm: Asker) -> str:
        reply = await llm.complete(
            str(example[self.input]),
            system=components[self.component],
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            choices=self.choices,
        )
        return reply.text


@dataclass(frozen=True)
class Task:
    """A data set, a program and a metric.

    Args:
        train: Examples that minibatches are drawn from (any objects; a mapping is usual). At least one.
        val: Examples every committed artifact is scored on. At least one.
        seed: The starting artifact: component name → text; a plain string means one component ``"prompt"``.
        program: ``(components, example, llm) -> output``, sync or async; `Prompt` is the simplest.
        metric: ``(example, output) -> value``, ``(value, feedback)`` or `Score`; sync (runs in a thread) or async.
        name: Shown in the lab and in run names.
        perfect: The value that cannot be beaten; minibatches where the parent already has it everywhere are skipped.
        worst: The value of an example on which the program itself failed.
        show: ``example -> str``: how an example is shown to the reflection and in the lab.
        parallel: Programs that run at once at most, for one that is not thread-safe; None: as many as there is work. The wait
            for a turn does not count against ``sample_timeout_s``.

    Raises:
        SetupError: says which part is missing or has the wrong type, what was expected and what came.
    """

    train: Sequence[Example]
    val: Sequence[Example]
    seed: Mapping[str, str] | str
    program: Program
    metric: Metric
    name: str = "task"
    perfect: float = 1.0
    worst: float = 0.0
    show: Callable[[Example], str] = field(default=lambda example: shown(example))
    parallel: int | None = None

    def __post_init__(self) -> None:
        seed = {"prompt": self.seed} if isinstance(self.seed, str) else self.seed
        object.__setattr__(self, "seed", _checked_seed(seed))
        for name in ("train", "val"):
            _check_examples(name, getattr(self, name))
        for name, signature in (("program", "(components, example, llm)"), ("metric", "(example, output)")):
            _check_callable(name, getattr(self, name), signature)
        _check_callable("show", self.show, "(example)")
        if not isinstance(self.name, str):
            raise SetupError(f"name: expected a text; got {self.name!r}")
        for name in ("perfect", "worst"):
            if not isinstance(getattr(self, name), (int, float)) or not math.isfinite(getattr(self, name)):
                raise SetupError(f"{name}: expected a finite number; got {getattr(self, name)!r}")
        number = isinstance(self.parallel, int) and not isinstance(self.parallel, bool)
        if self.parallel is not None and not (number and self.parallel >= 1):
            raise SetupError(f"parallel: expected a number of programs of at least 1, or None; got {self.parallel!r}")
        if isinstance(self.program, Prompt):
            _check_prompt(self.program, self.components, self.train, self.val)

    @property
    def components(self) -> Mapping[str, str]:
        """The seed as component name → text."""
        assert isinstance(self.seed, Mapping)
        return self.seed

    def fingerprint(self) -> dict[str, str]:
        """Hashes by which a resume recognises the same task: its train set, its validation set and its seed."""
        digest = {name: _digest(self._shown(name)) for name in ("train", "val")}
        return {**digest, "seed": _digest(sorted(self.components.items())), "name": self.name}

    def _shown(self, split: str) -> list[str]:
        texts: list[str] = []
        for i, example in enumerate(getattr(self, split)):
            try:
                texts.append(self.show(example))
            except Exception as error:
                raise SetupError(f"show: it fails on {split} example {i}: {type(error).__name__}: {error}") from error
        return texts


def shown(example: Example) -> str:
    """An example as text: the fields of a mapping line by line, anything else by ``str``."""
    if isinstance(example, Mapping):
        return "\n".join(f"{key}: {value}" for key, value in example.items())
    return str(example)


def scored(judged: Any) -> Score:
    """A metric's return value as a `Score`.

    Raises:
        SetupError: for NaN, infinities, wrong types or wrong lengths; says what came and what is expected.
    """
    expected = "a metric returns a number, (number, feedback text) or lab.Score"
    value, feedback = judged, ""
    if isinstance(judged, Score):
        value, feedback = judged.value, judged.feedback
    elif isinstance(judged, tuple):
        if len(judged) != 2:
            raise SetupError(f"{expected}; it returned a tuple of {len(judged)}")
        value, feedback = judged
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise SetupError(f"{expected}; it returned {type(value).__name__}") from error
    if isinstance(value, str) or not math.isfinite(number):
        raise SetupError(f"{expected}; it returned {value!r}")
    return Score(number, "" if feedback is None else str(feedback))


def _checked_seed(seed: Any) -> dict[str, str]:
    if not isinstance(seed, Mapping) or not seed:
        raise SetupError(f"seed: expected a text, or a mapping of component name → text; got {type(seed).__name__}")
    for key, text in seed.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise SetupError(f"seed: component {key!r} must map a name to a text; got {type(text).__name__}")
    return dict(seed)


def _check_examples(name: str, examples: Any) -> None:
    if isinstance(examples, (str, bytes, Mapping)) or not isinstance(examples, Sequence):
        raise SetupError(
            f"{name}: expected a list of examples; got {type(examples).__name__}. A data frame: .to_dict('records')"
        )
    if not examples:
        raise SetupError(f"{name}: expected at least one example; got none. Check the path or the filter that made it.")


def _check_callable(name: str, function: Any, signature: str) -> None:
    if not callable(function):
        raise SetupError(f"{name}: expected a function {signature}; got {type(function).__name__}")
    try:
        parameters = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        parameters.bind(*[None] * (signature.count(",") + 1))
    except TypeError as error:
        raise SetupError(f"{name}: expected a function {signature}; this one has the signature {parameters}") from error


def _check_prompt(program: Prompt, components: Components, *splits: Sequence[Example]) -> None:
    if program.component not in components:
        raise SetupError(f"Prompt(component={program.component!r}) is not in the seed, which has {sorted(components)}")
    for examples in splits:
        for i, example in enumerate(examples):
            if not isinstance(example, Mapping) or program.input not in example:
                has = sorted(example) if isinstance(example, Mapping) else type(example).__name__
                raise SetupError(f"Prompt(input={program.input!r}): example {i} has no such field; it has {has}")


def _digest(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
