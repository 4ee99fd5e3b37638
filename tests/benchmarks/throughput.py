"""Proposals per minute and busy slots: public gepa and flashevolve_lab, one after the other on one independent server.

    python tests/benchmarks/throughput.py                          a few minutes: one seed, the slow systems stopped after a minute
    python tests/benchmarks/throughput.py --full --json full.json  three seeds, 6,000 metric calls for every system, about two hours

The server (`independent_server.py`, its own process, 64 slots shared by rollouts of 0.25 s and reflections of 2.5 s in the mean) enforces
the capacity and measures. Every system runs in a process of its own, with the same data, seed and budget of metric calls; no
evaluation cache anywhere; ours under `Full` staleness, so that every accepted child is validated, as in gepa.

What is reported, as median and min–max over the seeds
- proposals/min: distinct new children with a first gate verdict (ours), ``on_proposal_end`` (gepa), over the whole run's wall time, start and
  drain included; steady/min: reflections answered per minute inside the window.
- slots busy: the server's time average of requests in service inside the window. The window opens when as many reflections have been
  answered as the system keeps in flight, and closes when the last reflection arrives. Both are seen by the server alone.
- best: highest mean validation score, at the largest number of metric calls that every system of that seed reached.
- passed, unaffordable: children that passed the gate when the budget no longer covered their validation (ours only: gepa overspends).
- to seq: seconds until the final score of sequential gepa (same seed) was reached.
- CPU: of the system's process (user and system), HTTP client included, interpreter start and imports not.

Exits with 1 unless one `Pipelined` depth keeps at least 80% of the slots busy, makes at least 18 times sequential gepa's proposals/min and at
least 2.5 times those of gepa's best P×N (medians of the ratios by seed).
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from independent_server import SEED_PROMPT, examples, judged

HERE = Path(__file__).parent
SLOTS, N_TRAIN, N_VAL, MINIBATCH = 64, 100, 100, 3
BUSY, TIMES_SEQUENTIAL, TIMES_BATCHED = 0.80, 18.0, 2.5
NOMINAL = {"gepa sequential": 16.0, "gepa 2x2": 39.0, "gepa 8x2": 100.0, "lab Sequential": 16.0}  # per minute, for the forecast

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class System:
    """One thing measured. ``p`` × ``n`` for gepa; ``depth`` 0 is our `Sequential`, None is gepa."""

    name: str
    p: int = 1
    n: int = 1
    depth: int | None = None

    @property
    def width(self) -> int:
        """Proposals in flight."""
        return self.p * self.n if self.depth is None else max(1, self.depth)

    @property
    def nominal(self) -> float:
        """Proposals per minute, roughly."""
        return NOMINAL.get(self.name, min(350.0, 15.0 * self.width))


def systems(depths: Sequence[int]) -> list[System]:
    """In the order in which they run."""
    public = [System("gepa sequential"), System("gepa 2x2", 2, 2), System("gepa 8x2", 8, 2)]
    return [*public, System("lab Sequential", depth=0), *(System(f"lab Pipelined({d})", depth=d) for d in depths)]


# --- one run of ours, in its own process ----------------------------------------------------------------------------------


def run_lab(order: Mapping[str, Any]) -> Row:
    """One evolution on the server."""
    import openai

    import flashevolve_lab as lab

    del openai  # imported so that its import is not measured
    task = lab.Task(
        train=examples(N_TRAIN),
        val=examples(N_VAL, N_TRAIN),
        seed=SEED_PROMPT,
        program=lab.Prompt(max_tokens=32),
        metric=lab.quick(judged),
        name="throughput",
    )
    with tempfile.TemporaryDirectory() as folder:
        cpu, began = time.process_time(), time.monotonic()
        run = lab.start(
            task,
            lab.GEPA(minibatch=MINIBATCH, cache=False),
            llm=lab.OpenAI(order["base_url"], model="task"),
            reflection_llm=lab.OpenAI(order["base_url"], model="reflect"),
            schedule=lab.Pipelined(order["depth"]) if order["depth"] else lab.Sequential(),
            staleness=lab.Full(),
            budget=lab.Budget(metric_calls=order["metric_calls"], seconds=order["cap_s"]),
            limits=lab.Limits(concurrency=order["concurrency"]),
            seed=order["seed"],
            folder=folder,
        )
        status = run.wait()
        row = {"seconds": time.monotonic() - began, "cpu_s": time.process_time() - cpu}
        return {**row, **lab_counts(status), "curve": lab_curve(run.entries), "version": run.state.started.lab}


def lab_counts(status: Any) -> Row:
    """Counts of a finished run."""
    outcomes = status.outcomes
    counts = {"proposals": status.proposals, "accepted": status.accepted, "metric_calls": status.spent["metric_calls"]}
    others = {
        "skipped": "skipped",
        "duplicates": "refused",
        "stale": "discarded",
        "unaffordable": "unaffordable",
        "failed": "failed",
    }
    return {
        **counts,
        **{name: outcomes.get(key, 0) for name, key in others.items()},
        "best": status.best_score,
        "why": status.reason,
    }


def lab_curve(entries: Sequence[Any]) -> list[tuple[float, int, float]]:
    """Seconds, metric calls and best score so far, at every commit."""
    from flashevolve_lab.views import Progress

    progress = Progress()
    progress.feed(entries)
    return [(point.at, point.metric_calls, point.best) for point in progress.snapshot().points]


# --- the server, and one system on it -------------------------------------------------------------------------------------


class Served:
    """The server process, as the harness sees it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.base_url = f"http://127.0.0.1:{port}/v1"

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> Row:
        """GET, or POST with a body."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body))
            answer: Row = json.loads(connection.getresponse().read())
            return answer

    def fresh(self, seed: int) -> None:
        """Wait until nothing is in service, then forget all counts."""
        while (now := self.ask("/stats"))["in_service"] or now["waiting"]:
            time.sleep(0.2)
        self.ask("/reset", {"seed": seed})


@contextlib.contextmanager
def serving(*options: str) -> Iterator[Served]:
    """The independent server in its own process."""
    command = [sys.executable, str(HERE / "independent_server.py"), "--port", "0", *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout
        try:
            yield Served(json.loads(process.stdout.readline())["port"])
        finally:
            process.stdin.close()
            process.wait(timeout=10)


def measure(system: System, served: Served, order: Mapping[str, Any], seed: int) -> Row:
    """One run of one system."""
    served.fresh(seed)
    sent = {**order, "base_url": served.base_url, "seed": seed, "p": system.p, "n": system.n, "depth": system.depth}
    sent |= {"n_train": N_TRAIN, "n_val": N_VAL, "minibatch": MINIBATCH}
    sent["cap_s"] = order["cap_s"] if system.nominal < 200 else None
    script = [str(HERE / "gepa_driver.py")] if system.depth is None else [str(HERE / "throughput.py"), "--order"]
    done = subprocess.run([sys.executable, *script, json.dumps(sent)], stdout=subprocess.PIPE, text=True)
    stats = served.ask("/stats")
    row: Row = {"system": system.name, "width": system.width, "seed": seed}
    if done.returncode:  # its traceback is on stderr; the other systems go on
        return {**row, "error": f"exit status {done.returncode}"}
    row |= json.loads(done.stdout.splitlines()[-1])
    row["capped"] = row["metric_calls"] < 0.9 * order["metric_calls"]
    return {**row, **seen_by_server(stats, system.width), "proposals_per_min": 60 * row["proposals"] / row["seconds"]}


def seen_by_server(stats: Row, width: int) -> Row:
    """Busy slots and rate inside the window, and totals. Times are seconds since the first request."""
    arrived, ended = sorted(a for a, _ in stats["reflections"]), sorted(e for _, e in stats["reflections"])
    first, record = stats["first"], stats["record"]
    per_s = [area_at(record, first + s + 1) - area_at(record, first + s) for s in range(int(record[-1][0] - first))]
    row: Row = {"area": stats["area"], "calls": stats["calls"], "tokens": sum(stats["tokens"].values()), "window": None}
    row |= {"busy": None, "steady_per_min": None, "busy_per_s": [round(busy, 1) for busy in per_s]}
    row["service_s"] = {kind: busy / max(1, stats["calls"][kind]) for kind, busy in stats["busy"].items()}
    if len(ended) < width or arrived[-1] - ended[width - 1] < 1.0:
        return row
    window = (ended[width - 1], arrived[-1])
    seconds = window[1] - window[0]
    inside = sum(window[0] < e <= window[1] for e in ended)
    area = area_at(record, window[1]) - area_at(record, window[0])
    shifted = [round(at - first, 3) for at in window]
    return {**row, "window": shifted, "busy": area / seconds, "steady_per_min": 60 * inside / seconds}


def area_at(record: Sequence[Sequence[float]], at: float) -> float:
    """Slot-seconds of service at a moment, between two samples of the record."""
    i = min(max(1, bisect_left(record, [at])), len(record) - 1)
    (t0, a0), (t1, a1) = record[i - 1], record[i]
    return a0 + (a1 - a0) * (at - t0) / (t1 - t0) if t1 > t0 else a1


# --- what it comes to -----------------------------------------------------------------------------------------------------


def best_at(curve: Sequence[Sequence[float]], calls: float) -> float:
    """Best score once that many metric calls were spent."""
    return max((best for _, spent, best in curve if spent <= calls), default=0.0)


def seconds_to(curve: Sequence[Sequence[float]], score: float) -> float | None:
    """When that score was reached."""
    return next((at for at, _, best in curve if best >= score - 1e-9), None)


def compare(rows: list[Row]) -> None:
    """Add to each row what compares it with the others of its seed."""
    for seed in {row["seed"] for row in rows}:
        mine = {row["system"]: row for row in rows if row["seed"] == seed}
        equal = min(row["metric_calls"] for row in mine.values())
        sequential = mine["gepa sequential"]
        batched = max(
            (r["proposals_per_min"] for r in mine.values() if r["system"].startswith("gepa ") and r["width"] > 1), default=0
        )
        for row in mine.values():
            row["equal_calls"], row["best_at_equal"] = equal, best_at(row["curve"], equal)
            row["to_sequential_s"] = seconds_to(row["curve"], sequential["curve"][-1][2])
            row["times_sequential"] = row["proposals_per_min"] / sequential["proposals_per_min"]
            row["times_batched"] = row["proposals_per_min"] / batched if batched else None


def spread(rows: Sequence[Row], key: str | Callable[[Row], Any]) -> dict[str, float] | None:
    """Median, lowest and highest over the seeds; None when a seed has none."""
    values = [row[key] if isinstance(key, str) else key(row) for row in rows]
    if any(value is None for value in values):
        return None
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


COLUMNS: Mapping[str, tuple[str | Callable[[Row], Any], str]] = {
    "proposals/min": ("proposals_per_min", ".1f"),
    "x seq": ("times_sequential", ".2f"),
    "x best PxN": ("times_batched", ".2f"),
    "steady/min": ("steady_per_min", ".1f"),
    "slots busy": ("busy", ".1f"),
    "metric calls": ("metric_calls", ".0f"),
    "ktokens": (lambda row: row["tokens"] / 1e3, ".0f"),
    "proposals": ("proposals", ".0f"),
    "accepted": ("accepted", ".0f"),
    "passed, unaffordable": (lambda row: row.get("unaffordable", 0), ".0f"),
    "best at equal calls": ("best_at_equal", ".3f"),
    "best": ("best", ".3f"),
    "to seq, s": ("to_sequential_s", ".0f"),
    "run, s": ("seconds", ".0f"),
    "CPU, s": ("cpu_s", ".1f"),
    "CPU ms/call": (lambda row: 1e3 * row["cpu_s"] / sum(row["calls"].values()), ".2f"),
}


def summary(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """System → column → spread."""
    names = list(dict.fromkeys(row["system"] for row in rows))
    mine = {name: [row for row in rows if row["system"] == name] for name in names}
    return {name: {column: spread(mine[name], key) for column, (key, _) in COLUMNS.items()} for name in names}


def show(table: Mapping[str, Mapping[str, Any]], capped: set[str]) -> None:
    """Print it, one line a figure and one column a system."""
    print()
    width = max(18, *(len(name) + 1 for name in table))
    print("".ljust(22) + "".join(f"{name + ('*' if name in capped else ''):>{width}}" for name in table))
    for column, (_, form) in COLUMNS.items():
        cells = (table[name][column] for name in table)
        print(f"{column:22}" + "".join(f"{_cell(cell, form):>{width}}" for cell in cells))


def _cell(cell: Mapping[str, float] | None, form: str) -> str:
    if cell is None:
        return "-"
    middle, low, high = (format(cell[name], form) for name in ("median", "min", "max"))
    return middle if low == high else f"{middle} ({low}–{high})"


def misses(table: Mapping[str, Mapping[str, Any]], name: str) -> list[str]:
    """What a system misses of the targets, in words."""
    targets = (("slots busy", BUSY * SLOTS), ("x seq", TIMES_SEQUENTIAL), ("x best PxN", TIMES_BATCHED))
    values = ((column, table[name][column], least) for column, least in targets)
    return [
        f"{column} {cell['median']:.2f} < {least:g}" if cell else f"{column}: not measured (run too short for a window)"
        for column, cell, least in values
        if cell is None or cell["median"] < least
    ]


def verdict(table: Mapping[str, Mapping[str, Any]], rows: Sequence[Row]) -> bool:
    """Print which depths meet all targets, and the arithmetic of those that miss."""
    met = False
    for name in (name for name in table if name.startswith("lab Pipelined")):
        missed = misses(table, name)
        met = met or not missed
        print(f"\n{name}: " + ("MISSED " + "; ".join(missed) if missed else "meets all three targets"))
        explain([row for row in rows if row["system"] == name])
    return met


def explain(rows: Sequence[Row]) -> None:
    """The arithmetic behind a rate: what a proposal costs the server, and where the run's time goes."""
    for row in rows:
        each = row["area"] / row["proposals"]
        print(
            f"  seed {row['seed']}: {each:.2f} slot-seconds a proposal ({row['area']:.0f} / {row['proposals']}), so {SLOTS} slots carry at most "
            f"{60 * SLOTS / each:.0f}/min; whole run {row['area'] / row['seconds']:.1f} slots busy in the mean = {row['proposals_per_min']:.0f}/min"
        )
        window = row["window"]
        if window:
            print(
                f"    of {row['seconds']:.1f} s: {window[0]:.1f} s start (seed's validation, filling), {window[1] - window[0]:.1f} s window at "
                f"{row['busy']:.1f} slots, {row['seconds'] - window[1]:.1f} s drain; engine CPU {100 * row['cpu_s'] / row['seconds']:.0f}% of a core"
            )


# --- the program ----------------------------------------------------------------------------------------------------------


def forecast_s(chosen: Sequence[System], order: Mapping[str, Any], seeds: int) -> float:
    """Seconds the whole thing will take, roughly."""
    proposals = (order["metric_calls"] - N_VAL) / (2 * MINIBATCH + 0.2 * N_VAL)
    capped = [min(60 * proposals / s.nominal, order["cap_s"] or 1e9) for s in chosen]
    return seeds * (sum(capped) + 6 * len(chosen))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="3 seeds, 6,000 metric calls for all, no cap")
    parser.add_argument("--seeds", type=int, help="1, or 3 with --full")
    parser.add_argument("--metric-calls", type=int, help="4,000, or 6,000 with --full")
    parser.add_argument(
        "--cap-s", type=float, help="stop the systems below 200 proposals/min after this long; 60, none with --full"
    )
    parser.add_argument("--depths", type=int, nargs="+", help="32 64, or 16 32 48 64 with --full")
    parser.add_argument("--concurrency", type=int, default=96, help="our gateway's limit of calls in flight")
    parser.add_argument("--only", nargs="+", help="systems to run, by name (sequential gepa always runs)")
    parser.add_argument("--json", type=Path, help="where to write everything measured")
    parser.add_argument("--order", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.seeds = chosen.seeds or (3 if chosen.full else 1)
    chosen.metric_calls = chosen.metric_calls or (6_000 if chosen.full else 4_000)
    chosen.cap_s = chosen.cap_s or (None if chosen.full else 60.0)
    chosen.depths = chosen.depths or ([16, 32, 48, 64] if chosen.full else [32, 64])
    return chosen


def main() -> int:
    """Measure, print, write; 1 when a target is missed."""
    given = arguments()
    if given.order:
        print(json.dumps(run_lab(json.loads(given.order))))
        return 0
    order = {"metric_calls": given.metric_calls, "cap_s": given.cap_s, "concurrency": given.concurrency}
    chosen = [s for s in systems(given.depths) if not given.only or s.name in given.only or s.name == "gepa sequential"]
    print(f"about {forecast_s(chosen, order, given.seeds) / 60:.0f} min: {given.seeds} seed(s), {order}", flush=True)
    rows: list[Row] = []
    with serving("--slots", str(SLOTS)) as served:
        for seed in range(given.seeds):
            for system in chosen:
                rows.append(measure(system, served, order, seed))
                print(told(rows[-1]), flush=True)
                write(given.json, {"order": order, "rows": rows})
    return report(rows, order, given.json)


def told(row: Row) -> str:
    """One finished run in one line."""
    name = f"seed {row['seed']} {row['system']:18}"
    if "error" in row:
        return f"{name} FAILED: {row['error']}"
    busy = "-" if row["busy"] is None else f"{row['busy']:.1f}"
    return f"{name} {row['proposals_per_min']:6.1f}/min, {busy} slots busy, {row['seconds']:.0f} s"


def write(path: Path | None, measured: Mapping[str, Any]) -> None:
    """Everything measured so far, so that a long run that is cut short leaves what it has."""
    if path:
        machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()}
        path.write_text(json.dumps({**measured, "machine": machine, "at": time.strftime("%F %T")}, indent=1))


def report(measured: list[Row], order: Mapping[str, Any], path: Path | None) -> int:
    """Table, verdict and JSON. A system that failed is left out of the table, and counts as a miss."""
    failed = [row for row in measured if "error" in row]
    baseless = {row["seed"] for row in failed if row["system"] == "gepa sequential"}
    rows = [row for row in measured if "error" not in row and row["seed"] not in baseless]
    if not rows:
        print("MISSED: no seed has its baseline")
        return 1
    compare(rows)
    table = summary(rows)
    show(table, {row["system"] for row in rows if row["capped"]})
    if any(row["capped"] for row in rows):
        equal = sorted({row["equal_calls"] for row in rows})
        print(f"* stopped by time, not by the budget: its rates compare; scores are compared at {equal} metric calls.")
    met = verdict(table, rows) and not failed
    write(path, {"order": order, "met": met, "summary": table, "rows": measured})
    print(
        "\n"
        + ("met" if met else f"MISSED: {len(failed)} runs failed" if failed else "MISSED: no depth meets all three targets")
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
