"""Does a run survive what happens to it? Kills, faults, and a thousand random runs; every count must reconcile.

    python tests/benchmarks/chaos.py [--kills 20] [--faulty 1] [--runs 1000] [--seed 0]

1. One run over HTTP is killed (``kill -9``) again and again at random moments with at least 16 calls in flight, and resumed by a new
   process each time, to its end. 2. Runs against a server that answers with 429, 500, hangs and malformed replies, 10% each, end by
   their budget. 3. Random runs on virtual time: any schedule, policy, budget, faults, and changes in the middle.

After each: every invariant of the state holds at every moment of the log, no budget was exceeded at any moment, every call and job
that started has ended, no reply that had arrived was paid twice, and the server's own counts are the log's. Exits with 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import flashevolve_lab as lab
from flashevolve_lab.core import Entry, RunState, apply, check
from flashevolve_lab.core import events as ev

LANDSCAPE = lab.IndependentRules(n_rules=20, p_improve=0.6)
IN_FLIGHT = 16

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


def kills(count: int, seed: int) -> None:
    """Kill one run ``count`` times, resume it to its end, and compare its log with the server's counts."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, server(lab.Faults()) as at:
        done = 0
        child = spawn(at.base_url, folder, 400 * count + 1500, "start")
        while done < count and child.poll() is None:
            time.sleep(chance.uniform(0.3, 1.2))
            if at.stats()["in_service"] < IN_FLIGHT:
                continue
            child.kill()
            child.wait()
            done += 1
            child = spawn(at.base_url, folder, 0, "resume")
        child.wait()
        assert child.returncode == 0, f"the last process failed with {child.returncode}"
        state = audit(lab.open(f"{folder}/chaos.sqlite").entries)
        arrived = sum(role["arrived"] for role in at.stats()["roles"].values())
        lost = state.counts["lost"]
        print(f"kills: {done} with at least {IN_FLIGHT} calls in flight, {lost} jobs lost and taken up again; ", end="")
        print(
            f"calls in the log {state.spent.llm_calls:,}, at the server {arrived:,}; ended by {state.stop and state.stop.reason}"
        )
        assert done == count, f"the run ended after {done} of {count} kills"
        unsent = state.spent.llm_calls - arrived  # reserved and written, but killed before it was sent
        assert 0 <= unsent <= done * 64, f"the log has {state.spent.llm_calls} calls, the server saw {arrived}"


def faulty(seed: int) -> None:
    """A server at its worst: 10% each of 429, 500, hangs and malformed replies."""
    faults = lab.Faults(rate_limited=0.1, server_error=0.1, hang=0.1, malformed=0.1, retry_after_s=0.1)
    with tempfile.TemporaryDirectory() as folder, server(faults) as at:
        child = spawn(at.base_url, folder, 1200, "start")
        child.wait(timeout=500)
        state = audit(lab.open(f"{folder}/chaos.sqlite").entries)
        arrived = sum(role["arrived"] for role in at.stats()["roles"].values())
        failures = {name: count for name, count in state.counts.items() if "call " in name or "fail" in name}
        print(
            f"faults: ended by {state.stop and state.stop.kind}; calls {state.spent.llm_calls:,}, at the server {arrived:,}; {failures}"
        )
        assert state.stop is not None and state.stop.kind == "budget", state.stop
        assert state.spent.llm_calls == arrived


def random_run(seed: int) -> RunState:
    """One random run on virtual time, audited."""
    chance = random.Random(seed)
    landscape = chance.choice([lab.IndependentRules, lab.ConflictingRules, lab.UnitingRules])(
        n_rules=chance.randint(5, 30), p_improve=chance.random(), noise=chance.choice([0.0, 0.1]), seed=seed
    )
    rates = {
        name: chance.choice([0, 0, 0.1]) for name in ("rate_limited", "server_error", "hang", "malformed", "empty", "truncated")
    }
    model = lab.Simulated(landscape, faults=lab.Faults(**rates), speed=lab.FixedLatency(slots=chance.randint(2, 64)), seed=seed)
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
        for _ in range(chance.randint(0, 3)):
            disturb(run, chance)
        with contextlib.suppress(lab.RunError):  # so many faults that it gave up: also an end
            run.wait(120)
        return audit(run.entries)


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
    return chance.choice([lab.Full(), lab.Guarded(gap), lab.Guarded(gap, beyond="update"), lab.Guarded(gap, paper=True), lab.Reflective()])


def disturb(run: lab.Run, chance: random.Random) -> None:
    """Change something while it runs; too late is fine."""
    changes = [
        lambda: run.set(schedule=schedule(chance)),
        lambda: run.set(staleness=staleness(chance)),
        lambda: run.set(concurrency=chance.randint(1, 64)),
        lambda: run.set(slots={"gate": chance.randint(1, 5)}),
        lambda: run.pause().resume(),
    ]
    with contextlib.suppress(lab.SetupError):  # it has ended
        chance.choice(changes)()


def server(faults: lab.Faults):  # type: ignore[no-untyped-def]
    """A fresh simulated server."""
    return lab.simulated_server(LANDSCAPE, speed=lab.FixedLatency(task_s=0.15, reflection_s=0.6, slots=64), faults=faults)


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
    for seed in range(asked.seed, asked.seed + asked.runs):
        state = random_run(seed)
        ends[state.stop.kind if state.stop else "?"] += 1
    print(f"random runs: {asked.runs} audited, no invariant broken, no budget exceeded; ended by {dict(ends)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
