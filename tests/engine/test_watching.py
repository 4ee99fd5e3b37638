"""Looks at the servers: what they tell goes into the log while calls are in flight, and never delays or fails a run."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import events as ev
from flashevolve_lab.core import inputs as on
from flashevolve_lab.engine.watching import EVERY_S, server_seen

LONG = 10_000.0


def telling(scripted: Any, tell: Any, **options: Any) -> Any:
    """A scripted model with a ``seen`` made of this function of the model."""

    class Telling(scripted):  # type: ignore[misc]
        looks = 0

        async def seen(self) -> Any:
            self.looks += 1
            told = tell(self)
            return await told if asyncio.iscoroutine(told) else told

    return Telling(**options)


def load(model: Any) -> dict[str, float]:
    return {"running": model.now, "waiting": 0, "looks": model.looks}


def test_what_a_server_tells_is_in_the_log_and_the_last_is_in_the_state(world: Any, scripted: Any) -> None:
    w = world(telling(scripted, load)).run()
    seen = w.of(ev.ServerSeen)
    assert len(seen) > 5 and max(e.running for e in seen) >= 2
    assert seen[0] == ev.ServerSeen("scripted", seen[0].running, 0.0, None, {"looks": 1.0})
    assert w.shell.state.servers == {"scripted": seen[-1]}


def test_it_is_asked_every_two_seconds_while_calls_are_in_flight_and_only_then(world: Any, scripted: Any) -> None:
    w = world(telling(scripted, load)).run()
    times = w.when(ev.ServerSeen)
    assert all(later - earlier > EVERY_S - 1e-5 for earlier, later in pairwise(times))
    assert sum(later - earlier == pytest.approx(EVERY_S) for earlier, later in pairwise(times)) > len(times) / 2

    calls = set()
    for entry in w.entries:
        match entry.event:
            case ev.CallStarted(call):
                calls.add(call)
            case ev.CallFinished(call):
                calls.discard(call)
            case ev.ServerSeen():
                assert calls


def test_what_has_not_changed_is_not_written_again(world: Any, scripted: Any) -> None:
    model = telling(scripted, lambda model: {"running": 1, "waiting": 0})
    w = world(model).run()
    assert model.looks > 5 and len(w.of(ev.ServerSeen)) == 1


def test_a_run_that_is_paused_and_idle_is_not_looked_at_and_virtual_time_stands_still(world: Any, scripted: Any) -> None:
    w = world(telling(scripted, load), budget={"metric_calls": 10_000})
    w.at(10.0, on.Pause()).at(LONG, on.Continue()).stop_at(LONG + 10).run()
    quiet = [entry for entry in w.entries if 30 < entry.at < LONG]
    assert quiet == []
    assert any(at > LONG for at in w.when(ev.ServerSeen))


def test_the_same_seed_gives_the_same_log_with_looks_in_it(world: Any) -> None:
    def entries() -> Any:
        landscape = lab.IndependentRules()
        llm = lab.Simulated(landscape, speed=lab.FixedLatency(slots=3))
        return world(llm, task=lab.simulated_task(landscape), schedule=lab.Pipelined(6), budget={"metric_calls": 400}).run()

    once, again = entries(), entries()
    assert once.entries == again.entries
    assert max(e.waiting for e in once.of(ev.ServerSeen)) > 0
    assert {e.running for e in once.of(ev.ServerSeen)} <= {0.0, 1.0, 2.0, 3.0}


def broken(model: Any) -> Any:
    raise OSError("connection refused")


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("tell", "why"),
    [
        (broken, "connection refused"),
        (lambda model: never(), "TimeoutError"),
        (lambda model: {"running": "many", "waiting": 0}, "expected numbers for 'running' and 'waiting'"),
        (lambda model: {"running": float("nan"), "waiting": 0}, "expected numbers"),
        (lambda model: 7, "object is not iterable"),
    ],
)
def test_a_server_that_does_not_tell_is_mentioned_once_and_changes_nothing_else(
    world: Any, scripted: Any, tell: Any, why: str
) -> None:
    one_by_one = {"schedule": lab.Sequential(), "limits": lab.Limits(concurrency=1)}
    w, plain = world(telling(scripted, tell), **one_by_one).run(), world(scripted(), **one_by_one).run()
    told = [e for e in w.of(ev.Warned) if e.kind == "server metrics"]
    assert len(told) == 1 and why in told[0].message and told[0].message.startswith("scripted does not tell its load")
    assert [e.event for e in w.entries if e.event not in told] == [e.event for e in plain.entries]


def test_a_model_that_says_it_tells_nothing_is_asked_once(world: Any, scripted: Any) -> None:
    model = telling(scripted, lambda model: None)
    w = world(model).run()
    assert (model.looks, w.of(ev.ServerSeen), w.of(ev.Warned)) == (1, [], [])


def test_two_servers_of_one_kind_have_two_names() -> None:
    pair = [lab.Simulated(), lab.Simulated()]
    gateway = lab.llm.Gateway({"task": pair, "reflection": pair}, lab.Limits())
    assert sorted(endpoint.name for endpoint in gateway.endpoints.values()) == ["Simulated", "Simulated (2)"]


def test_a_resume_forgets_what_servers_said_before() -> None:
    from flashevolve_lab.core import Entry, RunState, apply

    state = RunState()
    apply(state, Entry(1, 1.0, ev.ServerSeen("s", 5.0, 0.0)))
    assert state.servers
    apply(state, Entry(2, 1.0, ev.RunResumed("later")))
    assert not state.servers


def test_once_a_run_has_ended_its_models_are_told(world: Any, scripted: Any) -> None:
    told: list[int] = []

    class Ending(scripted):  # type: ignore[misc]
        def run_ended(self) -> None:
            told.append(w.log.closed)
            raise RuntimeError("a backend's own trouble")

    w = world(Ending())
    w.run()
    assert told == [1]


def test_numbers_are_kept_and_everything_else_a_server_says_is_left_out() -> None:
    told = {"running": 3, "waiting": 1.0, "kv_cache": 0.1234567891, "tokens": 12, "name": "x", "on": True, "rate": float("inf")}
    assert server_seen("s", told) == ev.ServerSeen("s", 3.0, 1.0, 0.123457, {"tokens": 12.0})


def test_calls_that_come_one_by_one_and_are_short_are_looked_at_too(world: Any, scripted: Any) -> None:
    model = telling(scripted, load, task_s=0.05, reflect_s=0.05)
    world(model, schedule=lab.Sequential(), limits=lab.Limits(concurrency=1), budget={"metric_calls": 200}).run()
    assert model.looks >= 3
