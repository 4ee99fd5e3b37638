"""The lab on one page: header, controls, Gantt, feed and inspector, score, lineage, facts; one poller feeds them all.

Owns the layout, the shared selection (a click anywhere shows everywhere) and the static summary that stays in the notebook. Owns
no run: it gets something to read and to command (`Watched`). One rule a change must keep: closing it, or its tab, changes nothing
for the run; and an error in one view is shown there and leaves the others alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import ipywidgets as ipw

from flashevolve_lab.core import Entry
from flashevolve_lab.core import events as ev
from flashevolve_lab.errors import LabError
from flashevolve_lab.widgets.controls import Controls
from flashevolve_lab.widgets.feed import Feed
from flashevolve_lab.widgets.gantt import Gantt, figure_colours
from flashevolve_lab.widgets.inspector import Inspector
from flashevolve_lab.widgets.lineage import LineageTree
from flashevolve_lab.widgets.live import PERIOD_S, Commands, Poller, Source, View
from flashevolve_lab.widgets.overview import Overview
from flashevolve_lab.widgets.summary import Summary, summary_html, summary_text

KEEP_S = 20.0  # the static summary in the notebook is renewed at most this often


class Watched(Source, Commands, Protocol):
    """A run as a dashboard needs it: its log, and its commands."""


class Dashboard(ipw.VBox):  # type: ignore[misc]
    """The live lab of one run. Showing it again, in another cell or tab, shows the same one.

    Args:
        run: What to read and to command; read-only controls say why where commands do not reach it.
        policies: Further policy classes for the menus.
        resolve: A recorded policy → the live one (for those defined in a cell and already set).
        budget: Limits → the value that ``run.set(budget=…)`` takes.
        show_example: ``(split, index) → text`` of an example, for the inspector.
        period_s: Seconds between two looks into the log.

    What a front end can do while a cell is busy stands in `widgets.controls`; ``run.set(...)`` works always.
    """

    def __init__(
        self,
        run: Watched,
        *,
        policies: Sequence[type] = (),
        resolve: Callable[[Any], Any] | None = None,
        budget: Callable[[Mapping[str, float]], Any] = dict,
        show_example: Callable[[str, int], str] | None = None,
        period_s: float = PERIOD_S,
    ) -> None:
        def growing() -> bool:
            return run.growing

        begun = run.after(0, 1)
        stages = begun[0].event.stages if begun and isinstance(begun[0].event, ev.RunStarted) else ()
        self._run = run
        self.overview = Overview(growing, elsewhere=not run.available)
        self.controls = Controls(run, policies=policies, resolve=resolve, budget=budget, growing=growing)
        self.gantt = Gantt(growing=run.growing)
        self.feed = Feed(colours=figure_colours(stages))
        self.inspector = Inspector(run, show_example=show_example)
        self.lineage = LineageTree()
        self._links = Links()
        self._keeper = Keeper(self.summary, lambda: self.overview.state)
        self._selecting = False
        super().__init__(self._layout(), layout=ipw.Layout(width="100%"))
        self.add_class("fl-dashboard")
        self._connect()
        views: list[View] = [Ending(self._run_over), self._links, self.overview, self.controls, self.gantt, self.feed, self.inspector, self.lineage]
        self._poller = Poller(run, [*views, self._keeper], period_s)

    def _run_over(self) -> None:
        """Nobody writes the log any more: time stands still in the Gantt, also when the run's process died without a word."""
        self.gantt.growing = False

    def __repr__(self) -> str:
        return f"<Dashboard: {summary_text(self.summary())}>"

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self.comm is None

    def close(self) -> None:
        """Stop following and take everything off the page. The run goes on."""
        self._poller.close()
        for widget in _inside(self):
            if widget is not self:
                widget.close()
        super().close()

    def _layout(self) -> list[ipw.Widget]:
        overview = self.overview
        beside = ipw.Layout(flex_flow="row wrap", width="100%", align_items="stretch")
        self.feed.layout.flex, self.inspector.layout.flex = "2 1 340px", "3 1 480px"
        overview.score.layout.flex, self.lineage.layout.flex = "1 1 380px", "1 1 380px"
        for widget in (self.feed, self.inspector, overview.score, self.lineage, overview.facts):
            widget.layout.min_width = "0"
        rows = [ipw.HBox(pair, layout=beside) for pair in ([self.feed, self.inspector], [overview.score, self.lineage])]
        for row in rows:
            row.add_class("fl-beside")
        return [overview.header, self.controls.widget, self.gantt, *rows, overview.facts]

    # --- selection --------------------------------------------------------------------------------------------------------

    def select(self, id: str) -> None:
        """Show a job ("j7"), an item ("p3") or an artifact ("a5") in the inspector, and mark it everywhere; "" for none."""
        if self._selecting:
            return
        self._selecting = True
        try:
            job, item, artifact = self._links.around(id)
            self.gantt.selected = job
            self.feed.select(item)
            for view in (self.lineage, self.overview.score):
                view.selected = artifact
            if id and id != self.inspector.shown:
                self.inspector.show(id)
        except LabError as error:
            self.inspector.fail(str(error))
        finally:
            self._selecting = False

    def _connect(self) -> None:
        self.gantt.on_select(self.select)
        self.feed.on_open(self.select)
        self.inspector.on_show(self.select)
        for view in (self.lineage, self.overview.score):
            view.observe(lambda change: self.select(change["new"]), "selected")

    # --- what stays in the notebook ---------------------------------------------------------------------------------------

    def summary(self) -> Summary:
        """What the static summary tells now."""
        overview = self.overview
        standing = overview.standing
        return Summary(
            run=overview.run,
            standing=standing,
            state=overview.state,
            line=overview.diagnosis.line,
            seed=overview.seed,
            points=overview.points,
            best_texts=overview.best_texts,
        )

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        bundle = super()._repr_mimebundle_(**kwargs)
        return {**bundle, "text/plain": repr(self)} if isinstance(bundle, dict) else bundle

    def _ipython_display_(self) -> None:
        """The live widgets, and under them a static summary that is hidden while they live and stays in the saved notebook."""
        from IPython.display import HTML, display

        display(self._repr_mimebundle_(), raw=True)  # type: ignore[no-untyped-call]
        page = HTML(summary_html(self.summary()))  # type: ignore[no-untyped-call]
        self._keeper.keep(display(page, display_id=True))  # type: ignore[no-untyped-call]


class Ending:
    """A view of no pixels: told when nobody writes the log any more."""

    def __init__(self, over: Callable[[], None]) -> None:
        self._over = over

    def take(self, entries: Sequence[Entry]) -> None:
        """No entries: the end."""
        if not entries:
            self._over()

    def fail(self, message: str) -> None:
        """Nothing to show it in."""


class Links:
    """A view of no pixels: which job, item and artifact belong together."""

    def __init__(self) -> None:
        self._item_of: dict[str, str] = {}  # job or artifact → its item
        self._job_of: dict[str, str] = {}  # item → its latest job
        self._artifact_of: dict[str, str] = {}  # item → the latest text it made

    def take(self, entries: Sequence[Entry]) -> None:
        """Further entries of the log."""
        for entry in entries:
            match entry.event:
                case ev.JobStarted(job=job, item=item):
                    self._item_of[job], self._job_of[item] = item, job
                case ev.ArtifactMade(artifact=artifact, item=item):
                    self._item_of[artifact], self._artifact_of[item] = item, artifact
                case _:
                    pass

    def fail(self, message: str) -> None:
        """Nothing to show it in: a selection then stays where it was made."""

    def around(self, id: str) -> tuple[str, str, str]:
        """The job, item and artifact of an id ("" where there is none)."""
        item = self._item_of.get(id, id)
        job = id if id in self._item_of and id.startswith("j") else self._job_of.get(item, "")
        artifact = id if id in self._item_of and id.startswith("a") else self._artifact_of.get(item, "")
        return job, item if item in self._job_of else "", artifact


class Keeper:
    """A view that keeps the static summaries in the notebook fresh: when the run's state changes, else now and then."""

    def __init__(self, summary: Callable[[], Summary], state: Callable[[], str]) -> None:
        self._summary, self._told_state = summary, state
        self._handles: list[Any] = []
        self._state = ""
        self._renewed_at = time.monotonic()

    def keep(self, handle: Any) -> None:
        """Renew this display from now on (the latest few)."""
        if handle is not None:
            self._handles = [*self._handles, handle][-4:]

    def take(self, entries: Sequence[Entry]) -> None:
        """Further entries of the log."""
        state, due = self._told_state(), time.monotonic() - self._renewed_at >= KEEP_S
        if not due and state == self._state:
            return
        self._state, self._renewed_at = state, time.monotonic()
        if self._handles:
            from IPython.display import HTML

            summary = self._summary()
            page = HTML(summary_html(summary))  # type: ignore[no-untyped-call]
            for handle in self._handles:
                handle.update(page)

    def fail(self, message: str) -> None:
        """Nothing to show it in: the summaries stay as they are."""


def _inside(widget: ipw.Widget) -> list[ipw.Widget]:
    """The widget and all it contains."""
    return [widget, *(inner for child in getattr(widget, "children", ()) for inner in _inside(child))]
