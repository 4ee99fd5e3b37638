"""A small world for engine tests: a scripted model, a log in memory, commands at exact moments of virtual time.

Every run made here is checked against the standing properties: invariants after each write, replay = live, every started job and
every sent call ends, and nothing follows the end of the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

import flashevolve_lab as lab
from flashevolve_lab.core import Entry, RunState, apply, check
from flashevolve_lab.core import events as ev
from flashevolve_lab.core import inputs as on
from flashevolve_lab.engine import Shell
from flashevolve_lab.policies import Policies
from flashevolve_lab.runs.knobs import recorded

PATIENCE_S = 30  # a test that waits longer than this has found a hang


class Scripted:
    """A model whose nth prompt is better than the one before: tasks answer with their prompt's number, reflections raise it.

    ``spoil(request, number)`` may be replaced: it is awaited before each answer, and may raise, wait, or return another text.
    """

    price: tuple[float, float] | None = (1.0, 2.0)

    def __init__(self, spoil: Callable[[lab.Request, int], Any] | None = None, *, task_s: float = 1.0, reflect_s: float = 5.0):
        self.spoil = spoil
        self.seconds = {"task": task_s, "reflection": reflect_s}
        self.asked: list[lab.Request] = []
        self.times: list[float] = []
        self.now = self.most = self.cancelled = self.written = 0

    async def complete(self, request: lab.Request) -> lab.Reply:
        number = len(self.asked)
        self.asked.append(request)
        self.times.append(asyncio.get_running_loop().time())
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.seconds[request.role])
            other = self.spoil(request, number) if self.spoil else None
            text = await other if asyncio.iscoroutine(other) else other
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1
        return lab.Reply(text if isinstance(text, str) else self.text(request), "stop", 10, 5, "scripted")

    def text(self, request: lab.Request) -> str:
        if request.role == "task":
            return request.messages[0]["content"].split()[-1]
        self.written += 1
        return f"Better.\n```\nprompt number {self.written}\n```"

    async def check(self) -> None:
        """Always there."""

    def describe(self) -> dict[str, Any]:
        return {"kind": "scripted", "simulated": True, "in_process": True}


@lab.quick
def by_number(example: Any, output: str) -> tuple[float, str]:
    return int(output) / 1000, f"{output} is too small"


def small_task(**changes: Any) -> lab.Task:
    """Six training and four validation examples; the seed is prompt number 0."""
    parts: dict[str, Any] = {
        "train": [{"input": f"t{i}"} for i in range(6)],
        "val": [{"input": f"v{i}"} for i in range(4)],
        "seed": "prompt number 0",
        "program": lab.Prompt(max_tokens=20),
        "metric": by_number,
        "name": "small",
    }
    return lab.Task(**{**parts, **changes})


class Memory:
    """A log that keeps what it is given, write by write."""

    def __init__(self) -> None:
        self.writes: list[list[Entry]] = []
        self.closed = 0

    def append(self, entries: Sequence[Entry]) -> None:
        self.writes.append(list(entries))

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        self.closed += 1


@dataclass
class World:
    """One run: `at` plans commands, `run` executes it to its end."""

    shell: Shell
    log: Memory
    first: list[on.Input]
    llm: Any
    live: dict[str, Any] = field(default_factory=dict)

    def at(self, seconds: float, *given: Any) -> World:
        """At this moment of lab time: inputs to post, or functions to call, on the engine's loop."""
        for what in given:
            call = what if callable(what) else (lambda what=what: self.shell.post(what))
            self.shell.loop.call_later(seconds, call)
        return self

    def stop_at(self, seconds: float) -> World:
        return self.at(seconds, lambda: self.shell.stop("enough"))

    def run(self, *, checked: bool = True) -> World:
        self.shell.start(self.first)
        self.shell.done.result(PATIENCE_S)
        if checked:
            self.check()
        return self

    @property
    def entries(self) -> list[Entry]:
        return [entry for write in self.log.writes for entry in write]

    def of(self, kind: type) -> list[Any]:
        return [entry.event for entry in self.entries if isinstance(entry.event, kind)]

    def when(self, kind: type) -> list[float]:
        return [entry.at for entry in self.entries if isinstance(entry.event, kind)]

    @property
    def end(self) -> ev.RunStopped:
        assert isinstance(self.entries[-1].event, ev.RunStopped), self.entries[-1]
        return self.entries[-1].event

    def check(self) -> None:
        """The standing properties of any run."""
        replayed = RunState()
        for write in self.log.writes:
            for entry in write:
                assert entry.seq == replayed.seq + 1
                apply(replayed, entry)
            check(replayed)
        assert replayed.seq == self.shell.state.seq
        assert (replayed.spent, replayed.counts) == (self.shell.state.spent, self.shell.state.counts)
        assert not replayed.jobs and not replayed.calls
        ended = [e.job for kind in (ev.JobFinished, ev.JobFailed, ev.JobAbandoned) for e in self.of(kind)]
        assert sorted(ended) == sorted(e.job for e in self.of(ev.JobStarted))
        assert sorted(e.call for e in self.of(ev.CallFinished)) == sorted(e.call for e in self.of(ev.CallStarted))
        assert len(self.of(ev.RunStopped)) == 1 and self.end
        assert self.shell.error is None
        assert self.log.closed == 1


def make(
    llm: Any = None,
    *,
    task: lab.Task | None = None,
    algorithm: Any = None,
    budget: dict[str, float] | None = None,
    clock: Any = None,
    limits: lab.Limits | None = None,
    sample_timeout_s: float = 600.0,
    seed: int = 0,
    log: Any = None,
    paused: bool = False,
    **knobs: Any,
) -> World:
    """A world about to run: by default `Scripted` on virtual time under ``Pipelined(2)``, for 100 metric calls."""
    llm, task, limits = llm or Scripted(), task or small_task(), limits or lab.Limits()
    worker = (algorithm or lab.GEPA()).bind(task, seed)
    policies, log = Policies(), log or Memory()
    knobs = {"schedule": lab.Pipelined(2), "staleness": lab.Guarded(), "concurrency": limits.concurrency, **knobs}
    settings = recorded(knobs, policies, worker.graph.names)
    shell = Shell(
        worker=worker,
        task=task,
        models={"task": [llm], "reflection": [llm]},
        limits=limits,
        log=log,
        policy=policies,
        clock=clock or lab.Virtual(),
        sample_timeout_s=sample_timeout_s,
    )
    started = ev.RunStarted(
        run="w",
        created="",
        seed=seed,
        clock="virtual",
        algorithm={},
        stages=worker.graph.names,
        settings=settings,
        budget=budget or {"metric_calls": 100},
        task={},
        llm={},
    )
    return World(shell, log, [on.Start(started), *([on.Pause()] if paused else [])], llm, {"policies": policies})


@pytest.fixture
def world() -> Callable[..., World]:
    return make


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture
def task_of() -> Callable[..., lab.Task]:
    return small_task


@pytest.fixture
def memory() -> type[Memory]:
    return Memory
