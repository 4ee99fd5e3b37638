"""What a run has come to, in a few values and in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flashevolve_lab.core import RunState


@dataclass(frozen=True, slots=True)
class Best:
    """The committed artifact with the highest mean validation score.

    ``score``: that mean; ``coverage``: share of the validation set behind it; ``version``: when it joined the pool.
    """

    artifact: str
    components: Mapping[str, str]
    score: float
    coverage: float
    version: int

    @property
    def text(self) -> str:
        """The text, when there is one component; otherwise all of them under their names."""
        if len(self.components) == 1:
            return next(iter(self.components.values()))
        return "\n\n".join(f"## {name}\n{text}" for name, text in self.components.items())


@dataclass(frozen=True, slots=True, repr=False)
class Status:
    """A run at one moment.

    ``state``: new, running, paused, stopped, or interrupted (its process is gone). ``kind`` and ``reason``: why it stopped.
    ``seconds``: lab seconds. ``in_flight``: proposals, of the ``depth`` that may be now. ``spent`` and ``budget``: by dimension. ``outcomes``: how proposals ended. ``failed_calls``: attempts that brought no reply, the last one's words beside it. ``forecast``: how many
    the budget was reckoned to allow before the start. ``simulated``: a model it uses, or used before a resume, is simulated.
    """

    run: str
    state: str
    kind: str
    reason: str
    seconds: float
    version: int
    proposals: int
    accepted: int
    in_flight: int
    depth: int
    seed_score: float | None
    best_score: float | None
    spent: Mapping[str, float]
    budget: Mapping[str, float]
    outcomes: Mapping[str, int]
    failed_calls: int
    last_failure: str
    forecast: str
    simulated: bool

    def __repr__(self) -> str:
        return f"<Status {self}>"

    def __str__(self) -> str:
        label = " (simulated model)" if self.simulated else ""
        parts = [f"{self.run}{label}: {self.state}, {self.seconds:,.1f} s"]
        parts.append(f"{self.proposals} proposals, {self.accepted} accepted")
        if self.state == "running" and self.depth:
            parts.append(f"{self.in_flight} of {self.depth} in flight")
        if self.best_score is not None:
            parts.append(f"best {self.best_score:.3f} (seed {self.seed_score:.3f})")
        if self.failed_calls:
            parts.append(
                f"{self.failed_calls} calls failed" + (f" (the last: {self.last_failure[:120]})" if self.last_failure else "")
            )
        parts += [f"{self.spent.get(name, self.seconds):,.10g} of {limit:,.10g} {name}" for name, limit in self.budget.items()]
        if self.state == "running" and self.forecast:
            parts.append(self.forecast)
        return ", ".join(parts) + (f". Stopped by {self.kind}: {self.reason}" if self.reason else "")


OUTCOMES = ("committed", "rejected", "outdone", "rolled_back", "skipped", "refused", "failed", "discarded", "distilled", "unaffordable")


def status_of(state: RunState, name: str, alive: bool) -> Status:
    """The status of a folded state; ``alive``: some process is still writing its log."""
    from flashevolve_lab.views import depth_of

    best, order = state.pool.best(), state.pool.order
    started = state.started
    models = [model for llm in state.llms for of_role in llm.values() for model in of_role]
    return Status(
        run=name,
        state=state.status if alive or state.status == "stopped" else "interrupted",
        kind=state.stop.kind if state.stop else "",
        reason=state.stop.reason if state.stop else "",
        seconds=state.at,
        version=state.pool.version,
        proposals=state.spent.proposals,
        accepted=max(0, sum(not member.rival for member in order) - 1),
        in_flight=state.in_flight,
        depth=depth_of(state) if started else 0,
        seed_score=order[0].mean if order else None,
        best_score=best.mean if best else None,
        spent=state.spent.as_dict(),
        budget=dict(state.budget),
        outcomes={name: state.counts[name] for name in OUTCOMES if state.counts[name]},
        failed_calls=sum(state.counts[f"call {kind}"] for kind in ("rate_limited", "transient", "refused", "bad_reply")),
        last_failure=state.last_call_failure,
        forecast=str(started.task.get("forecast", "")) if started else "",
        simulated=any(isinstance(model, dict) and bool(model.get("simulated")) for model in models),
    )


def best_of(state: RunState) -> Best | None:
    """The best committed artifact of a folded state."""
    member = state.pool.best()
    if member is None:
        return None
    return Best(member.id, state.artifacts[member.id].components, member.mean, member.coverage, member.version)
