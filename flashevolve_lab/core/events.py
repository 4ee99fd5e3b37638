"""Every event of a run, and how it becomes JSON and back.

The log is the truth: state is a fold over these. Owns the closed vocabulary and `SCHEMA`, its version. One rule a change must
keep: an event that was ever written stays readable (new fields have defaults; a changed meaning raises `SCHEMA`). Times are
not in the events but on the entry: ``at``, seconds of lab time since the run began.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from flashevolve_lab.core.artifacts import NOTHING, Origin, Spend
from flashevolve_lab.errors import LogError

SCHEMA = 1

CallOutcome = Literal["ok", "rate_limited", "transient", "refused", "bad_reply", "cancelled"]
ItemOutcome = Literal["committed", "rejected", "skipped", "refused", "failed", "discarded", "unaffordable", "cancelled", "outdone", "rolled_back", "distilled"]


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The first entry: everything a reader needs to know about the run. ``created``: ISO time on the wall, UTC."""

    run: str
    created: str
    seed: int
    clock: str
    algorithm: Mapping[str, Any]
    stages: tuple[str, ...]
    settings: Mapping[str, Any]
    budget: Mapping[str, float]
    task: Mapping[str, Any]
    llm: Mapping[str, Any]
    lab: str = ""
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True)
class RunResumed:
    """The run was taken up again by another process. ``llm``: role → its models from here on ({} in old logs: as before)."""

    created: str
    llm: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SettingChanged:
    """A knob changed mid-run. ``by``: "user", a policy's name, or "engine"."""

    knob: str
    old: Any
    new: Any
    by: str = "user"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Paused:
    """No new job and no new call from here on."""

    by: str = "user"


@dataclass(frozen=True, slots=True)
class Continued:
    """The opposite of `Paused`."""

    by: str = "user"


@dataclass(frozen=True, slots=True)
class Stepped:
    """While paused, the next ``jobs`` jobs (of ``stage``, or of any when "") may start."""

    jobs: int
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Warned:
    """Something the user should know; nothing stops."""

    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class ItemMade:
    """A new item waits in front of its first stage."""

    item: str
    kind: str
    stage: str
    base: int
    batch: int
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ItemQueued:
    """An item moved to the queue in front of a stage. ``base``: its new base version when it was rebased."""

    item: str
    stage: str
    data: Mapping[str, Any] = field(default_factory=dict)
    front: bool = False
    retry: bool = False
    base: int | None = None


@dataclass(frozen=True, slots=True)
class ItemEnded:
    """An item left the graph; its evidence stays in the log."""

    item: str
    outcome: ItemOutcome
    reason: str = ""
    artifact: str = ""


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A stage works on an item, in a numbered worker slot; ``reserved`` is set aside from the budget.

    ``first``: the examples of a speculative prefix, scored before the others. ``also``: further items it takes along (a join).
    """

    job: str
    stage: str
    slot: int
    item: str
    version: int
    reserved: Spend = NOTHING
    stepped: bool = False
    first: tuple[int, ...] = ()
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobFinished:
    """A job ended well. ``result``: the stage's own JSON facts."""

    job: str
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobFailed:
    """A job ended badly. ``kind`` names the sort of failure; ``raw`` keeps a model's text that could not be used."""

    job: str
    kind: str
    message: str
    raw: str = ""


@dataclass(frozen=True, slots=True)
class JobAbandoned:
    """No longer wanted: cancelled, or (``still_running``) a thread that cannot be killed."""

    job: str
    reason: str
    still_running: bool = False


@dataclass(frozen=True, slots=True)
class JobLost:
    """Was running when its process died."""

    job: str


@dataclass(frozen=True, slots=True)
class CallStarted:
    """One call goes to a model; ``reserved`` = its input and its ``max_tokens``. ``request``: a digest of what is sent.

    ``prompt``: the messages as text, for roles other than the task model's (a rollout's prompt is its artifact and its input).
    ``hedge``: a second call of an attempt whose first is late; both are charged.
    """

    call: str
    job: str
    role: str
    key: str
    attempt: int
    reserved: Spend
    request: str = ""
    prompt: str = ""
    hedge: bool = False


@dataclass(frozen=True, slots=True)
class CallFinished:
    """An attempt ended; ``spent`` is what is charged. ``text``: the reply, or the error."""

    call: str
    outcome: CallOutcome
    spent: Spend
    prompt_tokens: int = 0
    completion_tokens: int = 0
    finish: str = ""
    model: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class SampleScored:
    """A program ran on one example and was scored (one metric call). ``shown``: a train example as the reflection reads it."""

    job: str
    artifact: str
    split: str
    example: int
    score: float
    output: str = ""
    feedback: str = ""
    shown: str = ""


@dataclass(frozen=True, slots=True)
class SampleFailed:
    """A program could not be scored on one example (charged as a metric call). ``kind``: the sort of failure."""

    job: str
    artifact: str
    split: str
    example: int
    kind: str
    message: str


@dataclass(frozen=True, slots=True)
class ArtifactMade:
    """A new text exists; it is not in the pool yet."""

    artifact: str
    components: Mapping[str, str]
    hash: str
    parents: tuple[str, ...]
    origin: Origin
    component: str = ""
    item: str = ""


@dataclass(frozen=True, slots=True)
class Gated:
    """A child met its parent on the same minibatch. ``first``: its first verdict, which makes it count as a proposal.

    ``bound``: ``child_sum`` is the most it could still have reached, not its score (see `Proven`). ``reason``: the acceptance
    policy's, in words.
    """

    item: str
    artifact: str
    parent: str
    passed: bool
    first: bool
    parent_sum: float
    child_sum: float
    bound: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class StalenessJudged:
    """A verdict on a stale item, with everything it was based on. ``target``: what a patch is to be written for ("" otherwise)."""

    item: str
    artifact: str
    stage: str
    where: str
    base: int
    version: int
    gap: int
    touched: bool
    superseded: bool
    counterpart: str
    action: str
    reason: str
    policy: str
    why: str = ""
    target: str = ""


@dataclass(frozen=True, slots=True)
class Patched:
    """An LLM's verdict on a stale artifact, as of ``version``: accept, patch or discard, and what it said of each idea.

    ``decision`` is "update" where its reply could not be used and the item was updated instead. ``counterpart``: what it was read
    against (and a patch goes onto). ``together``: the items of one reply, in its order (() : this one alone).
    """

    item: str
    artifact: str
    counterpart: str
    decision: str
    reason: str
    ideas: tuple[str, ...]
    version: int
    together: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """The pool changed: ``artifact`` joined as ``version`` with these validation scores (example → score)."""

    version: int
    artifact: str
    item: str
    batch: int
    scores: Mapping[str, float]
    examples: int


@dataclass(frozen=True, slots=True)
class Released:
    """A job handed its item on with a partial ``result``; its tail goes on in the same slot, and what it scores is kept."""

    job: str
    result: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True, slots=True)
class LateTaken:
    """An item's window took in ``count`` reflections on its component that had come too late for the windows they were made in."""

    item: str
    component: str
    count: int


@dataclass(frozen=True, slots=True)
class Proven:
    """A job was ended early, because what it works on can no longer win whatever the rest would score.

    ``reach`` is a bound: the highest mean still possible after ``scored`` of ``wanted`` examples. It is no score, and joins none.
    """

    job: str
    item: str
    artifact: str
    stage: str
    scored: int
    wanted: int
    reach: float
    why: str


@dataclass(frozen=True, slots=True)
class Provisional:
    """The pool changed: ``artifact`` joined as ``version`` on a part of its validation (``scores`` of ``examples``).

    It may be a parent from here on, and is never the best. It stays if its full mean exceeds that of ``rival``.
    """

    version: int
    artifact: str
    item: str
    batch: int
    scores: Mapping[str, float]
    examples: int
    rival: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A provisional artifact is fully scored and stays; the version does not move."""

    artifact: str
    item: str
    scores: Mapping[str, float]
    examples: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The pool changed: a provisional artifact left it as ``version``. ``derived``: items in flight and artifacts made from it."""

    version: int
    artifact: str
    item: str
    reason: str
    derived: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DepthChanged:
    """The effective depth moved: against livelock, or (``by`` a schedule's name) as a schedule finds its own."""

    old: int
    new: int
    why: str
    by: str = ""


@dataclass(frozen=True, slots=True)
class SlotsChanged:
    """A worker policy (``by``) gave a stage, whose slots nobody set by hand, so many."""

    stage: str
    old: int
    new: int
    why: str
    by: str


@dataclass(frozen=True, slots=True)
class WorkersReviewed:
    """A review of slots and depth, after so many ``seconds``; what it changed follows.

    ``busy``: share of the server in use; ``rates``: stage → jobs finished a minute; ``waiting``: stage → items in front of it.
    ``wishes``: stage, "depth" or "concurrency" → +1 or -1, which patience may still hold back.
    """

    policy: str
    seconds: float
    busy: float
    in_flight: float
    rates: Mapping[str, float]
    waiting: Mapping[str, float]
    wishes: Mapping[str, int]
    accepted: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class LimitChanged:
    """The calls in flight that a server is given moved (429, missed deadlines, recovery)."""

    endpoint: str
    old: int
    new: int
    why: str


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """What a server said of itself: requests in service, requests waiting, share of its KV cache in use (0..1, None: not told).

    ``facts``: its other counters by name, as it counts them (since its own start).
    """

    endpoint: str
    running: float
    waiting: float
    kv_cache: float | None = None
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunStopped:
    """The last entry of a run (until it is resumed). ``kind``: budget, user, done, failures, error."""

    kind: str
    reason: str


Event = (
    RunStarted | RunResumed | SettingChanged | Paused | Continued | Stepped | Warned | ItemMade | ItemQueued | ItemEnded
    | JobStarted | JobFinished | JobFailed | JobAbandoned | JobLost | CallStarted | CallFinished | SampleScored | SampleFailed
    | ArtifactMade | Gated | StalenessJudged | Patched | Committed | Released | LateTaken | Proven | Provisional | Confirmed | RolledBack
    | DepthChanged | SlotsChanged | WorkersReviewed | LimitChanged | ServerSeen | RunStopped
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log: its number (from 1), seconds of lab time since the run began, and the event."""

    seq: int
    at: float
    event: Event


KINDS: Mapping[str, type[Event]] = {cls.__name__: cls for cls in get_args(Event)}
_NAMES = {cls: tuple(f.name for f in fields(cls)) for cls in KINDS.values()}


def encode(event: Event) -> tuple[str, dict[str, Any]]:
    """The event's kind and its fields as JSON-able values."""
    body = {name: getattr(event, name) for name in _NAMES[type(event)]}
    for name, value in body.items():
        if type(value) is Spend:
            body[name] = [value.metric_calls, value.llm_calls, value.tokens, value.dollars, value.proposals]
    return type(event).__name__, body


def decode(kind: str, body: Mapping[str, Any]) -> Event:
    """The event back from what `encode` gave and JSON preserved.

    Raises:
        LogError: for a kind or a field this version does not know.
    """
    cls = KINDS.get(kind)
    if cls is None:
        raise LogError(
            f"the log has an event of kind {kind!r}, which this version does not know; install a newer flashevolve-lab"
        )
    try:
        return cls(**{name: _CONVERT.get((kind, name), _same)(value) for name, value in body.items()})
    except TypeError as error:
        raise LogError(f"the log has a {kind} this version cannot read ({error}); install a newer flashevolve-lab") from error


def _same(value: Any) -> Any:
    return value


def _converters() -> dict[tuple[str, str], Callable[[Any], Any]]:
    table: dict[tuple[str, str], Callable[[Any], Any]] = {}
    for kind, cls in KINDS.items():
        for f in fields(cls):
            if str(f.type) == "Spend":
                table[kind, f.name] = lambda value: Spend(*value)
            elif str(f.type).startswith("tuple"):
                table[kind, f.name] = tuple
    return table


_CONVERT = _converters()
