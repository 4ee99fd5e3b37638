"""What is evolved against: data sets, programs, metrics with feedback."""

from flashevolve_lab.tasks.asking import ask, asking
from flashevolve_lab.tasks.from_gepa import AdapterProgram, ProgramFailed, Reflected, model_trouble, task_from_adapter
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
    "PROGRAM_FAILED", "AdapterProgram", "Asker", "Components", "Example", "Metric", "Program", "ProgramFailed", "Prompt", "Reflected", "Score",
    "Task", "ask", "asking", "model_trouble", "quick", "scored", "shown", "simulated_task", "task_from_adapter",
]  # fmt: skip
