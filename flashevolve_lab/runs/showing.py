"""Showing a run: the dashboard where widgets work, a line of text where they do not.

Owns how a run and its dashboard come together (the widgets know no run). One rule a change must keep: a run has one dashboard at
most, so that showing it in ten cells costs no more than in one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from flashevolve_lab.errors import SetupError
from flashevolve_lab.runs.budget import Budget
from flashevolve_lab.runs.handle import Run

if TYPE_CHECKING:
    from flashevolve_lab.widgets import Dashboard, Inspector


def dashboard(run: Run, *, policies: Sequence[type] = ()) -> Dashboard:
    """The live lab of a run: watch, inspect and steer it. As the last line of a cell, ``run`` alone shows the same.

    It returns at once and everything stays live: on a run of this process, on a finished one from `open`, and on one that another
    process is writing (the controls then say why they are disabled). While a cell is busy what is shown goes on; how soon a click
    reaches the run depends on the front end (see `widgets.controls`); ``run.set(...)`` works always.

    Args:
        run: From `start`, `resume` or `open`.
        policies: Classes of your own for the menus: staleness policies (they have ``judge``) and schedules.

    Raises:
        SetupError: not a run.
    """
    if not isinstance(run, Run):
        raise SetupError(f"dashboard(run): expected a run from lab.start, lab.resume or lab.open; got {type(run).__name__}")
    shown = run._dashboard
    if shown is None or shown.closed:
        from flashevolve_lab.widgets import Dashboard

        shown = run._dashboard = Dashboard(
            run,
            policies=policies,
            resolve=run._policies,
            budget=lambda limits: Budget(**limits),  # type: ignore[arg-type]
            show_example=_examples(run),
        )
    else:
        shown.controls.offer(policies)
    return shown


def inspector(run: Run, id: str) -> Inspector:
    """An inspector of its own, following the run. Raises `SetupError` when the log knows no such id."""
    from flashevolve_lab.widgets import Inspector, Poller

    view = Inspector(run, show_example=_examples(run))
    view.poller = Poller(run, [view])  # followed as long as it is shown
    view.show(id)
    return view


def display_run(run: Run) -> None:
    """What ``run`` as the last line of a cell does."""
    if _has_widgets():
        dashboard(run)._ipython_display_()
    else:
        print(repr(run))


def static_bundle(run: Run) -> dict[str, str]:
    """The run as text and as static HTML, for whatever shows no widgets."""
    plain = {"text/plain": repr(run)}
    try:
        from flashevolve_lab.widgets import summary_html, summary_of
    except ImportError:
        return plain
    return {**plain, "text/html": summary_html(summary_of(run.entries, run.status.state))}


def _has_widgets() -> bool:
    """Whether this is a kernel, whose front end may show widgets, rather than a terminal."""
    try:
        from IPython import get_ipython

        import flashevolve_lab.widgets  # noqa: F401
    except ImportError:
        return False
    return getattr(get_ipython(), "kernel", None) is not None


def _examples(run: Run) -> Callable[[str, int], str] | None:
    """``(split, index) → text`` of an example, where the task is at hand: for logs that have only its number."""
    if run._shell is None:
        return None
    task = run._shell.task
    return lambda split, index: task.show((task.train if split == "train" else task.val)[index])
