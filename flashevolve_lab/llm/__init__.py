"""The model seam: OpenAI-compatible servers, the gateway in front of them, local servers, and the simulator."""

from flashevolve_lab.llm.function import FunctionModel, NoModel
from flashevolve_lab.llm.gateway import Gateway, Ledger, Limits
from flashevolve_lab.llm.landscapes import ConflictingRules, IndependentRules, Landscape, UnitingRules
from flashevolve_lab.llm.openai import OpenAI
from flashevolve_lab.llm.seam import LLM, Reply, Request, chat
from flashevolve_lab.llm.simulator import Batching, Faults, FixedLatency, Simulated

__all__ = [
    "LLM", "Batching", "ConflictingRules", "Faults", "FixedLatency", "FunctionModel", "Gateway", "IndependentRules", "Landscape", "Ledger",
    "Limits", "NoModel", "OpenAI", "Reply", "Request", "Simulated", "UnitingRules", "chat",
]  # fmt: skip
