"""One table of everything: public gepa and our schedules, policies and mechanisms, on the wall clock and in virtual time.

    python tests/benchmarks/compare.py virtual           about 10 min: 10 seeds, three landscapes, with and without noise
    python tests/benchmarks/compare.py wall              about 45 min: 3 seeds at three capacities of one independent server
    python tests/benchmarks/compare.py virtual wall --json compare.json

**Wall clock.** Every system alone on its own fresh `independent_server.py` (rollouts 0.25 s and reflections 2.5 s in the mean, log-normal;
100 train, 100 validation examples; the server enforces its slots and counts what is busy). Capacities: 256 slots (room to spare: our
gateway sends at most 96 calls at once), 64, and 16 (saturated). What runs one proposal at a time occupies about three slots; those runs go
side by side, each on a server of its own, and are stopped after ``--slow-s``; beside them, three at a time, the fast systems on 16 slots, for
``--small-s``. On 64 and 256 slots the fast systems run one after the other, for ``--fast-s``.
Public gepa has no evaluation cache here, as by default; ours is at its default.

**Virtual time.** Our own `Sequential()` (which passes the differential test against gepa) against every mechanism, added one by one, with
the same seeds, budget and simulated server of 64 slots. Mean over the seeds with a 95% bootstrap interval. No language model is involved.

Columns: proposals/min (distinct new children with a first gate verdict); committed/min; accepted/min; slots busy (the server's mean of
requests in service after warm-up); best score at equal metric calls (the fewest that any system of that seed made) and at equal time (a tenth
of sequential's seconds); time and tokens to sequential's final score; tokens and calls per accepted proposal (wall clock: as the server counts
them; virtual time: as charged). A proposal is **accepted** when it passed its gate and is in the pool: committed by itself, or distilled with
others into an artifact that was committed. Only under `Reflective(batch > 1)` is that more than what was committed, so tokens per *committed*
artifact stand beside it.

``DEFAULT`` is the named configuration that the targets are for: `lab.FLASHEVOLVE`. Exits with 1 when one of them is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from independent_server import SEED_PROMPT, examples, judged
from throughput import MINIBATCH, N_TRAIN, N_VAL, area_at, best_at, lab_curve, seconds_to, seen_by_server, serving

import flashevolve_lab as lab

HERE = Path(__file__).parent
CAPACITIES = {"room to spare": 256, "64 slots": 64, "saturated": 16}
SENT = {256: 96, 64: 96, 16: 24}  # our gateway's limit of calls in flight, by the server's slots
DEFAULT = "FLASHEVOLVE"
Row = dict[str, Any]


def policies() -> dict[str, dict[str, Any]]:
    """Our systems on the wall clock: name → keyword arguments of `lab.start`."""
    auto = lab.Pipelined("auto")
    return {
        "lab Sequential": {"schedule": lab.Sequential(), "staleness": lab.Full()},
        "auto, Full": {"schedule": auto, "staleness": lab.Full()},
        "auto, Guarded": {"schedule": auto, "staleness": lab.Guarded()},
        "auto, Reflective": {"schedule": auto, "staleness": lab.Reflective(onto="counterpart", batch=1)},
        DEFAULT: dict(lab.FLASHEVOLVE),
    }


SLOW = ("gepa sequential", "lab Sequential")
FAST = ("gepa 8x2", "auto, Full", "auto, Guarded", "auto, Reflective", DEFAULT)


# --- on the wall clock ----------------------------------------------------------------------------------------------------


def run_ours(order: Mapping[str, Any]) -> Row:
    """One evolution on the independent server, in a process of its own."""
    task = lab.Task(
        train=examples(N_TRAIN),
        val=examples(N_VAL, N_TRAIN),
        seed=SEED_PROMPT,
        program=lab.Prompt(max_tokens=32),
        metric=lab.quick(judged),
        name="compare",
    )
    url = order["base_url"]
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        run = lab.start(
            task,
            lab.GEPA(minibatch=MINIBATCH),
            llm=lab.OpenAI(url, model="task"),
            reflection_llm=lab.OpenAI(url, model="reflect"),
            patch_llm=lab.OpenAI(url, model="patch"),
            budget=lab.Budget(metric_calls=order["metric_calls"], seconds=order["cap_s"]),
            limits=lab.Limits(concurrency=order["concurrency"]),
            seed=order["seed"],
            folder=folder,
            **policies()[order["system"]],
        )
        status = run.wait()
        row: Row = {"seconds": time.monotonic() - began, "proposals": status.proposals, "committed": status.accepted}
        row["accepted"] = status.accepted + distilled(run.entries)
        return {**row, "metric_calls": status.spent["metric_calls"], "curve": lab_curve(run.entries), "why": status.reason}


def measure(system: str, slots: int, seed: int, given: argparse.Namespace) -> Row:
    """One run of one system on a server of its own."""
    with serving("--slots", str(slots)) as served:
        served.fresh(seed)
        cap_s = given.slow_s if system in SLOW else given.small_s if slots == 16 else given.fast_s
        order = {"base_url": served.base_url, "seed": seed, "cap_s": cap_s, "metric_calls": 100_000, "system": system}
        order |= {"n_train": N_TRAIN, "n_val": N_VAL, "minibatch": MINIBATCH, "concurrency": SENT[slots]}
        order |= {"p": 8, "n": 2} if system == "gepa 8x2" else {"p": 1, "n": 1}
        script = "gepa_driver.py" if system.startswith("gepa") else "compare.py"
        flag = [] if system.startswith("gepa") else ["--order"]
        done = subprocess.run([sys.executable, str(HERE / script), *flag, json.dumps(order)], stdout=subprocess.PIPE, text=True)
        row: Row = {"system": system, "slots": slots, "seed": seed}
        if done.returncode:
            return {**row, "error": f"exit status {done.returncode}"}
        stats = served.ask("/stats")
    row |= json.loads(done.stdout.splitlines()[-1])
    row.setdefault("committed", row["accepted"])
    seen = seen_by_server(stats, 16 if system == "gepa 8x2" else 1)
    row |= {
        "busy": busy_after(stats, 10.0 if system in FAST else 5.0),
        "calls": sum(seen["calls"].values()),
        "tokens": seen["tokens"],
    }
    return {
        **row,
        "proposals_per_min": 60 * row["proposals"] / row["seconds"],
        "accepted_per_min": 60 * row["accepted"] / row["seconds"],
        "committed_per_min": 60 * row["committed"] / row["seconds"],
    }


def busy_after(stats: Row, warm_s: float) -> float:
    """The server's mean of requests in service from ``warm_s`` after the first arrival to the last reflection's arrival."""
    first, last = stats["first"] + warm_s, max((a for a, _ in stats["reflections"]), default=0.0)
    if last - first < 1.0:
        return float("nan")
    return (area_at(stats["record"], last) - area_at(stats["record"], first)) / (last - first)


def wall(given: argparse.Namespace) -> list[Row]:
    """Every system, capacity and seed."""
    grid = [(slots, seed) for slots in CAPACITIES.values() for seed in range(given.wall_seeds)]
    slow = [(system, slots, seed) for system in SLOW for slots, seed in grid]
    small = [(system, 16, seed) for system in FAST for seed in range(given.wall_seeds)]
    with ThreadPoolExecutor(len(slow)) as pool, ThreadPoolExecutor(3) as few:  # little CPU each
        waiting = pool.map(lambda what: told(measure(*what, given)), slow)
        rows = [*few.map(lambda what: told(measure(*what, given)), small), *waiting]
    rows += [told(measure(system, slots, seed, given)) for system in FAST for slots, seed in grid if slots != 16]
    return rows


def told(row: Row) -> Row:
    """Print one finished run in one line."""
    what = f"{row['slots']:4d} slots, seed {row['seed']}, {row['system']:18}"
    if "error" in row:
        print(f"{what} FAILED: {row['error']}", flush=True)
    else:
        best = row["curve"][-1][2] if row["curve"] else 0.0
        print(f"{what} {row['proposals_per_min']:6.1f} proposals/min, {row['busy']:5.1f} busy, best {best:.3f}", flush=True)
    return row


# --- in virtual time ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class World:
    """A landscape with or without noise."""

    name: str
    noise: float

    def landscape(self, seed: int) -> Any:
        """The simulated model's knowledge."""
        cls = {"independent": lab.IndependentRules, "conflicting": lab.ConflictingRules, "uniting": lab.UnitingRules}[self.name]
        return cls(seed=seed, noise=self.noise, n_rules=100)

    def __str__(self) -> str:
        return f"{self.name}, noise {self.noise:g}"


WORLDS = [World(name, noise) for name in ("independent", "conflicting", "uniting") for noise in (0.0, 0.1)]
BASELINE = "Sequential"


def mechanisms() -> dict[str, dict[str, Any]]:
    """Name → keyword arguments of `lab.start`: each adds one thing to the one before, where it can."""
    auto: dict[str, Any] = {"schedule": lab.Pipelined("auto")}
    best = lab.FLASHEVOLVE["staleness"]
    return {
        BASELINE: {"schedule": lab.Sequential(), "staleness": lab.Full()},
        "Batched 8x2": {"schedule": lab.Batched(8, 2), "staleness": lab.Full()},
        "Pipelined 64, Full": {"schedule": lab.Pipelined(64), "staleness": lab.Full()},
        "auto, Full": {**auto, "staleness": lab.Full()},
        "auto, Guarded": {**auto, "staleness": lab.Guarded()},
        "auto, Reflective 1 by 1": {**auto, "staleness": lab.Reflective(onto="counterpart", batch=1)},
        "+ onto the best": {**auto, "staleness": lab.Reflective(onto="best", batch=1)},
        "+ in batches of 16": {**auto, "staleness": best},
        "+ proven rejection": {**auto, "staleness": best, "completion": lab.Complete("front")},
        "+ speculation": {**auto, "staleness": best, "completion": lab.Speculative()},
        "+ rate-balanced": {**auto, "staleness": best, "completion": lab.Complete("front"), "workers": lab.RateBalanced()},
        "+ server-aware": {**auto, "staleness": best, "completion": lab.Complete("front"), "workers": lab.ServerAware()},
        "+ hedging": {
            **auto,
            "staleness": best,
            "completion": lab.Complete("front"),
            "limits": lab.Limits(concurrency=96, hedge=0.95),
        },
        "+ remembered": {**auto, "staleness": best, "completion": lab.Complete("front"), "algorithm": lab.GEPA(remember=4)},
        DEFAULT: dict(lab.FLASHEVOLVE),
    }


def simulate(work: tuple[World, str, int, int]) -> Row:
    """One run in virtual time."""
    world, name, seed, calls = work
    landscape = world.landscape(seed)
    model = lab.Simulated(landscape, speed=lab.FixedLatency(slots=64))
    settings = {"limits": lab.Limits(concurrency=96), **mechanisms()[name]}
    with tempfile.TemporaryDirectory() as folder:
        run = lab.start(
            lab.simulated_task(landscape, N_TRAIN, N_VAL),
            settings.pop("algorithm", None) or lab.GEPA(minibatch=MINIBATCH),
            llm=model,
            budget=lab.Budget(metric_calls=calls),
            clock=lab.Virtual(),
            seed=seed,
            folder=folder,
            **settings,
        )
        status = run.wait()
        curve, stats = lab_curve(run.entries), model.stats()
        busy = steady(run.entries, 64)
        in_pool = status.accepted + distilled(run.entries)
    row: Row = {"world": str(world), "system": name, "seed": seed, "seconds": status.seconds, "proposals": status.proposals}
    row |= {
        "accepted": in_pool,
        "committed": status.accepted,
        "metric_calls": status.spent["metric_calls"],
        "curve": curve,
        "kind": status.kind,
    }
    row |= {"calls": status.spent["llm_calls"], "tokens": status.spent["tokens"], "busy": busy, "served": stats["elapsed_s"]}
    per_min = {f"{what}_per_min": 60 * row[what] / row["seconds"] for what in ("proposals", "accepted", "committed")}
    return {**row, **per_min}


def distilled(entries: Sequence[Any]) -> int:
    """Proposals that are in the pool as a part of somebody else's artifact: distilled into it, or into what it was made from."""
    from flashevolve_lab.core.events import ArtifactMade, Committed, Confirmed, ItemEnded

    made = {e.event.artifact: e.event for e in entries if isinstance(e.event, ArtifactMade)}
    inside = {e.event.artifact for e in entries if isinstance(e.event, (Committed, Confirmed))}
    reached, todo = set(inside), list(inside)
    while todo:
        artifact = made[todo.pop()]
        new = set(artifact.parents) - reached if artifact.origin in ("patch", "update") else set()
        reached |= new
        todo += new
    ended = (e.event for e in entries if isinstance(e.event, ItemEnded) and e.event.outcome == "distilled")
    return sum(event.artifact in reached for event in ended)


def steady(entries: Sequence[Any], slots: int) -> float:
    """Mean of calls in flight, at most ``slots``, between a fifth and four fifths of the run: neither filling nor draining."""
    from flashevolve_lab.core.events import CallFinished, CallStarted

    moves = [
        (e.at, 1 if isinstance(e.event, CallStarted) else -1)
        for e in entries
        if isinstance(e.event, (CallStarted, CallFinished))
    ]
    first, last = 0.2 * entries[-1].at, 0.8 * entries[-1].at
    area, level, since = 0.0, 0, first
    for at, move in moves:
        if at > first:
            area += min(level, slots) * (min(at, last) - since)
            since = min(at, last)
        level += move
    return area / (last - first) if last > first else float("nan")


def virtual(given: argparse.Namespace) -> list[Row]:
    """Every world, mechanism and seed, on two processes."""
    works = [(world, name, seed, given.calls) for seed in range(given.seeds) for world in WORLDS for name in mechanisms()]
    rows: list[Row] = []
    with ProcessPoolExecutor(2) as pool:
        for row in pool.map(simulate, works, chunksize=4):
            rows.append(row)
            if len(rows) % 90 == 0:
                if given.json:
                    given.json.with_suffix(".part.json").write_text(json.dumps(rows))
                print(f"{len(rows)} of {len(works)} runs", flush=True)
    return rows


# --- what it comes to -----------------------------------------------------------------------------------------------------


def compared(rows: Sequence[Row], baseline: str) -> None:
    """Add to each row of one group (a world or a capacity) what compares it with the others of its seed."""
    for seed in {row["seed"] for row in rows}:
        mine = {row["system"]: row for row in rows if row["seed"] == seed and "error" not in row}
        if baseline not in mine:
            continue
        first = mine[baseline]
        equal, tenth = min(row["metric_calls"] for row in mine.values()), first["seconds"] / 10
        final = first["curve"][-1][2]
        for row in mine.values():
            to_final = seconds_to(row["curve"], final)
            row["equal_calls"], row["best_at_equal_calls"] = equal, best_at(row["curve"], equal)
            row["best_at_equal_time"] = max((best for at, _, best in row["curve"] if at <= tenth), default=0.0)
            row["times"] = row["proposals_per_min"] / first["proposals_per_min"]
            row["to_final_s"], own = to_final, seconds_to(first["curve"], final)
            row["sooner"] = own / to_final if to_final else 0.0 if to_final is None else float("inf")
            row["of_run"] = to_final / first["seconds"] if to_final is not None else None
            for what in ("tokens", "calls"):
                row[f"{what}_per_accepted"] = row[what] / row["accepted"] if row["accepted"] else float("inf")
            row["tokens_per_committed"] = row["tokens"] / row["committed"] if row["committed"] else float("inf")
            row["tokens_to_final"] = None if to_final is None else row["tokens"] * to_final / row["seconds"]


COLUMNS: Mapping[str, tuple[str, str]] = {
    "proposals/min": ("proposals_per_min", ".1f"),
    "x sequential": ("times", ".1f"),
    "committed/min": ("committed_per_min", ".1f"),
    "accepted/min": ("accepted_per_min", ".1f"),
    "slots busy": ("busy", ".1f"),
    "best, equal calls": ("best_at_equal_calls", ".3f"),
    "best, 1/10 time": ("best_at_equal_time", ".3f"),
    "s to seq. final": ("to_final_s", ".1f"),
    "sooner, x": ("sooner", ".1f"),
    "ktok to it": ("tokens_to_final", ".0f"),
    "ktok/accepted": ("tokens_per_accepted", ".1f"),
    "ktok/committed": ("tokens_per_committed", ".1f"),
    "calls/accepted": ("calls_per_accepted", ".1f"),
}


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and its 95% bootstrap interval."""
    draw = random.Random(repr(values))
    means = sorted(statistics.fmean(draw.choices(values, k=len(values))) for _ in range(1000))
    return statistics.fmean(values), means[24], means[974]


def cell(rows: Sequence[Row], key: str, form: str) -> str:
    """Mean and interval of a column; how many seeds never got there."""
    values = [row[key] for row in rows if row.get(key) is not None and row[key] not in (float("inf"), float("nan"))]
    scale = 1e-3 if key.startswith("tokens") else 1.0
    if not values:
        return "never"
    mean, low, high = interval([scale * value for value in values])
    missing = f" ({len(rows) - len(values)} never)" if len(values) < len(rows) else ""
    return f"{mean:{form}} [{low:{form}}, {high:{form}}]{missing}"


def show(title: str, rows: Sequence[Row]) -> None:
    """Print one group as Markdown: a line a system."""
    print(f"\n### {title}\n\n| system | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (len(COLUMNS) + 1))
    for system in dict.fromkeys(row["system"] for row in rows):
        mine = [row for row in rows if row["system"] == system and "error" not in row]
        print(f"| {system} | " + " | ".join(cell(mine, key, form) for key, form in COLUMNS.values()) + " |")


def median(rows: Sequence[Row], key: str) -> float:
    """Over the seeds; infinite where one never got there."""
    return statistics.median(float("inf") if row.get(key) is None else row[key] for row in rows)


def misses(groups: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """The targets that the named configuration misses, in words."""

    def of(group: str, system: str) -> list[Row]:
        return [row for row in groups[group] if row["system"] == system and "error" not in row]

    def least(what: str, value: float, target: float) -> Iterator[str]:
        if not value >= target:
            yield f"{what}: {value:.3g}, target at least {target:.3g}"

    if "64 slots" in groups:
        ours, batched = of("64 slots", DEFAULT), of("64 slots", "gepa 8x2")
        yield from least("64 slots: x sequential gepa's proposals/min", median(ours, "times"), 22.0)
        yield from least("64 slots: x gepa 8x2", median(ours, "proposals_per_min") / median(batched, "proposals_per_min"), 3.0)
        yield from least(
            "64 slots: a tenth of sequential's seconds to its final score", 1 / (median(ours, "of_run") or 1e-9), 10.0
        )
    if "saturated" in groups:
        ours = of("saturated", DEFAULT)
        yield from least("saturated: slots busy", median(ours, "busy"), 0.95 * 16)
        yield from least("saturated: sooner at the same score", median(ours, "sooner"), 2.5)
        mine, theirs = median(ours, "tokens_per_accepted"), median(of("saturated", "gepa sequential"), "tokens_per_accepted")
        yield from least("saturated: sequential's tokens per accepted over ours", theirs / mine, 1.0)
    for title in (str(world) for world in WORLDS if world.name == "uniting" and str(world) in groups):
        mean = [statistics.fmean(row["best_at_equal_calls"] for row in of(title, name)) for name in (DEFAULT, BASELINE)]
        yield from least(f"{title}: best at equal metric calls, over sequential's", mean[0] - mean[1], 0.0)
    for title in (str(world) for world in WORLDS if str(world) in groups):
        tokens = [median(of(title, name), "tokens_per_accepted") for name in (BASELINE, DEFAULT)]
        yield from least(f"{title}: sequential's tokens per accepted over ours", tokens[0] / tokens[1], 1.0)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["virtual", "wall"], help="virtual, wall; both by default")
    parser.add_argument("--seeds", type=int, default=10, help="in virtual time")
    parser.add_argument("--calls", type=int, default=4_000, help="metric calls of a run in virtual time")
    parser.add_argument("--wall-seeds", type=int, default=3)
    parser.add_argument("--slow-s", type=float, default=400.0, help="seconds of what runs one proposal at a time")
    parser.add_argument("--fast-s", type=float, default=60.0, help="seconds of the others")
    parser.add_argument("--small-s", type=float, default=120.0, help="seconds of the others on 16 slots")
    parser.add_argument("--json", type=Path, help="where to write everything measured")
    parser.add_argument("--order", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Measure, print, write; 1 when a target is missed."""
    given = arguments()
    if given.order:
        print(json.dumps(run_ours(json.loads(given.order))))
        return 0
    groups: dict[str, list[Row]] = {}
    runs: dict[str, Callable[[argparse.Namespace], list[Row]]] = {"virtual": virtual, "wall": wall}
    for part in given.parts:
        if part not in runs:
            raise SystemExit(f"expected virtual or wall, got {part!r}")
        measured = runs[part](given)
        names = {slots: name for name, slots in CAPACITIES.items()}
        for row in measured:
            groups.setdefault(row["world"] if part == "virtual" else names[row["slots"]], []).append(row)
        if given.json:
            given.json.write_text(json.dumps(groups))
    for title, rows in groups.items():
        compared(rows, BASELINE if "world" in rows[0] else SLOW[0])
        show(title, rows)
    missed = list(misses(groups))
    print("\n" + ("\n".join(f"MISSED {what}" for what in missed) if missed else "all targets met"))
    failed = [row for rows in groups.values() for row in rows if "error" in row]
    return 1 if missed or failed else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main())
