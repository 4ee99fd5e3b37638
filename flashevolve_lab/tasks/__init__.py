"""What is evolved against: data sets, programs, metrics with feedback."""

from flashevolve_lab.tasks.simulated import simulated_task
from flashevolve_lab.tasks.task import (
    PROGRAM_FAILED,
    Asker,
    Components,
    Example,
    Metric,
    Program,
    Prompt,
    Score,
    Task,
    quick,
    scored,
    shown,
)

__all__ = [
    "PROGRAM_FAILED", "Asker", "Components", "Example", "Metric", "Program", "Prompt", "Score", "Task", "quick", "scored", "shown", "simulated_task",
]  # fmt: skip
