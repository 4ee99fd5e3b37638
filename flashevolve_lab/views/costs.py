"""What a run costs and how fast it goes: tokens and money by stage and role, failures by kind, rates, time left.

Owns `Costs`. Folds nothing but the few sums it shows. Rates are of lab time, over the whole run and over the last `RECENT`
proposals. One rule a change must keep: what is counted here is what was charged, failures and retries included.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from flashevolve_lab.core import NOTHING, Entry, Event, Spend
from flashevolve_lab.core import events as ev

RECENT = 40  # ended proposals that "lately" covers


@dataclass(frozen=True, slots=True)
class Cost:
    """What one role (``"task"``, ``"reflection"``) was charged in one stage; ``failed``: attempts that gave no answer."""

    stage: str
    role: str
    calls: int = 0
    failed: int = 0
    tokens: int = 0
    dollars: float = 0.0


@dataclass(frozen=True, slots=True)
class CostsSnapshot:
    """Sums and rates after ``seq``.

    Attributes:
        costs: By stage and role, in the order they first occurred.
        failures: Kind in words ("gate: truncated", "sample: error", "call: rate_limited") → how often, most first.
        proposals, accepted: A minute, over the whole run; ``proposals_lately``, ``accepted_lately``: over the last ones.
        eta: Dimension of the budget → seconds until it is spent at the pace of late; absent when unknown.
    """

    seq: int = 0
    costs: tuple[Cost, ...] = ()
    failures: Mapping[str, int] = field(default_factory=dict)
    proposals: float = 0.0
    accepted: float = 0.0
    proposals_lately: float = 0.0
    accepted_lately: float = 0.0
    eta: Mapping[str, float] = field(default_factory=dict)


class Costs:
    """A live view: feed it the log in any pieces, ask for the snapshot at any time."""

    def __init__(self) -> None:
        self._seq = 0
        self._at = 0.0
        self._budget: dict[str, float] = {}
        self._spent = NOTHING
        self._accepted = 0
        self._stages: dict[str, str] = {}  # running job → its stage
        self._kinds: dict[str, str] = {}  # item → its kind
        self._calls: dict[str, tuple[str, str]] = {}  # open call → its stage and role
        self._costs: dict[tuple[str, str], Cost] = {}
        self._failures: Counter[str] = Counter()
        self._pace: deque[tuple[float, Spend, int]] = deque([(0.0, NOTHING, 0)], maxlen=RECENT + 1)

    def __repr__(self) -> str:
        return f"<Costs of {self._spent} up to entry {self._seq}>"

    def feed(self, entries: Iterable[Entry]) -> None:
        """Take in further entries (those seen before are skipped)."""
        for entry in entries:
            if entry.seq > self._seq:
                self._seq, self._at = entry.seq, max(self._at, entry.at)
                self._take(entry.event)

    def snapshot(self) -> CostsSnapshot:
        """The sums so far."""
        then, spent, accepted = self._pace[0]
        lately = self._spent - spent
        return CostsSnapshot(
            seq=self._seq,
            costs=tuple(self._costs.values()),
            failures=dict(self._failures.most_common()),
            proposals=_a_minute(self._spent.proposals, self._at),
            accepted=_a_minute(self._accepted, self._at),
            proposals_lately=_a_minute(lately.proposals, self._at - then),
            accepted_lately=_a_minute(self._accepted - accepted, self._at - then),
            eta=self._eta(lately, self._at - then),
        )

    def _eta(self, lately: Spend, seconds: float) -> dict[str, float]:
        amounts, spent = lately.as_dict(), self._spent.as_dict()
        eta = {}
        for name, limit in self._budget.items():
            if name == "seconds":
                eta[name] = max(0.0, limit - self._at)
            elif amounts.get(name, 0) > 0 and seconds > 0:
                eta[name] = max(0.0, limit - spent[name]) * seconds / amounts[name]
        return eta

    def _take(self, event: Event) -> None:
        match event:
            case ev.RunStarted(budget=budget):
                self._budget = dict(budget)
            case ev.SettingChanged("budget", _, new):
                self._budget = dict(new)
            case ev.ItemMade(item, kind):
                self._kinds[item] = kind
            case ev.ItemEnded(item, outcome):
                self._end(self._kinds.pop(item, ""), outcome)
            case ev.JobStarted(job, stage):
                self._stages[job] = stage
            case ev.JobFinished(job) | ev.JobAbandoned(job) | ev.JobLost(job):
                self._stages.pop(job, None)
            case ev.JobFailed(job, kind):
                self._failures[f"{self._stages.pop(job, '?')}: {kind}"] += 1
            case ev.CallStarted(call, job, role):
                self._calls[call] = (self._stages.get(job, "?"), role)
            case ev.CallFinished(call, outcome, spent):
                self._charge(*self._calls.pop(call, ("?", "?")), outcome, spent)
            case ev.SampleScored():
                self._spent += Spend(metric_calls=1)
            case ev.SampleFailed(kind=kind):
                self._spent += Spend(metric_calls=1)
                self._failures[f"sample: {kind}"] += 1
            case ev.Gated(first=True):
                self._spent += Spend(proposals=1)
            case _:
                pass

    def _end(self, kind: str, outcome: str) -> None:
        if kind == "seed":  # its cost is not the pace of proposals
            self._pace.clear()
        else:
            self._accepted += outcome == "committed"
        self._pace.append((self._at, self._spent, self._accepted))

    def _charge(self, stage: str, role: str, outcome: str, spent: Spend) -> None:
        self._spent += spent
        bad = outcome not in ("ok", "cancelled")
        if bad:
            self._failures[f"call: {outcome}"] += 1
        before = self._costs.get((stage, role), Cost(stage, role))
        self._costs[stage, role] = Cost(
            stage,
            role,
            before.calls + spent.llm_calls,
            before.failed + bad,
            before.tokens + spent.tokens,
            before.dollars + spent.dollars,
        )


def _a_minute(count: float, seconds: float) -> float:
    return 60 * count / seconds if seconds > 0 else 0.0
