"""The live Gantt in a real JupyterLab: it grows, follows, zooms, tells and selects, whatever the kernel does."""

import pytest
from jupyter_lab import until

pytestmark = pytest.mark.browser

GANTT = "[data-lab-status*=bars]"
RUN = """
import tempfile, time
import flashevolve_lab as lab
from flashevolve_lab.widgets import Gantt, Poller
land = lab.IndependentRules(n_rules=20, p_improve=0.6)
run = lab.start(lab.simulated_task(land, 60, 50), llm=lab.Simulated(land), budget=lab.Budget(metric_calls={calls}), clock=lab.{clock},
                schedule=lab.Pipelined(8), staleness=lab.Guarded(2, beyond="update"), folder=tempfile.mkdtemp())
{then}
gantt = Gantt()
poller = Poller(run, [gantt])
gantt
"""
LIVE = RUN.format(calls=4000, clock="Scaled(2)", then="")
FINISHED = RUN.format(calls=1500, clock="Virtual()", then="run.wait()")
HAND_MADE = """
from flashevolve_lab.core import Entry, events as ev
from flashevolve_lab.widgets import Gantt
HOSTILE = "<img src=x onerror='window.hit=1'>\\u202e<script>window.hit=1</script>" + "x" * 200_000
stages = ("roll<b>out</b>", "valid" + "ate" * 50)
events = [ev.RunStarted(HOSTILE, "2026-01-01T00:00:00+00:00", 0, "virtual", {}, stages, {}, {}, {}, {}), ev.ItemMade("p0", HOSTILE, stages[0], 0, 0, {"parent": HOSTILE}),
          ev.JobStarted("j0", stages[0], 0, "p0", -1), ev.Warned("quota", HOSTILE), ev.SettingChanged("staleness", HOSTILE, HOSTILE, HOSTILE, HOSTILE),
          ev.JobFailed("j0", "samples", HOSTILE), ev.ItemQueued("p0", stages[1]), ev.JobStarted("j1", stages[1], 0, "p0", 0), ev.JobAbandoned("j1", HOSTILE)]
gantt = Gantt()
gantt
"""


@pytest.fixture
def shown(open_notebook):
    """``shown(cell, …)``: a notebook whose first cell has shown a Gantt."""

    def show(cell, *more, **options):
        notebook = open_notebook("gantt.ipynb", [cell, *more], **options)
        notebook.run_all()
        notebook.page.wait_for_selector(".lab-gantt", timeout=60_000)
        notebook.idle()
        notebook.page.locator(".lab-gantt").first.scroll_into_view_if_needed()
        return notebook

    return show


def status(notebook, true, what, seconds=15):
    """The Gantt's status record, once it is as wanted."""

    def wanted():
        record = notebook.status(GANTT)
        return record if record and true(record) else None

    return until(wanted, seconds, what)


def settled(notebook, what):
    """The record once the window stands still (a wheel's events arrive one by one)."""
    seen = []

    def still():
        seen.append(notebook.status(GANTT))
        window = [(record["t0"], record["t1"], record["mode"]) for record in seen[-8:]]
        return seen[-1] if len(window) == 8 and len(set(window)) == 1 else None

    return until(still, 15, what)


def middle(notebook, least=30):
    """The middle of a bar at least so wide, on the page, and the bar's number."""
    return notebook.page.evaluate(
        """least => {
          const view = document.querySelector('[data-lab-status]').labGantt, at = view.over.getBoundingClientRect();
          for (const { lane } of view.rows) for (let p = 0; p < lane.s.n; p++) {
            const i = lane.i.a[p], box = view.box(i);
            if (box.w >= least && box.x > view.gutter + 50 && box.x + box.w < view.width - 20) return [at.x + box.x + box.w / 2, at.y + box.y + box.h / 2, i];
          }
          return null;
        }""",
        least,
    )


def test_bars_grow_during_a_blocking_cell_and_pause_is_marked(shown):
    notebook = shown(LIVE)
    before = status(notebook, lambda s: s["spans"] > 20, "bars")
    assert (before["mode"], before["live"], before["lanes"] > 8) == ("fit", True, True)
    notebook.cell("import time; time.sleep(5)")
    status(notebook, lambda s: s["spans"] > before["spans"] + 20, "bars to grow while a cell blocks", 4.5)
    notebook.idle()
    notebook.execute("run.pause()")
    status(notebook, lambda s: s["status"] == "paused" and "pause" in s["labels"], "the mark of the pause")
    notebook.execute("run.resume(); run.set(staleness=lab.Full())")
    after = status(notebook, lambda s: "staleness → Full" in s["labels"], "the mark of the change")
    assert after["fps"] > 5
    notebook.shot("gantt_live_light")
    notebook.theme(True)
    assert status(notebook, lambda s: s["dark"], "the dark theme")
    notebook.shot("gantt_live_dark")
    notebook.execute("run.stop()")
    status(notebook, lambda s: s["status"] == "stopped" and not s["live"], "the end")
    assert "ended (user)" in notebook.page.inner_text(".lab-gantt-state")


def test_it_is_drawn_and_grows_in_a_cell_that_blocks_from_the_start(open_notebook):
    notebook = open_notebook("blocking.ipynb", [LIVE.rstrip().removesuffix("gantt") + "display(gantt)\ntime.sleep(12)"])
    notebook.run_all()
    notebook.page.wait_for_selector(".lab-gantt", timeout=60_000)
    notebook.page.locator(".lab-gantt").scroll_into_view_if_needed()
    first = status(notebook, lambda s: s["spans"] > 5, "bars while the cell blocks", 8)
    status(notebook, lambda s: s["spans"] > first["spans"] + 5, "bars to grow", 3)
    assert notebook.page.inner_text(".jp-InputPrompt").startswith("[*]")


def test_it_is_moved_by_wheel_drag_and_keys_and_follows_at_the_right_edge(shown):
    notebook = shown(LIVE)
    status(notebook, lambda s: s["spans"] > 20, "bars")
    page, chart = notebook.page, notebook.page.locator(".lab-gantt-over")
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 200)
    for _ in range(4):
        page.mouse.wheel(0, -150)
    status(notebook, lambda s: s["mode"] == "free", "a zoom by wheel")
    zoomed = settled(notebook, "the wheel to end")
    page.mouse.down()
    page.mouse.move(box["x"] + 0.4 * box["width"] + 120, box["y"] + 200, steps=4)
    page.mouse.up()
    panned = settled(notebook, "the drag to end")
    assert panned["t0"] < zoomed["t0"] - 0.01
    assert panned["t1"] - panned["t0"] == pytest.approx(zoomed["t1"] - zoomed["t0"])
    page.keyboard.press("End")
    following = status(notebook, lambda s: s["mode"] == "follow", "to follow at the right edge")
    status(notebook, lambda s: s["t1"] > following["t1"] + 0.5, "the window to move with now")
    page.keyboard.press("f")
    free = status(notebook, lambda s: s["mode"] == "free", "not to follow")
    assert notebook.execute("print(run.status.state)").strip() == "running"  # the run goes on
    page.keyboard.press("+")
    status(notebook, lambda s: s["t1"] - s["t0"] < 0.9 * (free["t1"] - free["t0"]), "a zoom by key")
    page.keyboard.press("0")
    page.keyboard.press("0")
    status(notebook, lambda s: s["mode"] == "fit" and s["t0"] == 0, "all of it")
    assert page.locator(".jp-Dialog").count() == 0  # in JupyterLab, "0 0" restarts the kernel
    page.keyboard.press("+")
    box = chart.bounding_box()  # the chart has grown with its lanes
    page.mouse.click(box["x"] + 140, box["y"] + box["height"] - 15)
    status(notebook, lambda s: s["mode"] == "free" and s["t0"] < 2, "the start, by the map")


def test_a_job_is_told_on_hover_and_selected_by_click_key_and_python(shown):
    notebook = shown(FINISHED)
    status(notebook, lambda s: s["spans"] > 100, "the whole run")
    notebook.execute("heard = []; gantt.on_select(heard.append)")
    x, y, i = middle(notebook)
    notebook.page.mouse.move(x, y)
    status(notebook, lambda s: s["hover"] == i, "the hover")
    tip = notebook.page.locator(".lab-gantt-tip")
    until(lambda: f"j{i}" in tip.inner_text() and "tokens" in tip.inner_text(), 5, "the details from Python")
    for word in ("item", "artifact", "base version", "gap", "time", "spent", "outcome"):
        assert word in tip.inner_text()
    notebook.page.mouse.click(x, y)
    until(lambda: notebook.execute("print(gantt.selected)").strip() == f"j{i}", 5, "the selection in Python")
    assert f"j{i}" in notebook.page.inner_text(".lab-gantt-detail")
    notebook.page.keyboard.press("]")
    until(lambda: notebook.execute("print(len(heard))").strip() == "2", 5, "the next job of the lane")
    notebook.page.keyboard.press("[")
    until(lambda: notebook.execute("print(heard[-1])").strip() == f"j{i}", 5, "and back")
    notebook.page.keyboard.press("Enter")
    status(notebook, lambda s: s["selected"] == i and s["inside"] > 0, "its calls, on zoom")
    notebook.shot("gantt_calls")
    notebook.page.keyboard.press("Escape")
    status(notebook, lambda s: s["selected"] == -1, "no selection")
    notebook.execute("gantt.selected = 'j7'")
    status(notebook, lambda s: s["selected"] == 7, "a selection from Python")


def test_a_reloaded_tab_and_a_second_view_show_everything(shown):
    notebook = shown(FINISHED, "gantt")
    first = status(notebook, lambda s: s["spans"] > 100, "the whole run")
    notebook.page.wait_for_function("() => document.querySelectorAll('.lab-gantt').length === 2")
    notebook.execute("gantt.selected = 'j9'")
    notebook.command("docmanager:save")
    notebook.page.wait_for_timeout(1000)
    notebook.reload()
    notebook.page.wait_for_selector(".lab-gantt", timeout=60_000)
    notebook.page.locator(".lab-gantt").first.scroll_into_view_if_needed()
    again = status(notebook, lambda s: s["spans"] == first["spans"] and s["selected"] == 9, "all of it, after a reload")
    assert (again["marks"], again["lanes"], again["seq"]) == (first["marks"], first["lanes"], first["seq"])


def test_hostile_text_is_only_text_and_every_state_has_words(shown):
    notebook = shown(HAND_MADE, width=480)
    page = notebook.page
    assert "Waiting for the first job" in page.inner_text(".lab-gantt-empty")
    notebook.execute("gantt.take([Entry(n + 1, float(n), event) for n, event in enumerate(events)])")
    status(notebook, lambda s: s["spans"] == 2 and s["marks"] == 2, "two bars and two marks")
    assert page.locator(".lab-gantt-empty").is_hidden()
    x, y, i = middle(notebook)
    page.mouse.move(x, y)
    tip = page.locator(".lab-gantt-tip")
    until(lambda: "onerror" in tip.inner_text(), 5, "the note")
    assert len(tip.inner_text()) < 2000
    page.mouse.click(x, y)
    until(lambda: "onerror" in page.inner_text(".lab-gantt-detail"), 5, "the details")
    assert page.evaluate("window.hit") is None
    assert page.locator(".lab-gantt img, .lab-gantt script").count() == 0
    notebook.shot("gantt_hostile_narrow")
    notebook.execute("gantt.fail('this view failed: <b>x</b>')")
    until(lambda: page.inner_text(".lab-gantt [role=alert]") == "this view failed: <b>x</b>", 5, "the failure")
