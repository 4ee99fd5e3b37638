"""The task that belongs to a simulated model: its examples, its start, its metric.

Owns `simulated_task`. The landscape itself, and who answers, live in `llm`. One rule a change must keep: train and
validation examples never share a number, and nothing here depends on who serves the landscape, in process or over HTTP.
"""

from __future__ import annotations

from typing import Any

from flashevolve_lab.llm.landscapes import Landscape
from flashevolve_lab.tasks.task import Example, Prompt, Task, quick


def simulated_task(landscape: Landscape, n_train: int = 100, n_val: int = 100, *, max_tokens: int = 512) -> Task:
    """A `Task` on a landscape, for `llm.Simulated(landscape)` or a `llm.simulated_server(landscape)`.

    Args:
        landscape: What the simulated model knows.
        n_train: Number of training examples, ≥ 1 (numbers 0 …).
        n_val: Number of validation examples, ≥ 1 (numbers ``n_train`` …).
        max_tokens: Bound of an answer. Answers are a few tokens long under `FixedLatency`, but long-tailed under
            `Batching`, where what exceeds the bound is cut and then wrong.

    Raises:
        SetupError: when a set would be empty.
    """

    @quick
    def metric(example: Example, output: Any) -> Any:
        return landscape.metric(example, output)

    return Task(
        train=landscape.examples(n_train),
        val=landscape.examples(n_val, n_train),
        seed=landscape.seed_prompt,
        program=Prompt(max_tokens=max_tokens),
        metric=metric,
        name=f"simulated: {type(landscape).__name__}",
    )
