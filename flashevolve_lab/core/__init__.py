"""The truth about a run, pure: values, events, state, and the two questions `decide` and `plan`."""

from flashevolve_lab.core import events, inputs
from flashevolve_lab.core.artifacts import (
    DIMENSIONS,
    NOTHING,
    Acceptance,
    Artifact,
    Brought,
    Change,
    Gate,
    Item,
    Job,
    Load,
    NewItem,
    Pace,
    Partial,
    Rejection,
    Ruling,
    Sample,
    ServerLoad,
    Situation,
    Spend,
    StageLoad,
    StaleItem,
    Starts,
    Verdict,
    content_hash,
)
from flashevolve_lab.core.draws import draw
from flashevolve_lab.core.events import SCHEMA, Entry, Event, decode, encode
from flashevolve_lab.core.gating import is_strict, strictly
from flashevolve_lab.core.graph import (
    Accepting,
    Algorithm,
    Commit,
    Graph,
    Route,
    Rules,
    Schedule,
    Stage,
    Staleness,
    Trial,
    Workers,
)
from flashevolve_lab.core.meters import Meters
from flashevolve_lab.core.population import Member, Population
from flashevolve_lab.core.state import RunState, apply, check
from flashevolve_lab.core.step import REFUSALS, decide, plan

__all__ = [
    "DIMENSIONS", "NOTHING", "REFUSALS", "SCHEMA", "Acceptance", "Accepting", "Algorithm", "Artifact", "Brought", "Change", "Commit", "Entry", "Event", "Gate", "Graph", "Item", "Job",
    "Load", "Member", "Meters", "NewItem", "Pace", "Partial", "Population", "Rejection", "Route", "Rules", "Ruling", "RunState", "Sample", "Schedule", "ServerLoad", "Situation", "Spend",
    "Stage", "StageLoad", "StaleItem", "Staleness", "Starts", "Trial", "Verdict", "Workers", "apply", "check", "content_hash", "decide", "decode", "draw",
    "encode", "events", "inputs", "is_strict", "plan", "strictly",
]  # fmt: skip
