"""How many worker slots a stage should have, and how deep a schedule that finds its own depth should be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashevolve_lab.core import Brought, Change, Load, Meters, ServerLoad, StageLoad
from flashevolve_lab.core.reviewing import ripe
from flashevolve_lab.errors import SetupError
from flashevolve_lab.policies import WORKERS, Fixed, Pipelined, Policies, RateBalanced, ServerAware, describe
from flashevolve_lab.testing import schedule_contract, workers_contract

ROOM, FULL_UP = ServerLoad(busy=0.5, lately=0.5), ServerLoad(busy=1.0, lately=1.0, backlog=300)
STAGES = st.lists(
    st.builds(
        StageLoad,
        stage=st.sampled_from("abcdef"),
        slots=st.integers(1, 200),
        busy=st.floats(0, 200),
        waiting=st.floats(0, 500),
        rate=st.floats(0, 5000),
        served=st.floats(0, 200),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda stage: stage.stage,
).map(tuple)
SERVERS = st.builds(
    ServerLoad,
    busy=st.floats(0, 1),
    lately=st.floats(0, 1),
    calls=st.integers(1, 64),
    ceiling=st.integers(64, 128),
    lowered=st.booleans(),
    backlog=st.integers(0, 1000),
    refused=st.integers(0, 3),
    slowdown=st.floats(1, 10),
    running=st.none() | st.floats(0, 300),
    waiting=st.none() | st.floats(0, 300),
    kv_cache=st.none() | st.floats(0, 1),
)
BROUGHT = st.builds(
    Brought,
    slots=st.integers(0, 200),
    reviews=st.integers(0, 30),
    seconds=st.floats(1, 1000),
    accepted=st.floats(0, 1000),
    calls=st.floats(0, 10_000),
)
LOADS = st.builds(
    Load,
    seconds=st.floats(1, 100),
    stages=STAGES,
    server=SERVERS,
    depth=st.integers(1, 300),
    in_flight=st.floats(0, 300),
    proposals=st.integers(0, 100),
    accepted=st.integers(0, 20),
    discarded=st.integers(0, 100),
    now=st.none() | BROUGHT,
    before=st.none() | BROUGHT,
)


def load(*stages: StageLoad, server: ServerLoad = ROOM, **facts: Any) -> Load:
    return Load(**{"seconds": 10.0, "stages": stages, "server": server, "depth": 16, "in_flight": 16.0, **facts})


def wishes(policy: Any, seen: Load) -> dict[str, int]:
    return {change.what: change.to for change in policy.judge(seen)}


@pytest.mark.parametrize("policy", [Fixed(), RateBalanced(), RateBalanced(0.9, 1.1, 2, 9), ServerAware(), ServerAware(2, 8, patience=1)])
def test_every_built_in_worker_policy_keeps_the_contract(policy: Any) -> None:
    workers_contract(policy)


def test_every_built_in_worker_policy_is_tested_above_and_listed_beside_its_class() -> None:
    assert {name: cls.__name__ for name, cls in WORKERS.items()} == {n: n for n in ("Fixed", "RateBalanced", "ServerAware")}


def test_fixed_wants_nothing_and_is_never_reviewed() -> None:
    assert Fixed().every_s is None and not Fixed().judge(load(StageLoad("a", 1, 1.0, 99.0, 0.1), server=FULL_UP))


def test_a_stage_below_half_the_median_rate_gets_a_worker_and_one_above_twice_the_median_loses_one() -> None:
    stages = [StageLoad("a", 4, rate=100.0), StageLoad("b", 4, rate=40.0), StageLoad("c", 4, rate=15.0), StageLoad("d", 4, rate=45.0)]
    assert wishes(RateBalanced(), load(*stages)) == {"a": 3, "c": 5}
    reasons = {change.what: change.why for change in RateBalanced().judge(load(*stages))}
    assert "100 jobs a minute are above 2 × the stages' median of 42.5" in reasons["a"]


def test_rates_within_half_and_twice_the_median_change_nothing() -> None:
    assert not wishes(RateBalanced(), load(StageLoad("a", 4, rate=10.0), StageLoad("b", 4, rate=20.0), StageLoad("c", 4, rate=40.0)))


def test_a_stage_that_is_never_used_has_no_part_in_the_median() -> None:
    used = [StageLoad("a", 4, rate=50.0), StageLoad("b", 4, rate=50.0)]
    assert not wishes(RateBalanced(), load(*used, StageLoad("patch", 4)))
    assert wishes(RateBalanced(), load(*used, StageLoad("patch", 4, busy=4.0))) == {"patch": 5}


@given(LOADS)
def test_rate_balanced_moves_by_one_and_within_its_bounds(seen: Load) -> None:
    policy = RateBalanced(least=2, most=50)
    now = {stage.stage: stage.slots for stage in seen.stages}
    for change in policy.judge(seen):
        assert abs(change.to - now[change.what]) == 1
        assert change.to <= 50 or change.to < now[change.what]
        assert change.to >= 2 or change.to > now[change.what]


@given(LOADS)
def test_server_aware_changes_slots_and_calls_within_bounds_and_never_takes_more_than_half_as_many_again(seen: Load) -> None:
    now = {stage.stage: stage.slots for stage in seen.stages} | {"concurrency": seen.server.calls}
    back = seen.before.slots if seen.before else 0
    for change in ServerAware(least=2, most=50).judge(seen):
        assert change.to <= ceil(1.5 * now[change.what]) or change.to == min(back, 50)
        if change.what == "concurrency":
            assert 2 <= change.to <= seen.server.ceiling and change.to >= now["concurrency"] // 2
        else:
            assert 2 <= change.to <= 50 or change.to < now[change.what]


@given(LOADS)
def test_server_aware_never_asks_for_more_while_the_server_refuses(seen: Load) -> None:
    refusing = replace(seen, server=replace(seen.server, lowered=True, refused=2))
    now = {stage.stage: stage.slots for stage in seen.stages}
    assert all(change.what != "concurrency" and change.to < now[change.what] for change in ServerAware().judge(refusing))


def test_where_the_server_has_room_a_crowded_stage_gets_a_slot() -> None:
    crowded, idle = StageLoad("gate", 2, busy=2.0, waiting=3.0, rate=9.0), StageLoad("validate", 8, busy=1.0, rate=9.0)
    assert wishes(ServerAware(), load(crowded, idle)) == {"gate": 3}
    assert "gate" not in wishes(ServerAware(), load(crowded, idle, server=replace(FULL_UP, backlog=0)))


def test_where_the_server_is_full_the_first_stage_keeps_the_slots_that_are_served_and_a_reserve() -> None:
    first, last = StageLoad("rollout", 16, busy=14.0, rate=9.0, served=2.0), StageLoad("validate", 16, busy=5.0, rate=9.0, served=4.0)
    [change] = ServerAware().judge(load(first, last, server=FULL_UP))
    assert (change.what, change.to) == ("rollout", 5) and "2.0 jobs are served and 12.0 only wait for it" in change.why
    assert not ServerAware().judge(load(replace(first, slots=5, busy=5.0), last, server=FULL_UP))
    assert not ServerAware().judge(load(replace(first, slots=8, busy=8.0), last, server=FULL_UP))  # twice the reserve is let be


def test_a_step_down_leaves_a_quarter_at_least() -> None:
    first = StageLoad("rollout", 48, busy=47.0, rate=9.0, served=0.5)
    assert wishes(ServerAware(), load(first, server=FULL_UP)) == {"rollout": 12}


def test_slots_of_a_later_stage_that_a_full_server_could_not_serve_are_taken_away() -> None:
    first, last = StageLoad("rollout", 4, busy=4.0, rate=9.0, served=2.0), StageLoad("validate", 48, busy=2.2, rate=9.0, served=2.0)
    assert wishes(ServerAware(), load(first, last, server=FULL_UP)) == {"validate": 6}
    assert not wishes(ServerAware(), load(first, last)) and not wishes(ServerAware(), load(first, replace(last, slots=6), server=FULL_UP))
    assert not wishes(ServerAware(), load(first, replace(last, rate=0.0, busy=0.0), server=FULL_UP))  # nothing says how many it needs


def test_a_later_stage_with_all_its_slots_busy_gets_more_even_where_the_server_is_full() -> None:
    first, last = StageLoad("rollout", 4, busy=4.0, rate=9.0, served=2.0), StageLoad("validate", 4, busy=4.0, waiting=3.0, rate=9.0, served=4.0)
    assert wishes(ServerAware(), load(first, last, server=FULL_UP)) == {"validate": 6}


def test_where_much_is_discarded_as_stale_the_first_stage_keeps_an_eighth_less_than_it_uses() -> None:
    first, last = StageLoad("rollout", 16, busy=5.0), StageLoad("validate", 16, busy=5.0)
    [change] = ServerAware().judge(load(first, last, proposals=20, accepted=1, discarded=9))
    assert (change.what, change.to) == ("rollout", 5) and "9 proposals were discarded as stale, 1 accepted" in change.why
    assert not ServerAware().judge(load(first, last, proposals=20, accepted=1, discarded=3))


def test_a_stage_that_only_lengthens_the_next_queue_loses_a_slot() -> None:
    assert wishes(ServerAware(), load(StageLoad("a", 4, busy=4.0), StageLoad("b", 1, busy=1.0, waiting=6.0, rate=3.0))) == {"a": 3, "b": 2}


def test_requests_that_wait_inside_the_server_are_made_to_wait_here() -> None:
    told = replace(ROOM, calls=64, ceiling=64, running=40.0, waiting=20.0, kv_cache=0.99)
    assert wishes(ServerAware(), load(StageLoad("a", 4), server=told)) == {"concurrency": 44}
    assert wishes(ServerAware(), load(StageLoad("a", 4), server=replace(told, running=9.0))) == {"concurrency": 32}


def test_calls_rise_again_to_what_a_person_set_and_no_further() -> None:
    told = ServerLoad(busy=0.99, lately=0.99, calls=60, ceiling=64, running=60.0, waiting=0.0, kv_cache=0.3)
    assert wishes(ServerAware(), load(StageLoad("a", 4), server=told)) == {"concurrency": 64}
    assert not wishes(ServerAware(), load(StageLoad("a", 4), server=replace(told, calls=64)))


def test_a_server_that_says_nothing_of_itself_keeps_its_calls() -> None:
    assert "concurrency" not in wishes(ServerAware(), load(StageLoad("a", 4), server=replace(FULL_UP, slowdown=9.0)))


# --- a change of the first stage's slots is a trial


def tried(now: Brought, before: Brought, policy: ServerAware | None = None, server: ServerLoad = ROOM, **facts: Any) -> Change | None:
    first = StageLoad("rollout", now.slots, busy=now.slots, rate=9.0, **facts)
    changes = (policy or ServerAware()).judge(load(first, server=server, now=now, before=before))
    return changes[0] if changes else None


MUCH = Brought(12, reviews=8, seconds=120.0, accepted=100.0, calls=6_000.0)  # 50 a minute


def test_a_change_after_which_less_is_accepted_a_minute_than_chance_explains_is_taken_back_with_both_numbers() -> None:
    change = tried(Brought(6, reviews=8, seconds=120.0, accepted=50.0, calls=6_000.0), MUCH)
    assert change and change.to == 12
    assert change.why == "with 12 slots there were 50 accepted a minute and 60 calls for each; now 25 and 120: more than chance"


@pytest.mark.parametrize(
    ("now", "before"),
    [
        (Brought(6, 8, 120.0, 80.0, 6_000.0), MUCH),  # chance
        (Brought(6, 8, 120.0, 140.0, 6_000.0), MUCH),  # better
        (Brought(6, 21, 120.0, 50.0, 6_000.0), MUCH),  # after the trial
        (Brought(6, 1, 12.0, 1.0, 100.0), replace(MUCH, accepted=6.0)),  # too few to tell
        (Brought(6, 8, 120.0, 50.0, 6_000.0), replace(MUCH, slots=6)),  # nothing to go back to
    ],
)  # fmt: skip
def test_a_change_stands_where_it_is_not_surely_worse(now: Brought, before: Brought) -> None:
    assert tried(now, before) is None


def test_the_price_says_how_much_time_may_be_lost_for_fewer_calls() -> None:
    slower, leaner = Brought(6, 8, 200.0, 100.0, 3_000.0), Brought(12, 8, 100.0, 100.0, 6_000.0)  # half as fast, half the calls
    assert (change := tried(slower, leaner, ServerAware(price=0.0))) and change.to == 12
    assert tried(slower, leaner, ServerAware(price=1.0)) is None
    assert (change := tried(leaner, slower, ServerAware(price=10.0))) and change.to == 6


def test_what_the_record_says_is_worse_is_not_tried_again() -> None:
    worse = Brought(4, 8, 120.0, 50.0, 6_000.0)
    assert (change := tried(MUCH, replace(worse, accepted=90.0), server=FULL_UP)) and change.to == 3
    assert tried(MUCH, worse, server=FULL_UP) is None


def test_while_the_server_refuses_no_number_that_was_higher_comes_back() -> None:
    worse = Brought(6, reviews=8, seconds=120.0, accepted=50.0, calls=6_000.0)
    assert tried(worse, MUCH, server=replace(ROOM, refused=3), served=6.0) is None


@given(st.integers(1, 60), st.floats(2.0, 40.0), st.floats(0.0, 1.0), st.floats(0.2, 5.0), st.integers(0, 1000))
def test_on_a_stationary_server_the_slots_come_to_rest(slots: int, room: float, staleness: float, speed: float, seed: int) -> None:
    """Ten lab minutes: the server serves up to ``room`` jobs, and what is started early may be accepted less often."""
    meters, random, changes = Meters(), Random(seed), []
    for number in range(100):
        served = min(float(slots), room)
        busy = min(1.0, slots / room)
        accepted = _poisson(random, 6.0 * speed * busy / (1.0 + staleness * slots / room))
        seen = load(
            StageLoad("rollout", slots, busy=slots, waiting=max(0.0, 60.0 - slots), rate=9.0, served=served),
            server=ServerLoad(busy=busy, lately=busy), seconds=6.0, accepted=accepted, proposals=2 * accepted,
            now=meters.now if meters.past else None, before=meters.past,
        )  # fmt: skip
        wanted = {change.what: change for change in ServerAware().judge(seen)}
        meters.reviewed(busy, {what: 1 if change.to > slots else -1 for what, change in wanted.items()})
        meters.brought(6.0, accepted, 100, 10_000)
        if (change := wanted.get("rollout")) and ripe(meters.leans["rollout"], change):
            changes.append((number, slots, change.to))
            meters.changed("rollout", slots, change.to)
            meters.turned(slots, change.to)
            slots = change.to
    assert len(changes) <= 12 and sum(number >= 60 for number, _, _ in changes) <= 1, changes


def _poisson(random: Random, mean: float) -> int:
    """So many arrivals in one unit of time."""
    return next(n for n, at in enumerate(accumulate(random.expovariate(mean) for _ in range(10_000))) if at > 1.0)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: RateBalanced(low=1.5), lambda: RateBalanced(high=0.5), lambda: RateBalanced(least=0), lambda: RateBalanced(least=9, most=3),
        lambda: RateBalanced(every_s=0), lambda: ServerAware(waste=0), lambda: ServerAware(price=-1), lambda: ServerAware(price="much"), lambda: ServerAware(price=float("inf")), lambda: ServerAware(slow=1), lambda: ServerAware(patience=0),
        lambda: ServerAware(pause=-1), lambda: ServerAware(most=True), lambda: ServerAware(every_s="5"),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(bad: Any) -> None:
    with pytest.raises(SetupError, match="expected"):
        bad()


def test_the_contract_catches_a_policy_that_never_comes_to_rest() -> None:
    @dataclass(frozen=True)
    class Restless:
        every_s: float = 1.0

        def judge(self, seen: Load) -> list[Change]:
            return [Change(stage.stage, 3 - min(2, stage.slots), "to and fro") for stage in seen.stages]

    with pytest.raises(AssertionError, match="come to rest"):
        workers_contract(Restless())


# --- a depth that is found ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [Pipelined("auto"), Pipelined("auto", least=1, most=1), Pipelined("auto", least=10, most=40)])
def test_a_schedule_that_finds_its_depth_keeps_the_contract(schedule: Any) -> None:
    schedule_contract(schedule)


def depth_wanted(busy: float, depth: int, in_flight: float | None = None, schedule: Pipelined | None = None) -> int | None:
    seen = load(server=ServerLoad(busy=busy, lately=busy), depth=depth, in_flight=depth if in_flight is None else in_flight)
    return next((change.to for change in (schedule or Pipelined("auto")).review(seen)), None)


def test_a_server_with_room_gets_a_deeper_pipeline_at_most_twice_as_deep() -> None:
    assert [depth_wanted(busy, 16) for busy in (0.0, 0.3, 0.8, 0.94)] == [32, 32, 24, 17]


def test_a_server_that_always_has_too_much_gets_a_shallower_one_an_eighth_less() -> None:
    assert [depth_wanted(1.0, depth) for depth in (64, 8, 5, 4)] == [56, 7, 4, None]


def test_a_busy_server_is_left_alone() -> None:
    assert [depth_wanted(busy, 24) for busy in (0.95, 0.96, 0.98)] == [None, None, None]


def test_it_does_not_go_deeper_when_something_else_keeps_proposals_out() -> None:
    assert depth_wanted(0.3, 16, in_flight=9.0) is None


@given(st.floats(0, 1), st.integers(1, 300))
def test_a_found_depth_stays_within_its_bounds(busy: float, depth: int) -> None:
    wanted = depth_wanted(busy, depth, schedule=Pipelined("auto", least=3, most=90))
    assert wanted is None or 3 <= wanted <= 90


@given(st.floats(1, 100), st.integers(4, 256))
def test_at_a_load_that_only_depends_on_the_depth_it_comes_to_rest_near_the_smallest_that_is_busy(knee: float, depth: int) -> None:
    """The share in use grows with the depth and bends at the knee; each change needs the next review to agree."""
    seen, changes = depth, []
    for _ in range(400):
        wanted = depth_wanted(_use(seen, knee), seen)
        if wanted is None:
            break
        changes.append(1 if wanted > seen else -1)
        seen = wanted
    smallest = next((d for d in range(4, 257) if _use(d, knee) >= 0.95), 256)
    turns = sum(a != b for a, b in zip(changes, changes[1:], strict=False))
    assert turns <= 2 or seen <= 8  # with a few in flight, one step may be across the band; patience then doubles (see the core)
    assert seen <= max(1.5 * smallest, smallest + 2)


def _use(depth: int, knee: float) -> float:
    return 1.0 - 1.0 / (1.0 + (depth / knee) + (depth / knee) ** 3)


def test_a_number_beside_its_bounds_is_described_without_them_and_auto_with_them() -> None:
    assert describe(Pipelined(16, least=2)) == {"name": "Pipelined", "depth": 16} and Pipelined(16, least=2) == Pipelined(16)
    assert describe(Pipelined("auto", most=9)) == {"name": "Pipelined", "depth": "auto", "least": 4, "most": 9}
    assert Policies()(describe(Pipelined("auto", most=9))) == Pipelined("auto", most=9)


@pytest.mark.parametrize("bad", [lambda: Pipelined("deep"), lambda: Pipelined("auto", least=0), lambda: Pipelined("auto", least=9, most=8)])
def test_bounds_that_make_no_sense_are_refused(bad: Any) -> None:
    with pytest.raises(SetupError, match="expected"):
        bad()
