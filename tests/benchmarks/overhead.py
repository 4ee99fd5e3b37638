"""What the engine itself costs: CPU per model call, and the share of a core that 1,000 slow calls in flight take.

    python tests/benchmarks/overhead.py [--calls 20000] [--seconds 20] [--only engine|http] [--profile] [--json PATH]

1. engine: a whole evolution (GEPA, Pipelined(32), 100 validation samples, log on disk) on a model that answers at once, in process, under
   virtual and under wall time. CPU of the whole process by calls, the model's own microsecond included; target: at most 250 µs a call.
2. http: 1,000 calls of 4 s in flight on the independent server (another process) through `lab.OpenAI`: CPU by wall time of this process in
   steady state, the openai client included; target: at most half a core. The server counts what was really in flight.

``--profile`` runs each under cProfile (which inflates the times) and prints where they go. Exits with 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from independent_server import examples, judged
from throughput import serving

import flashevolve_lab as lab
from flashevolve_lab.engine import Shell

TARGET_US, TARGET_CORE = 250.0, 0.5
IN_FLIGHT, CALL_S = 1_000, 4.0


class AtOnce:
    """A model that answers at once: tasks with their prompt's level, reflections with one level more for one in four."""

    def __init__(self) -> None:
        self.reflections = 0

    async def complete(self, request: lab.Request) -> lab.Reply:
        """One reply."""
        said = request.messages[0]["content"]
        if request.role == "task":
            return lab.Reply(said.partition(",")[0], "stop", 60, 5)
        self.reflections += 1
        level = said.split("```\n", 2)[1].partition(",")[0]
        new = float(level) + (1e-6 if self.reflections % 4 == 0 else -1e-6)
        return lab.Reply(f"```\n{new:.6f}, version {self.reflections} of the instruction\n```", "stop", 400, 40)

    async def check(self) -> None:
        """Always there."""

    def describe(self) -> dict[str, Any]:
        """Simulated, so that virtual time is allowed."""
        return {"kind": "at once", "simulated": True, "in_process": True}


@lab.quick
def level_of(example: Mapping[str, Any], output: str) -> float:
    """The quick metric."""
    return float(output)


def engine_cost(clock: Any, calls: int) -> dict[str, float]:
    """µs of CPU a call, of a whole evolution on a model that costs nothing."""
    task = lab.Task(examples(100), examples(100, 100), "0.5, the seed", lab.Prompt(max_tokens=32), level_of)
    with tempfile.TemporaryDirectory() as folder:
        cpu, began = time.process_time(), time.perf_counter()
        run = lab.start(
            task,
            llm=AtOnce(),
            schedule=lab.Pipelined(32),
            staleness=lab.Full(),
            budget=lab.Budget(llm_calls=calls),
            clock=clock,
            folder=folder,
        )
        status = run.wait()
        cpu, wall = time.process_time() - cpu, time.perf_counter() - began
    spent = status.spent["llm_calls"]
    return {"calls": spent, "us_per_call": 1e6 * cpu / spent, "calls_per_s": spent / wall, "commits": status.version}


def http_share(seconds: float) -> dict[str, float]:
    """CPU by wall time with 1,000 calls in flight over HTTP: one huge validation, watched in the middle."""
    n_val = int(IN_FLIGHT / CALL_S * (seconds + 4 * CALL_S))
    task = lab.Task(examples(3), examples(n_val, 3), "Rules: ", lab.Prompt(max_tokens=32), lab.quick(judged))
    options = ("--slots", str(4 * IN_FLIGHT), "--task-s", str(CALL_S), "--task-sigma", "0.3")
    with tempfile.TemporaryDirectory() as folder, serving(*options) as served:
        run = lab.start(
            task,
            llm=lab.OpenAI(served.base_url, model="task"),
            budget=lab.Budget(metric_calls=2 * n_val + 100),
            limits=lab.Limits(concurrency=IN_FLIGHT),
            folder=folder,
        )
        time.sleep(2 * CALL_S)  # filled, and the first calls replaced
        before, cpu, began = served.ask("/stats"), time.process_time(), time.perf_counter()
        time.sleep(seconds)
        after, cpu, wall = served.ask("/stats"), time.process_time() - cpu, time.perf_counter() - began
        run.stop()
        run.wait()
    done = after["calls"]["task"] - before["calls"]["task"]
    in_flight = (after["area"] - before["area"]) / (after["seconds"] - before["seconds"])
    return {"core": cpu / wall, "in_flight": in_flight, "calls_per_s": done / wall, "us_per_call": 1e6 * cpu / done}


def profiled(measure: Any, *arguments: Any) -> Any:
    """The same with the engine's thread under cProfile; prints what takes longest."""
    profile, plain = cProfile.Profile(), Shell._run

    def watched(shell: Shell) -> None:
        profile.enable()
        try:
            plain(shell)
        finally:
            profile.disable()

    Shell._run = watched  # type: ignore[method-assign]
    try:
        result = measure(*arguments)
    finally:
        Shell._run = plain  # type: ignore[method-assign]
    for order, rows in (("tottime", 30), ("cumulative", 60)):
        pstats.Stats(profile).strip_dirs().sort_stats(order).print_stats(rows)
    return result


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="of steady state over HTTP")
    parser.add_argument("--only", choices=("engine", "http"))
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    """Print, write; 1 when a target is missed."""
    given = arguments()
    measured: dict[str, dict[str, float]] = {}
    call = profiled if given.profile else lambda measure, *rest: measure(*rest)
    if given.only != "http":
        for name, clock in (("virtual", lab.Virtual()), ("wall", lab.Wall())):
            row = measured[name] = call(engine_cost, clock, given.calls)
            print(
                f"engine, {name:8}: {row['us_per_call']:5.0f} µs CPU a call (target: at most {TARGET_US:g}); "
                f"{row['calls']:,.0f} calls, {row['calls_per_s']:,.0f} a second, {row['commits']} commits",
                flush=True,
            )
    if given.only != "engine":
        row = measured["http"] = call(http_share, given.seconds)
        print(
            f"http, {row['in_flight']:.0f} of {IN_FLIGHT} in flight: {row['core']:.2f} of a core (target: at most {TARGET_CORE:g}); "
            f"{row['calls_per_s']:.0f} calls a second, {row['us_per_call']:.0f} µs CPU a call"
        )
    if given.json:
        given.json.write_text(json.dumps(measured, indent=1))
    return 0 if meets(measured) else 1


def meets(measured: Mapping[str, Mapping[str, float]]) -> bool:
    """Whether all that was measured meets its target, at the load it was meant for."""
    engine = all(measured[name]["us_per_call"] <= TARGET_US for name in ("virtual", "wall") if name in measured)
    http = measured.get("http")
    return engine and (http is None or (http["core"] <= TARGET_CORE and http["in_flight"] >= 0.97 * IN_FLIGHT))


if __name__ == "__main__":
    assert threading.current_thread() is threading.main_thread()
    sys.exit(main())
