"""How much CPU does a long run cost on virtual time? Three lab hours, 50,000 model calls: at most 20 s of CPU.

    python tests/benchmarks/virtual_time.py [--seeds 3]

One run a seed: GEPA under Pipelined(16) on the simulated server (64 slots, calls of 10 s and reflections of 60 s in the mean,
log-normal), 100 validation samples, until three lab hours are over. CPU is the whole process's, imports not counted: engine,
log on disk, and the simulator itself. Prints one row a seed and the median; exits with 1 when the median misses the target.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time

import flashevolve_lab as lab
from flashevolve_lab.tasks import simulated_task

HOURS, CALLS, TARGET_S = 3, 50_000, 20.0


def measure(seed: int) -> dict[str, float]:
    """One run: CPU and wall seconds, lab hours and calls."""
    landscape = lab.IndependentRules(n_rules=100, p_improve=0.5, seed=seed)
    model = lab.Simulated(landscape, speed=lab.FixedLatency(task_s=10.0, reflection_s=60.0, slots=64), seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        cpu, wall = time.process_time(), time.perf_counter()
        run = lab.start(
            simulated_task(landscape, n_train=200, n_val=100),
            llm=model,
            schedule=lab.Pipelined(32),
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
    rows = [measure(seed) for seed in range(parser.parse_args().seeds)]
    print("seed  cpu_s  wall_s  lab_hours   calls  µs CPU a call  versions")
    for seed, row in enumerate(rows):
        each = 1e6 * row["cpu_s"] / row["calls"]
        print(
            f"{seed:4d} {row['cpu_s']:6.1f} {row['wall_s']:7.1f} {row['lab_hours']:10.2f} {row['calls']:7.0f} {each:14.0f} {row['version']:9.0f}"
        )
    scaled = statistics.median(row["cpu_s"] * CALLS / row["calls"] for row in rows)
    print(f"median for {CALLS:,} calls: {scaled:.1f} s of CPU (target: at most {TARGET_S:g} s)")
    return 0 if scaled <= TARGET_S and all(row["calls"] >= 0.5 * CALLS for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
