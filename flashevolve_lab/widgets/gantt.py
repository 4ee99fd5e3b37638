"""The live Gantt: lanes of worker slots, a bar per job, queues above, drawn on a canvas in the browser.

Owns the widget: what it tells the browser, what it answers, and the selected job. Owns no layout (`gantt.js`) and no bytes
(`spans`). One rule a change must keep: the browser can always be brought to now by the whole (a trait filled when state is
asked for), so that nothing depends on an answer from a kernel that may be busy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from flashevolve_lab.core import Entry
from flashevolve_lab.views import Span, Timeline
from flashevolve_lab.widgets.spans import Picture, Update
from flashevolve_lab.widgets.texts import sayable

HERE = Path(__file__).parent
RESENDS_S = (1.0, 4.0, 16.0)  # after state went out and while no browser has said that it follows: the whole once more
MOST_ASKED = 64  # jobs a browser may ask about at once

Colours = Callable[[Sequence[str]], Mapping[str, str]]


def figure_colours(stages: Sequence[str]) -> Mapping[str, str]:
    """Stages → the colours they have in the figures."""
    from flashevolve_lab.plots import stage_colours

    return stage_colours(stages)


class Gantt(anywidget.AnyWidget):
    """A live Gantt chart of a run. Feed it by a `Poller`, or by `take`.

    Args:
        colours: Stages → colours; by default those of the figures.

    Traits:
        selected: The selected job's id, "" for none. Set it to highlight a job (also one that has not started yet).
        growing: Whether somebody still writes the log: False lets time stand still at the last entry.
    """

    _esm = HERE / "gantt.js"
    _css = HERE / "gantt.css"
    snapshot = traitlets.Bytes().tag(sync=True)  # filled in get_state: never holds anything in Python
    selected_index = traitlets.Int(-1).tag(sync=True)
    failure = traitlets.Unicode().tag(sync=True)
    growing = traitlets.Bool(True).tag(sync=True)
    selected = traitlets.Unicode()

    def __init__(self, *, colours: Colours = figure_colours, **layout: Any) -> None:
        self._timeline = Timeline()
        self._picture = Picture(colours)
        self._lock = threading.RLock()  # the poller's thread and the kernel's main thread both come here
        self._resend_at: list[float] = []
        self._listeners: list[Callable[[str], None]] = []
        self.sent_bytes = self.sent_updates = 0
        self.on_drawn: Callable[[int], None] | None = None  # for measuring: told each update's last entry once it is drawn
        super().__init__(**layout)
        self.on_msg(self._hear)
        self.observe(self._select_index, "selected")
        self.observe(self._select_job, "selected_index")

    def __repr__(self) -> str:
        p = self._picture
        if self.failure:
            return f"<Gantt: {self.failure}>"
        if not p.spans:
            return "<Gantt: waiting for the first job>"
        return f"<Gantt of {p.facts.run}: {len(p.spans):,} jobs in {len(p.lanes)} worker slots, {p.status}, {p.at:.1f} s>"

    # --- a View -----------------------------------------------------------------------------------------------------

    def take(self, entries: Sequence[Entry]) -> None:
        """Further entries of the log, each once and in order."""
        with self._lock:
            touched = self._picture.see(entries)
            update = self._picture.take(self._timeline.feed(entries), touched)
            self._pass_on(update)
        if self.selected and self.selected_index < 0:
            self.selected_index = self._picture.index.get(self.selected, -1)

    def fail(self, message: str) -> None:
        """Show that this view has failed."""
        self.failure = sayable(message)

    # --- selection --------------------------------------------------------------------------------------------------

    def on_select(self, callback: Callable[[str], None]) -> None:
        """Call back with the job's id ("" for none) whenever another job is selected, here or in the browser."""
        self._listeners.append(callback)

    def span(self, job: str) -> Span | None:
        """What is known about a job, or None."""
        with self._lock:
            i = self._picture.index.get(job)
            return None if i is None else self._picture.spans[i]

    def _select_index(self, change: Any) -> None:
        self.selected_index = self._picture.index.get(self.selected, -1)
        for callback in self._listeners:
            callback(self.selected)

    def _select_job(self, change: Any) -> None:
        i, spans = self.selected_index, self._picture.spans
        if i != self._picture.index.get(self.selected, -1):
            self.selected = spans[i].job if 0 <= i < len(spans) else ""

    # --- what goes to the browser -----------------------------------------------------------------------------------

    def get_state(self, key: Any = None, drop_defaults: bool = False) -> dict[str, Any]:
        """The widget's state, with the whole picture in it."""
        with self._lock:
            state: dict[str, Any] = super().get_state(key, drop_defaults)
            if "snapshot" in state:
                state["snapshot"] = self._picture.whole()
            if key is None:
                now = time.monotonic()
                self._resend_at = [now + wait for wait in RESENDS_S]
            return state

    def _pass_on(self, update: Update) -> None:
        self.sent_updates += 1
        if self._resend_at and time.monotonic() >= self._resend_at[0]:
            self._resend_at.pop(0)
            self.send_state("snapshot")
            return
        head: dict[str, Any] = {"kind": "add", **update.head}
        if self.on_drawn is not None:
            head["echo"] = 1
        self.sent_bytes += update.size
        self.send(head, [update.spans, update.ends, update.steps])

    # --- what the browser says --------------------------------------------------------------------------------------

    def _hear(self, _: Any, content: Any, buffers: Any) -> None:
        match content:
            case {"kind": "follows"}:
                self._resend_at = []
            case {"kind": "gap"}:
                with self._lock:
                    self.send_state("snapshot")
            case {"kind": "about", "jobs": [*asked]}:
                self._tell(asked[:MOST_ASKED])
            case {"kind": "drawn", "seq": int(seq)} if self.on_drawn is not None:
                self.on_drawn(seq)
            case _:
                pass

    def _tell(self, asked: Sequence[Any]) -> None:
        with self._lock:
            known = [i for i in asked if isinstance(i, int) and 0 <= i < len(self._picture.spans)]
            self.send({"kind": "about", "jobs": [self._picture.about(i) for i in known]})
