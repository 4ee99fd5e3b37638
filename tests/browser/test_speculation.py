"""Partial results in a real JupyterLab: in the Gantt, the feed, the inspector, the lineage and the facts, light and dark."""

import pytest
from jupyter_lab import until

pytestmark = [pytest.mark.browser, pytest.mark.slow]

GANTT, FEED, INSPECTOR, LINEAGE = "[data-lab-status*=spans]", ".lab-feed", ".lab-inspector", "[data-lab-status*=nodes]"
RUN = """
import tempfile
import flashevolve_lab as lab
from flashevolve_lab.core import events as ev
land = lab.UnitingRules(n_rules=6, unite=2, p_improve=0.6, noise=0.2, seed=8)
run = lab.start(lab.simulated_task(land, 60, 100), lab.GEPA(), llm=lab.Simulated(land, speed=lab.Batching(slots=24), seed=0),
                budget=lab.Budget(metric_calls=4_000), schedule=lab.Pipelined(24), staleness=lab.Full(),
                completion=lab.Speculative(rollout=0.5, validation=0.05), clock=lab.Virtual(), folder=tempfile.mkdtemp(), seed=8)
run.wait(60)
gone = [entry.event for entry in run.entries if isinstance(entry.event, ev.RolledBack)]
run
"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_what_was_rolled_back_is_seen_in_every_view(open_notebook, dark):
    notebook = open_notebook(f"speculation_{dark}.ipynb", cells=[RUN], height=1500, dark=dark)
    notebook.run_all()
    notebook.page.wait_for_selector(".fl-head", timeout=60_000)
    notebook.idle()
    gone = notebook.execute("print(*[event.artifact for event in gone])").split()
    assert gone
    chart = notebook.page.locator(GANTT).first
    chart.scroll_into_view_if_needed()
    until(lambda: f"roll-back {gone[0]}" in notebook.status(GANTT)["labels"], 10, "a mark of the first roll-back")
    assert "proven unable to win" in chart.inner_text() and "in the pool provisionally" in chart.inner_text()

    feed = notebook.page.locator(FEED).first
    feed.scroll_into_view_if_needed()
    counts = until(lambda: notebook.status(FEED).get("counts"), 10, "the feed's counts")
    assert counts["rolled back"] == len(gone) and notebook.status(FEED)["hidden"] == ["released"]
    for kind in ("accept", "provisional", "confirmed", "proven"):
        feed.locator("button", has_text=kind).first.click()
    until(lambda: notebook.status(FEED)["drawn"] == len(gone), 5, "roll-backs alone")
    feed.locator(".lab-feed-row").last.click()
    until(lambda: notebook.status(INSPECTOR)["artifact"] == gone[0], 10, "the inspector to show what was rolled back first")
    told = notebook.page.locator(INSPECTOR).first.inner_text()
    assert "Partial results" in told and "left the pool" in told and "promises" in told

    notebook.page.locator(LINEAGE).first.scroll_into_view_if_needed()
    assert until(lambda: notebook.status(LINEAGE).get("gone"), 10, "crossed-out artifacts") == len(gone)
    assert "Partial results" in notebook.page.locator(".fl-facts").first.inner_text()
    notebook.shot(f"speculation_{'dark' if dark else 'light'}", ".fl-dashboard")
