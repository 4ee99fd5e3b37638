"""FlashEvolve Lab: asynchronous evolution of LLM agents' text, watched and steered from a notebook.

import flashevolve_lab as lab
run = lab.start(task, llm=lab.OpenAI(url, model=name), budget=lab.Budget(metric_calls=2_000))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashevolve_lab.algorithms import GEPA, Brief, Draft, Proposer, Record, Reflect
from flashevolve_lab.core import Pace, StaleItem, Starts, Verdict
from flashevolve_lab.engine import Scaled, Virtual, Wall
from flashevolve_lab.errors import (
    BadReply,
    BudgetSpent,
    InvariantError,
    LabError,
    LogError,
    ModelError,
    RateLimited,
    Refused,
    RunError,
    SetupError,
    Transient,
)
from flashevolve_lab.llm import (
    LLM,
    Batching,
    ConflictingRules,
    Faults,
    FixedLatency,
    IndependentRules,
    Limits,
    OpenAI,
    Reply,
    Request,
    Simulated,
    UnitingRules,
)
from flashevolve_lab.policies import Batched, Full, Guarded, Pipelined, Reflective, Sequential
from flashevolve_lab.runs import Best, Budget, Run, Status, compare, resume, start
from flashevolve_lab.runs import list_runs as runs
from flashevolve_lab.runs import open_run as open
from flashevolve_lab.tasks import Prompt, Score, Task, quick, simulated_task

if TYPE_CHECKING:
    from flashevolve_lab.algorithms.bank import InstructionBank
    from flashevolve_lab.llm.local import local_model
    from flashevolve_lab.llm.simulated_server import simulated_server
    from flashevolve_lab.runs.showing import dashboard
    from flashevolve_lab.tasks.datasets import load_task

_ON_USE = {
    "dashboard": "flashevolve_lab.runs.showing",
    "InstructionBank": "flashevolve_lab.algorithms.bank",
    "load_task": "flashevolve_lab.tasks.datasets",
    "local_model": "flashevolve_lab.llm.local",
    "simulated_server": "flashevolve_lab.llm.simulated_server",
}


def __getattr__(name: str) -> Any:
    """Names whose modules are loaded at their first use, so that importing the package stays light."""
    if name not in _ON_USE:
        raise AttributeError(f"module 'flashevolve_lab' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_ON_USE[name]), name)


__all__ = [
    "GEPA", "LLM", "BadReply", "Batched", "Batching", "Best", "Brief", "Budget", "BudgetSpent", "ConflictingRules", "Draft",
    "Faults", "FixedLatency", "Full", "Guarded", "IndependentRules", "InstructionBank", "InvariantError", "LabError", "Limits", "LogError",
    "ModelError", "OpenAI", "Pace", "Pipelined", "Prompt", "Proposer", "RateLimited", "Record", "Reflect", "Reflective", "Refused", "Reply",
    "Request", "Run", "RunError", "Scaled", "Score", "Sequential", "SetupError", "Simulated", "StaleItem", "Starts", "Status",
    "Task", "Transient", "UnitingRules", "Verdict", "Virtual", "Wall", "compare", "dashboard", "load_task", "local_model", "open", "quick", "resume", "runs", "simulated_server", "simulated_task", "start",
]  # fmt: skip
