"""A job's view of the run: scoring examples side by side, asking models, keyed draws (see `algorithms.Bench`).

Owns the containment of a user's program and metric: whatever they do, the outcome is a scored or an unscored sample. A program
that fails is the candidate's doing and scores the task's worst value, with the error as feedback; a metric that fails, or a
provider, says nothing about the candidate and leaves the sample missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from flashevolve_lab.core import Item, Job, RunState, Sample, draw
from flashevolve_lab.core import events as ev
from flashevolve_lab.core import inputs as on
from flashevolve_lab.engine.calling import JobAsker, Patience
from flashevolve_lab.engine.places import words
from flashevolve_lab.errors import BudgetSpent, ModelError
from flashevolve_lab.tasks import PROGRAM_FAILED, scored

if TYPE_CHECKING:
    from flashevolve_lab.engine.shell import Shell


class JobBench:
    """What one running job may use. ``patience``: how long its own work may take, model calls and scoring not counted."""

    def __init__(self, shell: Shell, job: Job, item: Item, patience: Patience) -> None:
        self._shell = shell
        self._job = job
        self._item = item
        self._also = tuple(shell.state.items[one] for one in job.also)
        self._patience = patience
        stages = shell.worker.graph.names
        self._priority = (len(stages) - stages.index(job.stage)) * 1e9 + int(job.id[1:])

    @property
    def state(self) -> RunState:
        """The state now."""
        return self._shell.state

    @property
    def item(self) -> Item:
        """The item this job works on."""
        return self._item

    @property
    def also(self) -> Sequence[Item]:
        """Further items this job works on."""
        return self._also

    @property
    def first(self) -> Sequence[int]:
        """The examples of this job's speculative prefix."""
        return self._job.first

    def release(self, result: Mapping[str, Any], why: str) -> None:
        """Hand the item on; this job goes on with its tail."""
        self._shell.post(on.JobReleased(self._job.id, result, why))

    async def late(self, most: int) -> tuple[str, ...]:
        """The late reflections that this item's window takes in, in the log before they are used."""
        self._shell.now(on.LateWanted(self._job.id, most))
        taken = self.state.taken.get(self._item.id, ())
        await self._shell.written()
        return taken

    def asker(self, role: str, key: str, patience: Patience | None = None) -> JobAsker:
        """A way to call a role's model."""
        return JobAsker(self._shell, self._job.id, self._priority, role, key, patience or self._patience)

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A user's function: on the loop when it is async, in a thread when it is not."""
        return await self._shell.places.call(function, *arguments)

    def draw(self, use: str) -> Random:
        """A random stream of this item and use."""
        assert self.state.started is not None
        return draw(self.state.started.seed, self._item.id, use)

    async def score(self, artifact: str, split: str, examples: Sequence[int]) -> dict[int, Sample]:
        """All examples at once; those that could not be scored are missing. Raises `BudgetSpent` after the others are done."""
        runs = [self._sample(artifact, split, example) for example in examples]
        with self._patience.stopped():  # each sample has a limit of its own
            done = await asyncio.gather(*runs, return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
        return {e: s for e, s in zip(examples, done, strict=True) if isinstance(s, Sample)}

    async def _sample(self, artifact: str, split: str, example: int) -> Sample | None:
        try:
            async with self._shell.turns, Patience(self._shell.sample_timeout_s) as patience:
                sample = await self._run(artifact, split, example, patience)
        except BudgetSpent:
            raise
        except ModelError as error:
            lost = (error.kind, words(error))
        except TimeoutError:
            lost = (
                "timeout",
                f"the program and the metric took over {self._shell.sample_timeout_s:g} s on one example, calls not counted",
            )
        except _MetricFailed as error:
            lost = ("metric", str(error))
        else:
            return self._scored(artifact, split, example, sample)
        self._shell.post(ev.SampleFailed(self._job.id, artifact, split, example, lost[0], lost[1][:2000]))
        return None

    def _scored(self, artifact: str, split: str, example: int, sample: Sample) -> Sample:
        what = (self._job.id, artifact, split, example, sample.score, sample.output, sample.feedback)
        self._shell.post(ev.SampleScored(*what, self._shell.shown(example) if split == "train" else ""))
        return sample

    async def _run(self, artifact: str, split: str, example: int, patience: Patience) -> Sample:
        task = self._shell.task
        data = (task.train if split == "train" else task.val)[example]
        asker = self.asker("task", f"{artifact}:{split}:{example}", patience)
        components = self.state.artifacts[artifact].components
        try:
            output = await self._shell.places.call(task.program, components, data, asker)
        except (ModelError, BudgetSpent):
            raise
        except Exception as error:
            if asker.outage is None:
                return Sample(task.worst, "", f"{PROGRAM_FAILED}{type(error).__name__}: {words(error)}")
        if asker.outage is not None:  # whatever the program made of it: without its model it says nothing about the candidate
            raise asker.outage
        try:
            judged = scored(await self._shell.places.call(task.metric, data, output))
        except Exception as error:
            raise _MetricFailed(f"the metric failed: {type(error).__name__}: {words(error)}") from error
        return Sample(judged.value, _text(output), judged.feedback)


class _MetricFailed(Exception):
    pass


def _text(output: Any) -> str:
    try:
        return output if isinstance(output, str) else repr(output)
    except Exception as error:
        return f"({type(output).__name__}: its repr failed: {words(error)})"
