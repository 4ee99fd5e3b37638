"""FlashEvolve Lab: asynchronous evolution of LLM agents' text, watched and steered from a notebook.

import flashevolve_lab as lab
run = lab.start(task, llm=lab.OpenAI(url, model=name), budget=lab.Budget(metric_calls=2_000))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flashevolve_lab.algorithms import (
    GEPA,
    AdapterProposer,
    Brief,
    Draft,
    MapReduce,
    Merge,
    Proposer,
    Record,
    Reflect,
    Rejected,
)
from flashevolve_lab.core import Acceptance, Change, Gate, Load, Pace, Partial, Ruling, StaleItem, Starts, Verdict
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
    FunctionModel,
    IndependentRules,
    Limits,
    NoModel,
    OpenAI,
    Reply,
    Request,
    Simulated,
    UnitingRules,
)
from flashevolve_lab.policies import (
    Batched,
    Complete,
    Fixed,
    Full,
    Guarded,
    Pipelined,
    RateBalanced,
    Reflective,
    Repeated,
    Sequential,
    ServerAware,
    Speculative,
    Strict,
    Tolerant,
)
from flashevolve_lab.runs import FLASHEVOLVE, Best, Budget, Run, Status, compare, resume, start
from flashevolve_lab.runs import list_runs as runs
from flashevolve_lab.runs import open_run as open
from flashevolve_lab.tasks import Prompt, Score, Task, ask, quick, simulated_task, task_from_adapter

if TYPE_CHECKING:
    from flashevolve_lab.algorithms.bank import InstructionBank
    from flashevolve_lab.llm.local import local_model
    from flashevolve_lab.llm.simulated_server import simulated_server
    from flashevolve_lab.llm.vllm import vllm
    from flashevolve_lab.runs.showing import dashboard
    from flashevolve_lab.tasks.datasets import load_task
    from flashevolve_lab.tasks.from_dspy import best_program, task_from_dspy
    from flashevolve_lab.views import batched_runtime

_ON_USE = {
    "dashboard": "flashevolve_lab.runs.showing",
    "InstructionBank": "flashevolve_lab.algorithms.bank",
    "batched_runtime": "flashevolve_lab.views",
    "load_task": "flashevolve_lab.tasks.datasets",
    "local_model": "flashevolve_lab.llm.local",
    "best_program": "flashevolve_lab.tasks.from_dspy",
    "task_from_dspy": "flashevolve_lab.tasks.from_dspy",
    "simulated_server": "flashevolve_lab.llm.simulated_server",
    "vllm": "flashevolve_lab.llm.vllm",
}


def __getattr__(name: str) -> Any:
    """Names whose modules are loaded at their first use, so that importing the package stays light."""
    if name not in _ON_USE:
        raise AttributeError(f"module 'flashevolve_lab' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_ON_USE[name]), name)


__all__ = [
    "FLASHEVOLVE", "MapReduce", "Tolerant", "Strict", "Repeated", "Rejected", "Merge", "Gate", "Acceptance", "GEPA", "AdapterProposer", "FunctionModel", "NoModel", "LLM", "BadReply", "Batched", "Batching", "Best", "Brief", "Budget", "BudgetSpent", "Change", "Complete", "ConflictingRules", "Draft",
    "Faults", "Fixed", "FixedLatency", "Full", "Guarded", "IndependentRules", "InstructionBank", "InvariantError", "LabError", "Limits", "Load", "LogError",
    "ModelError", "OpenAI", "Pace", "Partial", "Pipelined", "Prompt", "Proposer", "RateBalanced", "RateLimited", "Record", "Reflect", "Reflective", "Refused", "Reply",
    "Request", "Ruling", "Run", "RunError", "Scaled", "Score", "Sequential", "ServerAware", "SetupError", "Simulated", "Speculative", "StaleItem", "Starts", "Status",
    "Task", "Transient", "UnitingRules", "Verdict", "Virtual", "Wall", "batched_runtime", "ask", "best_program", "compare", "dashboard", "load_task", "local_model", "open", "quick", "resume", "runs", "simulated_server", "simulated_task", "task_from_adapter", "task_from_dspy", "start", "vllm",
]  # fmt: skip
