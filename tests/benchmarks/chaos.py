"""Does a run survive what happens to it? Kills, faults, and a thousand random runs; every count must reconcile.

    python tests/benchmarks/chaos.py [--kills 20] [--faulty 1] [--runs 1000] [--seed 0]

1. One run over HTTP is killed (``kill -9``) again and again at random moments with at least 16 calls in flight, and resumed by a new
   process each time, to its end. 2. Runs against a server that answers with 429, 500, hangs and malformed replies, 10% each, end by
   their budget. 3. Random runs on virtual time: any schedule, policy, budget, faults, and changes, pauses and steps at given calls in
   the middle, so that the same seed is the same run.

After each: every invariant of the state holds at every moment of the log, no budget was exceeded at any moment, every call and job
that started has ended, and no reply that had arrived was paid twice. The server of 1 and 2 runs here and writes down each request
that arrives; afterwards every call of the log is accounted for, request by request (`reconcile`). Exits with 1 if not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path

from aiohttp import web

import flashevolve_lab as lab
from flashevolve_lab.core import Entry, RunState, apply, check
from flashevolve_lab.core import events as ev
from flashevolve_lab.engine.calling import _digest as digest
from flashevolve_lab.llm.simulated_server import application

LANDSCAPE = lab.IndependentRules(n_rules=20, p_improve=0.6)
IN_FLIGHT = 16
LOST = "lost with its process"
TEMPERATURE: ContextVar[float | None] = ContextVar("temperature", default=None)  # of the request that is being served

CHILD = """
import sys
import flashevolve_lab as lab
from chaos import LANDSCAPE
url, folder, calls, mode = sys.argv[1:]
models = dict(llm=lab.OpenAI(url, model="sim-task"), reflection_llm=lab.OpenAI(url, model="sim-reflect"))
task = lab.simulated_task(LANDSCAPE, n_train=60, n_val=40)
limits = lab.Limits(deadline_s=2.0, retries=6, backoff_s=0.1)
if mode == "start":
    budget = lab.Budget(metric_calls=int(calls))
    run = lab.start(task, budget=budget, schedule=lab.Pipelined(24), limits=limits, name="chaos", folder=folder, **models)
else:
    run = lab.resume(folder + "/chaos.sqlite", task=task, limits=limits, **models)
run.wait()
"""


def audit(entries: Sequence[Entry], *, ended: bool = True) -> RunState:
    """Fold a log, checking everything that must hold on the way; returns the final state."""
    state = RunState()
    paid: Counter[tuple[str, str, str, str]] = Counter()
    for here, following in zip(entries, [*entries[1:], None], strict=True):
        apply(state, here)
        if isinstance(here.event, ev.CallStarted):
            job = state.jobs[here.event.job]
            answer = state.answers.get((job.item, job.stage), {}).get(here.event.key)
            assert answer is None or answer.request != here.event.request, f"a reply that had arrived is paid again: {here}"
            paid[job.item, job.stage, here.event.key, here.event.request] += 1
        if following is None or following.at != here.at:  # the end of a turn
            check(state)
    if ended:
        assert state.status == "stopped", f"the run has not ended: {state.status}"
        assert not state.jobs and not state.calls, f"started and never ended: {state.jobs}, {state.calls}"
    return state


# --- the server's own record ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Seen:
    """One request as the server saw it: what was asked, and what was answered (None: nothing, an error, or the client went away)."""

    request: str
    answer: lab.Reply | None = None


class Witness(lab.Simulated):
    """A simulated model that writes down every request that arrives."""

    def __init__(self, faults: lab.Faults) -> None:
        super().__init__(LANDSCAPE, speed=lab.FixedLatency(task_s=0.15, reflection_s=0.6, slots=64), faults=faults)
        self.seen: list[Seen] = []

    async def complete(self, request: lab.Request) -> lab.Reply:
        seen = Seen(digest(replace(request, temperature=TEMPERATURE.get())))
        self.seen.append(seen)
        seen.answer = await super().complete(request)
        return seen.answer


@web.middleware
async def noting(request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> web.StreamResponse:
    """Keeps the temperature, which a simulated model has no use for."""
    if request.method == "POST":
        TEMPERATURE.set((await request.json()).get("temperature"))
    return await handler(request)


@contextlib.contextmanager
def serving(witness: Witness) -> Iterator[str]:
    """Its address, while it serves from a thread of this process."""
    ready: Future[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def serve() -> None:
        ended = asyncio.Event()
        app = application(witness)
        app.middlewares.append(noting)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        ready.set_result((runner.addresses[0][1], asyncio.get_running_loop(), ended))
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="witness")
    thread.start()
    port, loop, ended = ready.result(30)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)


def reconcile(entries: Sequence[Entry], seen: Sequence[Seen]) -> Counter[str]:
    """Account for every call of a log and every request at the server, one by one; returns the counts.

    What was asked is known by its digest on both sides. Of each digest: no more requests arrived than the log has calls; a call that
    never arrived is one that a resume closed as lost with its process, charged exactly as reserved; every reply in the log is one the
    server gave, with the same text and tokens; an answer that is not in the log belongs to a call that was lost, or given up.
    """
    calls, ends = defaultdict[str, list[ev.CallFinished]](list), Counter[str]()
    begun = {entry.event.call: entry.event for entry in entries if isinstance(entry.event, ev.CallStarted)}
    for entry in entries:
        if isinstance(entry.event, ev.CallFinished):
            call = begun[entry.event.call]
            calls[call.request].append(entry.event)
            if entry.event.text.startswith(LOST):
                assert entry.event.spent == call.reserved, f"a lost call is charged as reserved: {call}, {entry.event}"
    arrived = defaultdict[str, list[Seen]](list)
    for request in seen:
        arrived[request.request].append(request)
    unknown = sorted(set(arrived) - set(calls))
    assert not unknown, f"{len(unknown)} requests that the log does not know, as {unknown[:3]}"
    for key, finished in calls.items():
        ends += _reconciled(key, finished, arrived[key])
    assert ends["calls"] == len(begun) and ends["arrived"] == len(seen)
    assert ends["tokens in the log"] + ends["tokens of answers lost"] == ends["tokens served"]
    return ends


def _reconciled(key: str, finished: Sequence[ev.CallFinished], arrived: Sequence[Seen]) -> Counter[str]:
    """The same for all calls that asked the same."""
    told = Counter((e.text, e.prompt_tokens, e.completion_tokens) for e in finished if e.outcome == "ok")
    lost = [event for event in finished if event.text.startswith(LOST)]
    given_up = [event for event in finished if event.outcome in ("transient", "cancelled") and event not in lost]
    answers = [seen.answer for seen in arrived if seen.answer]
    served = Counter((_carried(answer.text), answer.prompt_tokens, answer.completion_tokens) for answer in answers)
    unsent = len(finished) - len(arrived)
    assert unsent >= 0, f"{key}: {len(finished)} calls in the log, {len(arrived)} requests at the server"
    assert unsent <= len(lost), f"{key}: {unsent} calls never arrived, and only {len(lost)} were lost with their process"
    assert not told - served, f"{key}: replies in the log that the server never gave: {told - served}"
    unheard = served - told
    assert unheard.total() <= len(lost) - unsent + len(given_up), (
        f"{key}: answers that no call in the log waited for: {unheard}"
    )
    counts = {"calls": len(finished), "arrived": len(arrived), "ok": told.total(), "lost": len(lost), "never sent": unsent}
    for name, replies in (("in the log", told), ("served", served), ("of answers lost", unheard)):
        counts[f"tokens {name}"] = sum(count * (prompt + completion) for (_, prompt, completion), count in replies.items())
    return Counter({**counts, "answers lost": unheard.total()})


def _carried(text: str) -> str:
    """What the client makes of a text: a lone surrogate, which no log could hold, becomes a replacement character."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# --- kills and faults -------------------------------------------------------------------------------------------------------


def kills(count: int, seed: int, metric_calls: int | None = None) -> None:
    """Kill one run of so many metric calls ``count`` times, resume it to its end, and reconcile its log with the server's record."""
    chance, witness, in_flight = random.Random(seed), Witness(lab.Faults()), list[int]()
    with tempfile.TemporaryDirectory() as folder, serving(witness) as url:
        child = spawn(url, folder, metric_calls or 400 * count + 1500, "start")
        while len(in_flight) < count and child.poll() is None:
            time.sleep(chance.uniform(0.3, 1.2))
            if witness.stats()["in_service"] < IN_FLIGHT:
                continue
            in_flight.append(witness.stats()["in_service"])
            child.kill()
            child.wait()
            child = spawn(url, folder, 0, "resume")
        child.wait()
        assert child.returncode == 0, f"the last process failed with {child.returncode}"
        assert len(in_flight) == count, f"the run ended after {len(in_flight)} of {count} kills"
        entries = lab.open(f"{folder}/chaos.sqlite").entries
    state = audit(entries)
    ends = reconcile(entries, witness.seen)
    lost = state.counts["lost"]
    print(
        f"kills: {count} with {min(in_flight)} to {max(in_flight)} calls in flight, {lost} jobs lost and taken up again; ",
        end="",
    )
    print(f"ended by {state.stop and state.stop.reason}\n  reconciled: {dict(ends)}")
    assert sum(isinstance(entry.event, ev.RunResumed) for entry in entries) == count
    assert ends["calls"] == state.spent.llm_calls and ends["lost"] > 0


def faulty(seed: int) -> None:
    """A server at its worst: 10% each of 429, 500, hangs and malformed replies."""
    witness = Witness(lab.Faults(rate_limited=0.1, server_error=0.1, hang=0.1, malformed=0.1, retry_after_s=0.1))
    with tempfile.TemporaryDirectory() as folder, serving(witness) as url:
        child = spawn(url, folder, 1200, "start")
        child.wait(timeout=500)
        entries = lab.open(f"{folder}/chaos.sqlite").entries
    state = audit(entries)
    ends = reconcile(entries, witness.seen)
    failures = {name: count for name, count in state.counts.items() if "call " in name or "fail" in name}
    print(f"faults: ended by {state.stop and state.stop.kind}; {failures}\n  reconciled: {dict(ends)}")
    assert state.stop is not None and state.stop.kind == "budget", state.stop
    assert state.spent.llm_calls == ends["calls"] == ends["arrived"] and not ends["lost"]


# --- random runs ------------------------------------------------------------------------------------------------------------


class Disturbed(lab.Simulated):
    """A simulated model that has something done at given calls, counted from the run's first."""

    acts: Mapping[int, Callable[[], None]]
    made = 0

    async def complete(self, request: lab.Request) -> lab.Reply:
        self.made += 1
        if act := self.acts.get(self.made):
            act()
        return await super().complete(request)


def random_run(seed: int) -> list[Entry]:
    """The log of one random run on virtual time, audited. The same seed gives the same run, disturbances included."""
    chance = random.Random(seed)
    landscape = chance.choice([lab.IndependentRules, lab.ConflictingRules, lab.UnitingRules])(
        n_rules=chance.randint(5, 30), p_improve=chance.random(), noise=chance.choice([0.0, 0.1]), seed=seed
    )
    rates = {
        name: chance.choice([0, 0, 0.1]) for name in ("rate_limited", "server_error", "hang", "malformed", "empty", "truncated")
    }
    model = Disturbed(landscape, faults=lab.Faults(**rates), speed=lab.FixedLatency(slots=chance.randint(2, 64)), seed=seed)
    started: Future[lab.Run] = Future()
    acts = (lambda: disturb(started.result(30), chance), lambda: disturb_in_a_pause(started.result(30), chance))
    model.acts = {chance.randint(1, 120): chance.choice(acts) for _ in range(chance.randint(0, 4))}
    with tempfile.TemporaryDirectory() as folder:
        run = lab.start(
            lab.simulated_task(landscape, n_train=chance.randint(6, 40), n_val=chance.randint(4, 30)),
            lab.GEPA(minibatch=chance.randint(1, 5), cache=chance.random() < 0.7),
            llm=model,
            budget=budget(chance),
            schedule=schedule(chance),
            staleness=staleness(chance),
            slots={"validate": chance.randint(1, 4)} if chance.random() < 0.3 else None,
            limits=lab.Limits(concurrency=chance.randint(1, 64), deadline_s=20.0, retries=chance.randint(0, 4)),
            clock=lab.Virtual(),
            seed=seed,
            folder=folder,
        )
        started.set_result(run)
        with contextlib.suppress(lab.RunError):  # so many faults that it gave up: also an end
            run.wait(120)
        audit(run.entries)
        return run.entries


def budget(chance: random.Random) -> lab.Budget:
    """One to three limits, large enough for the seed."""
    limits = {
        "metric_calls": chance.randint(150, 600),
        "llm_calls": chance.randint(200, 700),
        "tokens": chance.randint(40_000, 400_000),
        "proposals": chance.randint(3, 40),
        "seconds": chance.uniform(5, 200),
    }
    names = chance.sample(sorted(limits), chance.randint(1, 3))
    return lab.Budget(**{name: limits[name] for name in {"metric_calls", *names}})  # type: ignore[arg-type]


def schedule(chance: random.Random) -> object:
    """Any schedule."""
    return chance.choice(
        [lab.Sequential(), lab.Batched(chance.randint(1, 3), chance.randint(1, 3)), lab.Pipelined(chance.randint(1, 32))]
    )


def staleness(chance: random.Random) -> object:
    """Any policy."""
    gap = chance.randint(0, 8)
    return chance.choice(
        [lab.Full(), lab.Guarded(gap), lab.Guarded(gap, beyond="update"), lab.Guarded(gap, paper=True), lab.Reflective()]
    )


def disturb(run: lab.Run, chance: random.Random) -> None:
    """Change something, now."""
    changes: list[Callable[[], object]] = [
        lambda: run.set(schedule=schedule(chance)),
        lambda: run.set(staleness=staleness(chance)),
        lambda: run.set(concurrency=chance.randint(1, 64)),
        lambda: run.set(slots={"gate": chance.randint(1, 5)}),
        lambda: run.pause().resume(),
    ]
    chance.choice(changes)()


def disturb_in_a_pause(run: lab.Run, chance: random.Random) -> None:
    """Pause, disturb, step, disturb, resume: a second of lab time and more between each. On the engine's thread."""
    loop, at = asyncio.get_running_loop(), 0.0
    run.pause()
    steps: list[Callable[[], object]] = [
        lambda: disturb(run, chance),
        lambda: run.step_soon(chance.randint(1, 3)),
        lambda: disturb(run, chance),
        lambda: run.step_soon(1, chance.choice(["", "rollout", "validate"])),
        lambda: run.resume(),
    ]
    for act in steps:
        at += chance.uniform(1.0, 10.0)
        loop.call_later(at, act)


def happened(entries: Sequence[Entry]) -> int:
    """Disturbances by a person in a log, all of them after its first call and before its end."""
    by_hand = [e for e in (entry.event for entry in entries) if isinstance(e, ev.Paused) or getattr(e, "by", "") == "user"]
    return len(by_hand)


def spawn(url: str, folder: str, calls: int, mode: str) -> subprocess.Popen[bytes]:
    """A process that starts or resumes the run."""
    here = str(Path(__file__).parent)
    return subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {here!r})\n{CHILD}", url, folder, str(calls), mode]
    )


def main() -> int:
    """All three parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--faulty", type=int, default=1)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if asked.kills:
        kills(asked.kills, asked.seed)
    for seed in range(asked.faulty):
        faulty(seed)
    ends: Counter[str] = Counter()
    disturbed = 0
    for seed in range(asked.seed, asked.seed + asked.runs):
        entries = random_run(seed)
        disturbed += happened(entries)
        ends += Counter(entry.event.kind for entry in entries if isinstance(entry.event, ev.RunStopped))
    print(f"random runs: {asked.runs} audited, {disturbed} times disturbed, no invariant broken, no budget exceeded; ", end="")
    print(f"ended by {dict(ends)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
