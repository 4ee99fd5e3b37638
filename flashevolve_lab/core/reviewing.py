"""Reviews: every few seconds, what a worker policy makes of slots and concurrency, and what a schedule makes of its own depth.

Owns when a review is due, what a policy gets to see (`Load`), and the patience that turns a wish into a change. Owns no rule
(policies) and no sum (`core.meters`). One rule a change must keep: asking whether a review is due costs a few comparisons, and
with a fixed depth and `Fixed` workers nothing is ever reviewed.

A review is due after ``every_s`` lab seconds, and not before as many proposals have ended as are in flight (or `TURNOVER`): until
then little of the effect of the last change can be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flashevolve_lab.core import events as ev
from flashevolve_lab.core.artifacts import Change, Load, ServerLoad, StageLoad
from flashevolve_lab.core.events import Event
from flashevolve_lab.core.graph import Rules, Schedule, Workers
from flashevolve_lab.core.meters import Lean
from flashevolve_lab.core.state import RunState

EVERY_S = 5.0  # lab seconds between the reviews of a schedule that finds its own depth
TURNOVER = 16  # ended proposals that are enough however many are in flight: a saturated server would be reviewed too rarely
MOST_TURNS = 3  # changes of direction that double the patience


def full_depth(state: RunState, rules: Rules) -> int:
    """The schedule's depth, or what it has found so far; 1 where one from a notebook cell fails at it (`admits` then says why)."""
    try:
        schedule = rules.schedule(state)
        depth = schedule.depth
        return max(1, _found(state, schedule) if depth == "auto" else depth)
    except Exception:
        return 1


def _found(state: RunState, schedule: Any) -> int:
    """Where a schedule with depth "auto" stands, within its bounds."""
    return int(min(schedule.most, max(schedule.least, state.auto_depth or state.opening_depth)))


def slots_of(state: RunState, stage: str, rules: Rules) -> int:
    """Worker slots of a stage: as set by hand, else as a worker policy gave it, else as many as the schedule's depth."""
    slots = state.settings.get("slots") or {}
    return int(slots.get(stage) or state.given.get(stage) or full_depth(state, rules))


def review(state: RunState, at: float, rules: Rules) -> list[Event]:
    """A review, and the changes that follow from it; [] when none is due."""
    meters = state.meters
    if meters.ended < max(1, min(state.in_flight, TURNOVER)) or state.pool.version < 0 or state.status != "running":
        return []
    workers, itself = _reviewing(rules.workers(state)), _finding(state, rules)
    if workers is None and itself is None:
        return []
    if at - meters.since < min(_every_s(policy) or EVERY_S for policy in (workers, itself) if policy is not None):
        return []
    load = load_of(state, at, rules)
    wishes: dict[str, Change] = {}
    failed: list[Event] = []
    for policy, method in ((workers, "judge"), (itself, "review")):
        if policy is not None:
            wishes |= _wished(state, load, policy, method, rules, failed)
    signs = {what: 1 if wish.to > _now(state, what, rules) else -1 for what, wish in wishes.items()}
    seen = ev.WorkersReviewed(
        policy=_names(workers, itself),
        seconds=round(load.seconds, 3),
        busy=round(load.server.busy, 4),
        in_flight=round(load.in_flight, 2),
        rates={stage.stage: round(stage.rate, 2) for stage in load.stages},
        waiting={stage.stage: round(stage.waiting, 2) for stage in load.stages},
        wishes=signs,
        accepted=load.accepted,
        tokens=load.tokens,
    )
    changing = [wish for what, wish in wishes.items() if ripe(meters.leans.get(what, Lean()).wished(signs[what]), wish)]
    return [*failed, seen, *(_change(state, wish, workers, itself, rules) for wish in changing)]


def _reviewing(workers: Workers | None) -> Workers | None:
    """The worker policy, where it is one that ever wants a review."""
    return None if workers is None or _every_s(workers) is None else workers


def _finding(state: RunState, rules: Rules) -> Any:
    """The schedule, where it finds its own depth, and that depth is in force (not a lower one against livelock)."""
    held_back = state.effective_depth is not None and state.effective_depth < full_depth(state, rules)
    try:
        return rules.schedule(state) if rules.schedule(state).depth == "auto" and not held_back else None
    except Exception:  # one from a notebook cell may raise anything
        return None


def _every_s(policy: object) -> float | None:
    try:
        every_s = getattr(policy, "every_s", EVERY_S)
        return None if every_s is None else float(every_s)
    except Exception:  # likewise
        return EVERY_S


def _names(*policies: object) -> str:
    return " and ".join(type(policy).__name__ for policy in policies if policy is not None)


def ripe(lean: Lean, wish: Change) -> bool:
    """Whether a wish has been repeated often enough; after changes back and forth it takes longer."""
    return lean.count >= wish.after * 2 ** min(lean.turns, MOST_TURNS) and lean.since > wish.pause


def _wished(
    state: RunState, load: Load, policy: Any, method: str, rules: Rules, failed: list[Event]
) -> dict[str, Change]:
    """What a policy would change, by what it is; what is out of its reach or as it is already is left out."""
    try:
        judge: Callable[[Load], Sequence[Change]] = getattr(policy, method)
        wishes = {_checked(wish, state).what: wish for wish in judge(load)}
    except Exception as error:  # a policy from a notebook cell may raise anything; it must not end the run
        if not state.counts["warning: workers"]:
            words = f"{type(policy).__name__} failed, so nothing is changed: {type(error).__name__}: {error}"
            failed.append(ev.Warned("workers", words))
        return {}
    by_hand = state.settings.get("slots") or {}
    reach = {"depth"} if method == "review" else {*state.queues, "concurrency"} - set(by_hand)
    return {what: wish for what, wish in wishes.items() if what in reach and wish.to != _now(state, what, rules)}


def _checked(wish: Any, state: RunState) -> Change:
    known = (*state.queues, "depth", "concurrency")
    if not isinstance(wish, Change) or wish.what not in known or not isinstance(wish.to, int) or wish.to < 1:
        raise TypeError(f"expected Changes of {', '.join(known)} to whole numbers of at least 1, got {wish!r}")
    return wish


def _now(state: RunState, what: str, rules: Rules) -> int:
    if what == "depth":
        return full_depth(state, rules)
    return int(state.settings.get("concurrency") or 1) if what == "concurrency" else slots_of(state, what, rules)


def _change(state: RunState, wish: Change, workers: Workers | None, schedule: Schedule | None, rules: Rules) -> Event:
    old, by = _now(state, wish.what, rules), type(schedule if wish.what == "depth" else workers).__name__
    if wish.what == "depth":
        return ev.DepthChanged(old, wish.to, wish.why, by)
    if wish.what == "concurrency":
        return ev.SettingChanged("concurrency", old, wish.to, by, wish.why)
    return ev.SlotsChanged(wish.what, old, wish.to, wish.why, by)


# --- what a policy gets to see --------------------------------------------------------------------------------------------


def load_of(state: RunState, at: float, rules: Rules) -> Load:
    """Everything measured since the last review."""
    meters, before = state.meters, state.meters.before
    seconds = max(at - meters.since, 1e-9)
    full = full_depth(state, rules)
    depth = full if state.effective_depth is None else min(full, state.effective_depth)
    in_flight = meters.mean("proposals", "", at)
    by_hand, entry = state.settings.get("slots") or {}, rules.algorithm.graph.entry
    stages = tuple(
        StageLoad(
            stage=stage,
            slots=slots_of(state, stage, rules),
            busy=meters.mean("busy", stage, at),
            waiting=meters.mean("waiting", stage, at) + (max(0.0, depth - in_flight) if stage == entry else 0.0),
            rate=60.0 * meters.finished[stage] / seconds,
            by_hand=stage in by_hand,
            served=meters.mean("served", stage, at),
        )
        for stage in state.queues
    )
    return Load(
        seconds=seconds,
        stages=stages,
        server=_server(state, at),
        depth=depth,
        in_flight=in_flight,
        proposals=state.spent.proposals - before.get("proposals", 0),
        accepted=state.counts["committed"] - before.get("accepted", 0),
        discarded=state.counts["discarded"] - before.get("discarded", 0),
        tokens=state.spent.tokens - before.get("tokens", 0),
        now=meters.now if meters.past else None,
        before=meters.past,
    )


def _server(state: RunState, at: float) -> ServerLoad:
    meters = state.meters
    calls = int(state.settings.get("concurrency") or 1)
    busy = max((_share(state, roles, servers, calls, at) for roles, servers in _groups(state)), default=0.0)
    told = max(state.servers.values(), key=lambda seen: (seen.waiting, seen.running), default=None)
    answered = sum(meters.answered.values())
    wanted = state.reserved.metric_calls + len(meters.plain)
    return ServerLoad(
        busy=busy,
        lately=meters.blended(busy),
        calls=calls,
        ceiling=state.ceiling or calls,
        lowered=any(limit < calls for limit in state.limits.values()),
        backlog=max(0, wanted - len(state.calls)),
        refused=state.counts["call rate_limited"] - meters.before.get("refused", 0),
        latency_s=sum(meters.latency.values()) / answered if answered else 0.0,
        slowdown=meters.slowdown(),
        running=None if told is None else told.running,
        waiting=None if told is None else told.waiting,
        kv_cache=max((seen.kv_cache for seen in state.servers.values() if seen.kv_cache is not None), default=None),
    )


def _share(state: RunState, roles: Sequence[str], servers: frozenset[str], calls: int, at: float) -> float:
    """Calls in flight of these roles, as a share of what their servers may be given now."""
    limits = [min(calls, state.limits.get(server, calls)) for server in servers]
    return sum(state.meters.mean("calls", role, at) for role in roles) / max(1, sum(limits))


def _groups(state: RunState) -> list[tuple[list[str], frozenset[str]]]:
    """Roles that share servers, and those servers, by the names that the gateway gives them.

    Models in the process that describe themselves alike count as one server.
    """
    groups: list[tuple[list[str], frozenset[str]]] = []
    llm = state.llms[-1] if state.llms else {}
    for role in sorted({of for what, of in state.meters.levels if what == "calls"}):
        names = frozenset(_server_name(model) for model in llm.get(role, ())) or frozenset({""})
        shared = [group for group in groups if group[1] & names]
        groups = [group for group in groups if group not in shared]
        groups.append(([role, *(r for roles, _ in shared for r in roles)], names.union(*(more for _, more in shared))))
    return groups


def _server_name(model: Any) -> str:
    return str(model.get("base_url") or model.get("kind") or model) if isinstance(model, dict) else str(model)
