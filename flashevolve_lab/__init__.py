"""FlashEvolve Lab: asynchronous evolution of LLM agents' text, watched and steered from a notebook.

    import flashevolve_lab as lab
    run = lab.start(task, llm=lab.OpenAI(url, model=name), budget=lab.Budget(metric_calls=2_000))
"""

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
from flashevolve_lab.policies import Batched, Full, Guarded, Pipelined, Sequential
from flashevolve_lab.runs import Best, Budget, Run, Status, start
from flashevolve_lab.runs import list_runs as runs
from flashevolve_lab.runs import open_run as open
from flashevolve_lab.tasks import Prompt, Score, Task, quick, simulated_task

__all__ = [
    "GEPA", "LLM", "BadReply", "Batched", "Batching", "Best", "Brief", "Budget", "BudgetSpent", "ConflictingRules", "Draft",
    "Faults", "FixedLatency", "Full", "Guarded", "IndependentRules", "InvariantError", "LabError", "Limits", "LogError",
    "ModelError", "OpenAI", "Pace", "Pipelined", "Prompt", "Proposer", "RateLimited", "Record", "Reflect", "Refused", "Reply",
    "Request", "Run", "RunError", "Scaled", "Score", "Sequential", "SetupError", "Simulated", "StaleItem", "Starts", "Status",
    "Task", "Transient", "UnitingRules", "Verdict", "Virtual", "Wall", "open", "quick", "runs", "simulated_task", "start",
]  # fmt: skip
