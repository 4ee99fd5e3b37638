"""The live lab in a notebook: widgets that follow a log and send commands; they know no engine and no run.

A live view is a `View` fed by a `Poller` from a `Source`, so the same widgets show a running run, a finished one, and one that
another process writes. `Dashboard` puts them all on one page.
"""

from flashevolve_lab.widgets.controls import Controls
from flashevolve_lab.widgets.dashboard import Dashboard, Watched
from flashevolve_lab.widgets.feed import Feed
from flashevolve_lab.widgets.gantt import Gantt
from flashevolve_lab.widgets.inspector import Inspector
from flashevolve_lab.widgets.lineage import LineageTree
from flashevolve_lab.widgets.live import Commands, Poller, Source, View
from flashevolve_lab.widgets.overview import Overview
from flashevolve_lab.widgets.summary import AS_IT_IS, Summary, summary_html, summary_of, summary_text

__all__ = [
    "AS_IT_IS", "Commands", "Controls", "Dashboard", "Feed", "Gantt", "Inspector", "LineageTree", "Overview", "Poller", "Source", "Summary",
    "View", "Watched", "summary_html", "summary_of", "summary_text",
]  # fmt: skip
