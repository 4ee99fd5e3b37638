"""The gate: what an acceptance policy's order means, and what happens when the policy itself fails.

Owns the events of a gate's verdict and the limit of its rounds. Owns no rule of what is good enough: that is the policy's; without
one (logs from before there were any) a child passes when its sum is strictly above its parent's. One rule a change must keep: a
policy from a notebook cell may raise anything, and it never ends the run.
"""

from __future__ import annotations

from flashevolve_lab.core import events as ev
from flashevolve_lab.core.artifacts import Acceptance, Gate, Item
from flashevolve_lab.core.events import Event
from flashevolve_lab.core.graph import Rules, Trial
from flashevolve_lab.core.state import RunState

ROUNDS = 8  # a gate runs at most this often; a policy that still wants more is decided strictly
FAILED = "strictly, because the policy"


def strictly(gate: Gate) -> Acceptance:
    """The rule of GEPA: the child's sum must be strictly above its parent's."""
    passed = gate.child_sum > gate.parent_sum
    where = "on the minibatch" if gate.rounds == 1 else f"over {gate.rounds} rounds"
    return Acceptance(passed, f"{gate.child_sum:g} is {'' if passed else 'not '}above {gate.parent_sum:g} {where}")


def is_strict(state: RunState) -> bool:
    """Whether the rule in force is that of GEPA, so that a child which can no longer exceed its parent's sum has lost."""
    described = state.settings.get("acceptance")
    return described is None or described == {"name": "Strict"}


def weighed(state: RunState, item: Item, stage: str, trial: Trial, rules: Rules) -> list[Event]:
    """What the policy in force makes of a gate: on to the next stage, out, or another round at the same stage."""
    gate = trial.gate
    acceptance = _acceptance(state, gate, rules)
    events: list[Event] = []
    if FAILED in acceptance.reason and not state.counts["warning: acceptance"]:
        events.append(ev.Warned("acceptance", acceptance.reason))
    if acceptance.again and gate.rounds < ROUNDS:
        return [*events, ev.ItemQueued(item.id, stage, trial.fresh if acceptance.fresh else trial.same)]
    if acceptance.again:
        decided = strictly(gate)
        acceptance = Acceptance(decided.passed, f"decided after {ROUNDS} rounds: {decided.reason}")
    first = item.kind == "proposal" and not item.gated
    sums = gate.parent_sum, gate.child_sum
    events.append(
        ev.Gated(item.id, trial.artifact, trial.parent, acceptance.passed, first, *sums, reason=acceptance.reason)
    )
    if acceptance.passed:
        return [*events, ev.ItemQueued(item.id, trial.to, trial.settled)]
    return [*events, ev.ItemEnded(item.id, "rejected", acceptance.reason, trial.artifact)]


def _acceptance(state: RunState, gate: Gate, rules: Rules) -> Acceptance:
    policy = rules.acceptance(state)
    if policy is None:
        return strictly(gate)
    try:
        given = policy.judge(gate)
        if not isinstance(given, Acceptance) or not isinstance(given.reason, str):
            raise TypeError(f"expected an Acceptance with a reason, got {given!r}")
    except Exception as error:
        decided = strictly(gate)
        failed = f"{FAILED} {type(policy).__name__} failed: {type(error).__name__}: {error}"
        return Acceptance(decided.passed, f"{decided.reason}; {failed}")
    return given
