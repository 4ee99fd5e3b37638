"""How much CPU does a long run cost on virtual time? Three lab hours, at least 50,000 model calls: at most 20 s of CPU.

    python tests/benchmarks/virtual_time.py [--seeds 3]

One run a seed: GEPA under ``Pipelined(32)`` on the simulated server (64 slots, calls of 10 s and reflections of 60 s in the mean,
log-normal), 100 validation samples, until three lab hours are over. CPU is the whole process's, imports not counted: engine,
log on disk, and the simulator itself. Nothing is extrapolated: a run that has fewer calls than 50,000, or ends before its three
hours, fails, and each run's own CPU seconds are held against the target. Prints one row a seed, with the machine's load, for the
cost of a call depends on it; exits with 1 when the median misses.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

import flashevolve_lab as lab
from flashevolve_lab.tasks import simulated_task

HOURS, CALLS, TARGET_S = 3, 50_000, 20.0
DEPTH, SLOTS = 32, 64


def measure(seed: int) -> dict[str, float]:
    """One run: CPU and wall seconds, lab hours and calls."""
    landscape = lab.IndependentRules(n_rules=100, p_improve=0.5, seed=seed)
    model = lab.Simulated(landscape, speed=lab.FixedLatency(task_s=10.0, reflection_s=60.0, slots=SLOTS), seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        cpu, wall = time.process_time(), time.perf_counter()
        run = lab.start(
            simulated_task(landscape, n_train=200, n_val=100),
            llm=model,
            schedule=lab.Pipelined(DEPTH),
            budget=lab.Budget(seconds=HOURS * 3600),
            clock=lab.Virtual(),
            seed=seed,
            folder=folder,
        )
        status = run.wait()
        row = {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}
        return {**row, "lab_hours": status.seconds / 3600, "calls": status.spent["llm_calls"], "version": status.version}


def main() -> int:
    """Print the table; 1 when the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    print("seed  cpu_s  wall_s  lab_hours   calls  µs CPU a call  versions  load")
    rows = []
    for seed in range(parser.parse_args().seeds):
        row = measure(seed)
        rows.append(row)
        each = 1e6 * row["cpu_s"] / row["calls"]
        print(
            f"{seed:4d} {row['cpu_s']:6.1f} {row['wall_s']:7.1f} {row['lab_hours']:10.2f} {row['calls']:7.0f} {each:14.0f} "
            f"{row['version']:9.0f} {os.getloadavg()[0]:5.1f}",
            flush=True,
        )
    cpu_s = statistics.median(row["cpu_s"] for row in rows)
    print(f"median: {cpu_s:.1f} s of CPU (target: at most {TARGET_S:g} s for {HOURS} lab hours with at least {CALLS:,} calls)")
    missed = misses(rows)
    print("\n".join(f"MISSED: {what}" for what in missed) or "met")
    return 1 if missed else 0


def misses(rows: Sequence[Mapping[str, float]]) -> list[str]:
    """What the runs miss of the target, in words; each as it was measured."""
    said = [f"{row['calls']:,.0f} calls are fewer than {CALLS:,}" for row in rows if row["calls"] < CALLS]
    said += [f"{row['lab_hours']:.2f} lab hours are fewer than {HOURS}" for row in rows if row["lab_hours"] < HOURS - 1e-6]
    cpu_s = statistics.median(row["cpu_s"] for row in rows)
    return said + ([f"{cpu_s:.1f} s of CPU are more than {TARGET_S:g}"] if cpu_s > TARGET_S else [])


if __name__ == "__main__":
    sys.exit(main())
