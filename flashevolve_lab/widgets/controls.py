"""The controls of a run, plain ipywidgets: start, pause, resume, step, stop, and every knob.

Owns the buttons and sends what they and the knobs ask for. Owns no setting: what is in force is read back from the log. One rule
a change must keep: a callback hands a command over and returns; it never waits, and whatever it raises is shown beside it.

What a front end can do while a cell is busy (click until the log has the change; measured by `tests/browser/test_lab.py` with
JupyterLab 4.6 and with Notebook 7.6, ipywidgets 8.1.9, ipykernel 7.4; other versions in `reference/platform.md` §3):

- the engine runs on its own thread, so a cell that started a run and returned leaves everything free: 0.01 to 0.1 s;
- during ``await run`` in a cell: the same;
- during a cell that blocks the kernel (a loop, ``time.sleep``, ``run.wait()``): the same, because these front ends send clicks
  over a subshell, on another thread. Without subshells (ipykernel 6, VS Code so far): when the cell has ended. What is shown goes
  on all the same;
- ``run.set(...)``, ``run.pause()`` and the like work from any thread of the process at any time.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets as ipw

from flashevolve_lab.core import Entry
from flashevolve_lab.core import events as ev
from flashevolve_lab.policies import ACCEPTANCES, COMPLETION, SCHEDULES, STALENESS, WORKERS, describe
from flashevolve_lab.widgets.fold import Fold
from flashevolve_lab.widgets.knobs import BudgetKnob, Knob, NumberKnob, PolicyKnob, SlotsKnob, said
from flashevolve_lab.widgets.live import Commands
from flashevolve_lab.widgets.texts import sayable

CONFIRM_S = 4.0  # a stop must be confirmed within
ANY = "any stage"
START = "since the start"


class Controls:
    """A view whose ``widget`` steers a run.

    Args:
        commands: Where commands go.
        policies: Further policy classes for the menus (those of a notebook cell).
        resolve: A recorded policy → the live one, so that a class already set on the run joins its menu.
        budget: Limits → the value that ``commands.set(budget=…)`` takes.
        growing: Whether some process still writes the log.
    """

    def __init__(
        self,
        commands: Commands,
        *,
        policies: Sequence[type] = (),
        resolve: Callable[[Any], Any] | None = None,
        budget: Callable[[Mapping[str, float]], Any] = dict,
        growing: Callable[[], bool] = lambda: True,
    ) -> None:
        self._commands, self._resolve, self._budget, self._growing = commands, resolve, budget, growing
        self._status = "new"
        self._since = 0.0
        self._busy = ""
        self.schedule = PolicyKnob("schedule", "Schedule", list(SCHEDULES.values()), self._set)
        self.staleness = PolicyKnob("staleness", "Staleness policy", list(STALENESS.values()), self._set)
        self.acceptance = PolicyKnob("acceptance", "Acceptance at the gate", list(ACCEPTANCES.values()), self._set)
        self.completion = PolicyKnob("completion", "Completion", list(COMPLETION.values()), self._set)
        self.workers = PolicyKnob("workers", "Worker control", list(WORKERS.values()), self._set)
        self.offer(policies)
        self.slots = SlotsKnob(self._set)
        self.concurrency = NumberKnob("concurrency", "Gateway", "calls in flight at most", "calls in flight", self._set)
        self.budget = BudgetKnob(self._set)
        self.more = Fold()
        self._moved: set[str] = set()  # knobs that changed since the start
        self._buttons()
        self.note = said()
        self.widget = self._layout()
        self._show_state()

    def __repr__(self) -> str:
        return f"<Controls of a run that is {self._status}>"

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """Every knob."""
        return (self.schedule, self.staleness, self.budget, *self.folded)

    @property
    def folded(self) -> tuple[Knob, ...]:
        """Those that are shown when ``more`` is open."""
        return (self.completion, self.acceptance, self.workers, self.slots, self.concurrency)

    def offer(self, policies: Sequence[type]) -> None:
        """Add policy classes to the menus: one with ``judge`` by what it judges (gate, partial, load, else a stale item), others to
        the schedules.
        """
        for cls in policies:
            self._menu(cls).offer(cls)

    def _menu(self, cls: type) -> PolicyKnob:
        """Where a class belongs: by the type that its ``judge`` names for what it judges, else by what it calls it."""
        judge = getattr(cls, "judge", None)
        if not callable(judge):
            return self.schedule
        menus = {"gate": self.acceptance, "partial": self.completion, "load": self.workers, "staleitem": self.staleness}
        given = list(inspect.signature(judge).parameters.values())[-1:]
        words = [word for one in given for word in (_named(one.annotation), one.name.lower())]
        return next((menus[word] for word in words if word in menus), self.staleness)

    # --- what is shown ----------------------------------------------------------------------------------------------------

    def _buttons(self) -> None:
        def button(text: str, icon: str, tooltip: str, act: Callable[[], Any]) -> ipw.Button:
            made = ipw.Button(description=text, icon=icon, tooltip=tooltip, layout=ipw.Layout(width="auto"))
            made.on_click(lambda _: act())
            return made

        self.pause = button("Pause", "pause", "Start no further job and no further call", self._pause)
        self.resume = button("Resume", "play", "Start jobs and calls again", self._resume)
        self.step = button("Step", "step-forward", "While paused: let the next jobs run", self._step)
        self.count = ipw.BoundedIntText(value=1, min=1, max=1000, layout=ipw.Layout(width="58px"))
        self.count.tooltip = "How many jobs a step runs"
        self.stage = ipw.Dropdown(options=[ANY], value=ANY, layout=ipw.Layout(width="110px"))
        self.stage.tooltip = "Of which stage"
        self.stop = button("Stop", "stop", "End the run; asks once more", self._stop)

    def _layout(self) -> ipw.VBox:
        row = [self.resume, self.pause, self.step, self.count, self.stage, self.stop, self.note]
        buttons = ipw.HBox(row, layout=ipw.Layout(flex_flow="row wrap", align_items="center"))
        cards, folded = _row([self.schedule, self.staleness, self.budget]), _row(self.folded)
        folded.add_class("fl-folded")
        box = ipw.VBox([buttons, cards, self.more, folded])
        box.add_class("fl-controls")
        return box

    def take(self, entries: Sequence[Entry]) -> None:
        """Further entries of the log: what came of the commands."""
        for entry in entries:
            self._see(entry.event, entry.at)
        self._show_state()

    def fail(self, message: str) -> None:
        """Show that this view has failed."""
        self.note.value = sayable(message)

    def _see(self, event: ev.Event, at: float) -> None:
        since = f"since {at:,.1f} s"
        match event:
            case ev.RunStarted():
                self._begin(event)
            case ev.SettingChanged(knob, _, new):
                self._effective(knob, new, since)
            case ev.SlotsChanged(stage, old, new, why):
                self.workers.line.value = f"{stage}: {old} → {new} slots {since}: {why}"
            case ev.DepthChanged(_, new, why):
                self.schedule.line.value = f"effective depth {new} {since}: {why}"
            case ev.LimitChanged(_, _, new, why):
                self.concurrency.line.value = f"a server is given {new} {since}: {why}"
            case ev.Paused():
                self._enter("paused", at)
            case ev.Continued() | ev.RunResumed():
                self._enter("running", at)
            case ev.RunStopped():
                self._enter("stopped", at)
            case ev.JobFinished() | ev.JobFailed():
                self._busy = "" if self._busy.startswith("step") else self._busy
            case _:
                pass

    def _begin(self, event: ev.RunStarted) -> None:
        self.slots.stages(event.stages)
        self.stage.options = [ANY, *event.stages]
        for knob in self.knobs:
            value = event.budget if knob is self.budget else event.settings.get(knob.name)
            if value is not None or knob is self.slots:
                self._effective(knob.name, value, START)
        self._enter("running", 0.0)

    def _effective(self, name: str, value: Any, since: str) -> None:
        knob = next((knob for knob in self.knobs if knob.name == name), None)
        if isinstance(knob, PolicyKnob):
            self._offer(knob, value)
        if knob is not None:
            knob.effective(value, since)
            if since != START:
                self._moved.add(name)

    def _offer(self, knob: PolicyKnob, value: Any) -> None:
        """A policy of the user's own that is already set on the run joins the menu."""
        if self._resolve is None or not isinstance(value, Mapping) or "code" not in value:
            return
        try:
            policy = self._resolve(value)
        except Exception:  # read from a file: the log has its name, not its code
            return
        knob.offer(type(policy), policy)

    def _enter(self, status: str, at: float) -> None:
        self._status, self._since, self._busy = status, at, ""

    def _show_state(self) -> None:
        why_not = self._why_not()
        able = not why_not
        for button, wanted in (
            (self.pause, able and self._status == "running"),
            (self.resume, able and self._status == "paused"),
            (self.step, able and self._status == "paused"),
            (self.stop, able),
        ):
            if button.disabled == wanted:
                button.disabled = not wanted
        for knob in self.knobs:
            knob.enable(able)
        state = f"{self._status} since {self._since:,.1f} s" if self._since else self._status
        text = why_not or f"{state}{'; ' + self._busy if self._busy else ''}"
        if self.note.value != text:
            self.note.value = text
        self.more.parts = [
            [words, sayable(f"{knob.title}: {knob.line.value}"), not knob.usual or knob.name in self._moved]
            for knob in self.folded
            if (words := knob.brief())
        ]

    def _why_not(self) -> str:
        if self._status == "stopped":
            return f"The run ended at {self._since:,.1f} s: it can be looked at. lab.resume(path, …) takes it up again."
        if self._commands.available:
            return ""
        if self._growing():
            return "Another process executes this run: it can be watched here and steered there."
        return "The process of this run is gone: it can be looked at. lab.resume(path, …) takes it up again."

    # --- what is asked for ------------------------------------------------------------------------------------------------

    def _order(self, what: str, act: Callable[[], Any]) -> None:
        try:
            act()
        except Exception as error:  # shown here, never in a log that nobody sees
            self.note.value = sayable(f"{what} failed: {error}")
            return
        self._busy = f"{what} asked for"
        self._show_state()

    def _pause(self) -> None:
        self._order("pause", self._commands.pause)

    def _resume(self) -> None:
        self._order("resume", self._commands.resume)

    def _step(self) -> None:
        stage = "" if self.stage.value == ANY else self.stage.value
        self._order(f"step of {self.count.value}", lambda: self._commands.step_soon(self.count.value, stage))

    def _stop(self) -> None:
        if self.stop.button_style != "danger":
            self.stop.button_style, self.stop.description = "danger", "Click again to stop"
            timer = threading.Timer(CONFIRM_S, self._unconfirmed)
            timer.daemon = True
            timer.start()
            return
        self._unconfirmed()
        self._order("stop", self._commands.stop)

    def _unconfirmed(self) -> None:
        self.stop.button_style, self.stop.description = "", "Stop"

    def _set(self, name: str, value: Any) -> None:
        """Order a change of a knob; it is pending until the log has it."""
        knob = next(knob for knob in self.knobs if knob.name == name)
        recorded = describe(value) if isinstance(knob, PolicyKnob) else value
        try:
            if knob.pending(recorded):
                self._commands.set(**{name: self._budget(value) if knob is self.budget else value})
        except Exception as error:
            knob.refused(str(error) or type(error).__name__)


def _row(knobs: Sequence[Knob]) -> ipw.HBox:
    """Cards side by side, as many as fit."""
    row = ipw.HBox([knob.widget for knob in knobs], layout=ipw.Layout(flex_flow="row wrap", align_items="stretch", width="100%"))
    row.add_class("fl-knobs")
    return row


def _named(annotation: Any) -> str:
    """The last word of an annotation, which a notebook cell may have written as text: ``"lab.Partial"`` → ``"partial"``."""
    name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return name.strip("\"' ").rpartition(".")[2].lower()
