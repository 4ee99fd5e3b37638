"""What the work of a stage may use: the protocol the engine gives to every job.

Owns `Bench`, `Worker` and `Trouble`. One rule a change must keep: work reports what happened and never decides what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from flashevolve_lab.core import Algorithm, Item, RunState, Sample
from flashevolve_lab.errors import LabError
from flashevolve_lab.tasks import Asker, Task


class Trouble(LabError):
    """A job could not do its work. ``kind`` names the sort; ``again``: the same work is worth another try."""

    def __init__(self, kind: str, message: str, *, raw: str = "", again: bool = False) -> None:
        super().__init__(message)
        self.kind = kind
        self.raw = raw
        self.again = again


class Bench(Protocol):
    """A job's view of the run."""

    @property
    def state(self) -> RunState:
        """The state now. Look, do not touch."""
        ...

    @property
    def item(self) -> Item:
        """The item this job works on."""
        ...

    @property
    def also(self) -> Sequence[Item]:
        """Further items this job works on together with it (a join)."""
        ...

    @property
    def first(self) -> Sequence[int]:
        """The examples of this job's speculative prefix: to be scored first."""
        ...

    def release(self, result: Mapping[str, Any], why: str) -> None:
        """Hand the item on with this partial result. The job goes on with its tail in the same slot; what it returns is recorded."""
        ...

    async def late(self, most: int) -> tuple[str, ...]:
        """Open a window: the late reflections on the item's component that it takes in (raw replies), ``most`` at most."""
        ...

    async def score(self, artifact: str, split: str, examples: Sequence[int]) -> dict[int, Sample]:
        """Run and score an artifact on examples of ``"train"`` or ``"val"``, all at once; those that failed are missing."""
        ...

    def asker(self, role: str, key: str) -> Asker:
        """A way to call the model of this role; ``key`` names the call inside this job."""
        ...

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A function of the user's, in a thread when it is not async."""
        ...

    def draw(self, use: str) -> Random:
        """A random stream keyed by the run's seed, the item and this use."""
        ...


class Worker(Algorithm, Protocol):
    """An algorithm bound to a task: its pure rules, and the work of its stages."""

    async def work(self, stage: str, bench: Bench) -> Mapping[str, Any]:
        """Do the work of a stage. Raises `Trouble` when it cannot."""
        ...


class Plan(Protocol):
    """An algorithm as the user writes it: settings, bound to a task when a run starts."""

    def bind(self, task: Task, seed: int) -> Worker:
        """The algorithm for this task. Raises `SetupError` when they do not fit."""
        ...

    def describe(self) -> dict[str, Any]:
        """JSON-able facts for the log."""
        ...

    def forecast(self, task: Task, budget: Mapping[str, float]) -> tuple[float, str]:
        """How many proposals the budget allows, and how that was reckoned, in words."""
        ...
