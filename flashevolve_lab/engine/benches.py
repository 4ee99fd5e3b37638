"""A job's view of the run: scoring examples side by side, asking models, keyed draws (see `algorithms.Bench`).

Owns the containment of a user's program and metric: whatever they do, the outcome is a scored or an unscored sample. A program
that fails is the candidate's doing and scores the task's worst value, with the error as feedback; a metric that fails, or a
provider, says nothing about the candidate and leaves the sample missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from flashevolve_lab.core import Item, Job, RunState, Sample, draw
from flashevolve_lab.core import inputs as on
from flashevolve_lab.engine.calling import JobAsker
from flashevolve_lab.errors import BudgetSpent, ModelError
from flashevolve_lab.tasks import scored

if TYPE_CHECKING:
    from flashevolve_lab.engine.shell import Shell


class JobBench:
    """What one running job may use."""

    def __init__(self, shell: Shell, job: Job, item: Item) -> None:
        self._shell = shell
        self._job = job
        self._item = item
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

    def asker(self, role: str, key: str) -> JobAsker:
        """A way to call a role's model."""
        return JobAsker(self._shell, self._job.id, self._priority, role, key)

    def draw(self, use: str) -> Random:
        """A random stream of this item and use."""
        assert self.state.started is not None
        return draw(self.state.started.seed, self._item.id, use)

    async def score(self, artifact: str, split: str, examples: Sequence[int]) -> dict[int, Sample]:
        """All examples at once; those that could not be scored are missing. Raises `BudgetSpent` after the others are done."""
        runs = [self._sample(artifact, split, example) for example in examples]
        done = await asyncio.gather(*runs, return_exceptions=True)
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
        return {e: s for e, s in zip(examples, done, strict=True) if isinstance(s, Sample)}

    async def _sample(self, artifact: str, split: str, example: int) -> Sample | None:
        try:
            async with asyncio.timeout(self._shell.sample_timeout_s):
                sample = await self._run(artifact, split, example)
        except BudgetSpent:
            raise
        except ModelError as error:
            return self._unscored(artifact, split, example, error.kind, str(error))
        except TimeoutError:
            limit = f"the program and the metric took more than {self._shell.sample_timeout_s:g} s on one example"
            return self._unscored(artifact, split, example, "timeout", limit)
        except _MetricFailed as error:
            return self._unscored(artifact, split, example, "metric", str(error))
        given = on.Scored(self._job.id, artifact, split, example, sample.score, sample.output, sample.feedback)
        self._shell.post(given)
        return sample

    async def _run(self, artifact: str, split: str, example: int) -> Sample:
        task = self._shell.task
        data = (task.train if split == "train" else task.val)[example]
        asker = self.asker("task", f"{split}:{example}")
        components = self.state.artifacts[artifact].components
        try:
            output = await self._shell.places.call(task.program, components, data, asker)
        except (ModelError, BudgetSpent, TimeoutError):
            raise
        except Exception as error:
            return Sample(task.worst, "", f"The program failed: {type(error).__name__}: {error}")
        try:
            judged = scored(await self._shell.places.call(task.metric, data, output))
        except TimeoutError:
            raise
        except Exception as error:
            raise _MetricFailed(f"the metric failed: {type(error).__name__}: {error}") from error
        return Sample(judged.value, _text(output), judged.feedback)

    def _unscored(self, artifact: str, split: str, example: int, kind: str, message: str) -> None:
        self._shell.post(on.Unscored(self._job.id, artifact, split, example, kind, message[:2000]))


class _MetricFailed(Exception):
    pass


def _text(output: Any) -> str:
    return output if isinstance(output, str) else repr(output)
