"""What can reach the core: commands of the user, and reports of the shell. Values only; each says what happened, never what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flashevolve_lab.core.artifacts import Spend
from flashevolve_lab.core.events import CallFinished, LimitChanged, RunStarted, SampleFailed, SampleScored, ServerSeen, Warned


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a run."""

    run: RunStarted


@dataclass(frozen=True, slots=True)
class Resume:
    """Take up a run whose process is gone. ``created``: ISO time on the wall; ``llm``: role → its models."""

    created: str
    llm: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SetKnobs:
    """Change settings (knob → JSON value)."""

    values: Mapping[str, Any]
    by: str = "user"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Pause:
    """Start nothing further."""

    by: str = "user"


@dataclass(frozen=True, slots=True)
class Continue:
    """Start things again."""

    by: str = "user"


@dataclass(frozen=True, slots=True)
class Step:
    """While paused: let the next ``jobs`` jobs start."""

    jobs: int = 1
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """End the run now; what is running is abandoned, what is finished is kept. ``threads``: jobs held by a thread."""

    kind: str
    reason: str
    threads: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class JudgeByHand:
    """A person accepts (whatever the policy says later) or discards an item that has not ended."""

    item: str
    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class Inject:
    """A person's text enters at the gate, as a child of ``parent``."""

    parent: str
    components: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobDone:
    """A job's work returned."""

    job: str
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobBroke:
    """A job's work failed. ``again``: worth another try of the same work."""

    job: str
    kind: str
    message: str
    raw: str = ""
    again: bool = False


@dataclass(frozen=True, slots=True)
class JobReleased:
    """A job hands its item on with what it has, and goes on with its tail."""

    job: str
    result: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class LateWanted:
    """A job opens a window for its item's component: it takes in up to ``most`` late reflections, unless it has some already."""

    job: str
    most: int


@dataclass(frozen=True, slots=True)
class CallWanted:
    """A job wants to send one attempt; it goes only if `decide` answers with a `CallStarted`."""

    job: str
    role: str
    key: str
    attempt: int
    reserve: Spend
    request: str = ""
    prompt: str = ""
    hedge: bool = False


Report = CallFinished | SampleScored | SampleFailed | LimitChanged | ServerSeen | Warned
"""Facts the shell reports are events as they are: the core only checks that they still concern the run."""

Input = (
    Start | Resume | SetKnobs | Pause | Continue | Step | Stop | JudgeByHand | Inject | JobDone | JobBroke | JobReleased | LateWanted
    | CallWanted | Report
)  # fmt: skip
