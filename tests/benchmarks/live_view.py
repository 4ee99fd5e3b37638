"""The live Gantt in a real JupyterLab and Chromium: first paint, frames/s, latency, bytes an update, CPU of the kernel.

    python tests/benchmarks/live_view.py            1,000, 10,000, 50,000 and 100,000 spans, about five minutes
    python tests/benchmarks/live_view.py --quick    1,000 and 10,000, a minute and a half

A synthetic log (44 worker slots, 100 jobs a second, two events of queues for each) goes through the real `Timeline` and the real widget; then 20
further spans an update, five updates a second, for as long as it is measured. The browser is headless and draws in software.

- paint: from "run this cell" to the first frame with all spans (the whole travels in the widget's state), in the browser's clock.
- follow: frames/s while it follows now as a user sees it after opening. all: the same while everything is in the window and every
  frame is drawn anew (as it stands, a frame in which nothing moves half a pixel is left out). pan: while half of the run is in the window and it
  is panned at every frame. ms: time of the drawing itself, median of the frames of "all".
- latency: from the widget's `take` to the kernel's hearing that the frame is drawn, so the way back is counted too.
- payload: bytes of an update, mean; wire: with Jupyter's envelope, as it came through the web socket. kernel: CPU by wall time.

Exits with 1 when a target is missed: paint < 1 s; 60 frames/s (58 allowed: the clock's granularity) up to 50,000 spans and 30 at 100,000; payload ≤ 1 kB
+ 30 bytes for each of 20 new spans.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from flashevolve_lab.core import Entry
from flashevolve_lab.core import events as ev
from flashevolve_lab.widgets.gantt import Gantt

HERE = Path(__file__).parent
SIZES, QUICK = (1_000, 10_000, 50_000, 100_000), (1_000, 10_000)
PERIOD_S, NEW = 0.2, 20
PAINT_S, FRAMES, FRAMES_AT_MOST, PAYLOAD = 1.0, 58.0, 30.0, 1_000 + 30 * NEW
MANY = 50_000  # up to here 60 frames/s

Row = dict[str, Any]

# --- a log ----------------------------------------------------------------------------------------------------------------

STAGES = {"rollout": (12, 0.33), "propose": (16, 0.5), "gate": (8, 0.22), "validate": (8, 0.24)}  # slots, mean seconds
IN_FLIGHT = 38  # so that about 100 jobs begin in a second


def synthetic_log(seed: int = 0) -> Iterator[Entry]:
    """A run without end: items pass through four stages, one in fifty is committed, one job in a hundred fails."""
    numbers = iter(range(1, 10**9))
    for at, event in _world(Random(seed)):
        yield Entry(next(numbers), at, event)


def _world(random: Random) -> Iterator[tuple[float, ev.Event]]:
    names = list(STAGES)
    yield 0.0, ev.RunStarted("synthetic", "2026-01-01T00:00:00+00:00", 0, "wall", {}, tuple(names), {}, {}, {}, {})
    waiting: dict[str, deque[str]] = {name: deque() for name in names}
    free = {name: list(range(slots)) for name, (slots, _) in STAGES.items()}
    ends: list[tuple[float, int, str, str, int]] = []  # when, job, stage, item, slot
    at, jobs, items, versions = 0.0, 0, 0, 0
    while True:
        while len(ends) + sum(map(len, waiting.values())) < IN_FLIGHT:
            yield at, ev.ItemMade(f"p{items}", "proposal", names[0], versions, items, {"parent": "a0"})
            waiting[names[0]].append(f"p{items}")
            items += 1
        for stage in names:
            while waiting[stage] and free[stage]:
                item, slot = waiting[stage].popleft(), heapq.heappop(free[stage])
                yield at, ev.JobStarted(f"j{jobs}", stage, slot, item, versions)
                heapq.heappush(ends, (at + random.gammavariate(4, STAGES[stage][1] / 4), jobs, stage, item, slot))
                jobs += 1
        at, job, stage, item, slot = heapq.heappop(ends)
        heapq.heappush(free[stage], slot)
        if random.random() < 0.01:
            yield at, ev.JobFailed(f"j{job}", "reply", "no fenced text")
            yield at, ev.ItemEnded(item, "failed", "no fenced text")
            continue
        yield at, ev.JobFinished(f"j{job}")
        if stage != names[-1]:
            following = names[names.index(stage) + 1]
            yield at, ev.ItemQueued(item, following)
            waiting[following].append(item)
        elif job % 50:
            yield at, ev.ItemEnded(item, "rejected")
        else:
            yield (
                at,
                ev.ArtifactMade(f"a{versions}", {"prompt": str(versions)}, str(versions), (), "reflection", "prompt", item),
            )
            yield at, ev.Committed(versions, f"a{versions}", item, 0, {"0": 1.0}, 1)
            yield at, ev.ItemEnded(item, "committed", "", f"a{versions}")
            versions += 1


# --- in the kernel --------------------------------------------------------------------------------------------------------


class Late(Gantt):
    """A Gantt whose comm opens only when it is to be shown, with everything in its state."""

    ready = False

    def open(self) -> None:
        """Open the comm, once it is time."""
        if self.ready:
            super().open()


class Player:
    """Fills a widget with so many spans, then goes on at five updates a second."""

    def __init__(self, spans: int) -> None:
        self.log = synthetic_log()
        self.gantt = Late()
        while (missing := spans - len(self.gantt._picture.spans)) > 0:
            self.gantt.take(self._next(min(missing, 2_000)))
        self.sent: dict[int, float] = {}
        self.latencies: list[float] = []
        self.gantt.on_drawn = self._drawn
        self.going = threading.Event()

    def _next(self, spans: int) -> list[Entry]:
        entries: list[Entry] = []
        while spans:
            entry = next(self.log)
            entries.append(entry)
            spans -= isinstance(entry.event, ev.JobStarted)
        return entries

    def show(self) -> Gantt:
        """The widget, now with a comm."""
        self.gantt.ready = True
        self.gantt.open()
        return self.gantt

    def _drawn(self, seq: int) -> None:
        if seq in self.sent:
            self.latencies.append(time.perf_counter() - self.sent.pop(seq))

    def play(self) -> None:
        """Begin with the updates."""
        self.going.set()
        self.cpu, self.began = time.process_time(), time.perf_counter()
        self.gantt.sent_bytes = self.gantt.sent_updates = 0
        threading.Thread(target=self._play, daemon=True).start()

    def _play(self) -> None:
        due = time.perf_counter()
        while self.going.is_set():
            entries = self._next(NEW)
            self.sent[entries[-1].seq] = time.perf_counter()
            self.gantt.take(entries)
            due += PERIOD_S
            time.sleep(max(0.0, due - time.perf_counter()))

    def stop(self) -> str:
        """End the updates; what was measured, as JSON."""
        self.going.clear()
        wall = time.perf_counter() - self.began
        ordered = sorted(self.latencies)
        return json.dumps(
            {
                "updates": self.gantt.sent_updates,
                "payload": self.gantt.sent_bytes / max(1, self.gantt.sent_updates),
                "kernel_cpu": (time.process_time() - self.cpu) / wall,
                "latency_p50_s": statistics.median(ordered) if ordered else None,
                "latency_max_s": ordered[-1] if ordered else None,
                "rate_hz": self.gantt.sent_updates / wall,
            }
        )


# --- in the browser -------------------------------------------------------------------------------------------------------

FIRST_PAINT = """async ([spans]) => {
  const began = performance.now(), status = () => JSON.parse(document.querySelector('[data-lab-status]')?.dataset.labStatus || '{}');
  window.jupyterapp.commands.execute('notebook:run-cell');
  while (!(status().spans >= spans)) {
    if (performance.now() - began > 60000) throw new Error('nothing drawn in a minute');
    await new Promise(requestAnimationFrame);
  }
  return (performance.now() - began) / 1000;
}"""
FRAME_RATE = """async ([kind, seconds]) => {
  const view = document.querySelector('[data-lab-status]').labGantt, frame = () => new Promise(requestAnimationFrame);
  if (kind === 'all') view.fit();
  if (kind === 'pan') view.goTo(0.25 * view.all(), 0.5 * view.all());
  for (let n = 0; n < 10; n++) await frame();
  const began = performance.now();
  let frames = 0, step = 0.004;
  const costs = [], draw = view.draw;
  view.draw = () => { const at = performance.now(); draw.call(view); costs.push(performance.now() - at); };
  while (performance.now() - began < 1000 * seconds) {
    if (kind === 'all') view.changed();
    if (kind === 'pan') { view.pan(step); if (frames % 50 === 49) step = -step; }
    await frame();
    frames++;
  }
  delete view.draw;
  const passed = (performance.now() - began) / 1000;
  const ms = costs.sort((a, b) => a - b)[costs.length >> 1];
  return { frames: frames / passed, draws: costs.length / passed, ms, bars: view.bars, crowded: view.crowded };
}"""


def measure(spans: int, seconds: float, folder: Path) -> Row:
    """One size, in a JupyterLab and a browser of its own."""
    sys.path.insert(0, str(HERE.parent / "browser"))
    import jupyter_lab

    cells = [
        f"import sys; sys.path.insert(0, {str(HERE)!r})\nfrom live_view import Player\nplayer = None",
        "player and player.show()",
    ]
    with jupyter_lab.server(folder / "root") as server, jupyter_lab.browser() as browser:
        jupyter_lab.write_notebook(folder / "root" / "live.ipynb", cells)
        book = jupyter_lab.Notebook(browser, server)
        wire = _Wire(book.page)
        book.open("live.ipynb")
        book.run_all()
        book.idle()
        book.execute(f"player = Player({spans})", 300)
        book.page.evaluate("() => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = 1; }")
        row: Row = {"spans": spans, "paint_s": book.page.evaluate(FIRST_PAINT, [spans])}
        book.execute("player.play()")
        time.sleep(1)
        wire.clear()
        for kind in ("follow", "all", "pan"):
            row[kind] = book.page.evaluate(FRAME_RATE, [kind, seconds])
        wired, row["load"] = wire.received, os.getloadavg()[0]
        row |= json.loads(book.execute("print(player.stop())"))
        row["wire"] = wired / max(1.0, 3 * seconds * row["rate_hz"])
        if book.errors:
            raise RuntimeError(book.errors[0])
        return row


class _Wire:
    """Counts what comes through the web sockets."""

    def __init__(self, page: Any) -> None:
        self.received = 0
        page.on("websocket", lambda socket: socket.on("framereceived", self._count))

    def _count(self, payload: bytes | str) -> None:
        self.received += len(payload)

    def clear(self) -> None:
        """Begin to count."""
        self.received = 0


# --- what is printed ------------------------------------------------------------------------------------------------------

HEADINGS = "spans  paint s  follow/s  all/s  (draws  ms)  pan/s  latency p50/max ms  payload  wire B  kernel  load"


def line(row: Row) -> str:
    """A row of the table."""
    follow, everything, pan = row["follow"], row["all"], row["pan"]
    return (
        f"{row['spans']:>7,} {row['paint_s']:7.2f} {follow['frames']:8.1f} {everything['frames']:7.1f}  ({everything['draws']:4.0f} "
        f"{everything['ms']:5.2f}) {pan['frames']:6.1f}  {1000 * row['latency_p50_s']:8.0f} / {1000 * row['latency_max_s']:<6.0f}"
        f"{row['payload']:8,.0f} {row['wire']:8,.0f} {row['kernel_cpu']:7.1%} {row['load']:5.1f}"
    )


def misses(row: Row) -> list[str]:
    """Targets that were missed."""
    least = FRAMES if row["spans"] <= MANY else FRAMES_AT_MOST
    slow = [
        f"{kind} {row[kind]['frames']:.1f} frames/s, not {least:g}"
        for kind in ("follow", "all", "pan")
        if row[kind]["frames"] < least
    ]
    late = [f"first paint {row['paint_s']:.2f} s"] if row["paint_s"] >= PAINT_S else []
    large = [f"payload {row['payload']:.0f} bytes, not {PAYLOAD}"] if row["payload"] > PAYLOAD else []
    return [f"{row['spans']:,} spans: {what}" for what in slow + late + large]


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--spans", type=int, nargs="+")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows, missed = [], []
    print(HEADINGS)
    for spans in options.spans or (QUICK if options.quick else SIZES):
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(spans, 3.0 if options.quick else options.seconds, Path(folder)))
        print(line(rows[-1]), flush=True)
        missed += misses(rows[-1])
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    print("\n".join(missed) or "all targets met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
