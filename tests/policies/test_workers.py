"""How many worker slots a stage should have, and how deep a schedule that finds its own depth should be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flashevolve_lab.core import Change, Load, ServerLoad, StageLoad
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
def test_server_aware_moves_slots_by_one_and_calls_by_a_tenth_within_bounds(seen: Load) -> None:
    now = {stage.stage: stage.slots for stage in seen.stages}
    for change in ServerAware(least=2, most=50).judge(seen):
        if change.what == "concurrency":
            assert 2 <= change.to <= seen.server.ceiling and abs(change.to - seen.server.calls) <= max(1, seen.server.calls // 10)
        else:
            assert abs(change.to - now[change.what]) == 1
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


def test_where_the_server_is_full_and_calls_wait_the_first_stage_loses_a_slot() -> None:
    first, last = StageLoad("rollout", 16, busy=5.0, rate=9.0), StageLoad("validate", 16, busy=5.0, rate=9.0)
    [change] = ServerAware().judge(load(first, last, server=FULL_UP))
    assert (change.what, change.to) == ("rollout", 15) and "300 calls wait for it" in change.why


def test_where_much_is_discarded_as_stale_the_first_stage_loses_a_slot() -> None:
    first, last = StageLoad("rollout", 16, busy=5.0), StageLoad("validate", 16, busy=5.0)
    [change] = ServerAware().judge(load(first, last, proposals=20, accepted=1, discarded=9))
    assert (change.what, change.to) == ("rollout", 15) and "9 proposals were discarded as stale, 1 accepted" in change.why
    assert not ServerAware().judge(load(first, last, proposals=20, accepted=1, discarded=3))


def test_a_stage_that_only_lengthens_the_next_queue_loses_a_slot() -> None:
    assert wishes(ServerAware(), load(StageLoad("a", 4, busy=4.0), StageLoad("b", 1, busy=1.0, waiting=6.0, rate=3.0))) == {"a": 3, "b": 2}


def test_requests_that_wait_inside_the_server_are_made_to_wait_here() -> None:
    told = replace(ROOM, calls=64, ceiling=64, running=40.0, waiting=20.0, kv_cache=0.99)
    assert wishes(ServerAware(), load(StageLoad("a", 4), server=told)) == {"concurrency": 58}


def test_calls_rise_again_to_what_a_person_set_and_no_further() -> None:
    told = ServerLoad(busy=0.99, lately=0.99, calls=60, ceiling=64, running=60.0, waiting=0.0, kv_cache=0.3)
    assert wishes(ServerAware(), load(StageLoad("a", 4), server=told)) == {"concurrency": 64}
    assert not wishes(ServerAware(), load(StageLoad("a", 4), server=replace(told, calls=64)))


def test_a_server_that_says_nothing_of_itself_keeps_its_calls() -> None:
    assert "concurrency" not in wishes(ServerAware(), load(StageLoad("a", 4), server=replace(FULL_UP, slowdown=9.0)))


@pytest.mark.parametrize(
    "bad",
    [
        lambda: RateBalanced(low=1.5), lambda: RateBalanced(high=0.5), lambda: RateBalanced(least=0), lambda: RateBalanced(least=9, most=3),
        lambda: RateBalanced(every_s=0), lambda: ServerAware(waste=0), lambda: ServerAware(slow=1), lambda: ServerAware(patience=0),
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
